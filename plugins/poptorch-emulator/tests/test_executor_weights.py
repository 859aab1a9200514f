"""Weights and buffers (E6) of an executor: which copy is current, and what reaches the host and the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
from emulated_nets import Host, Net, T, X, trainer


class TestWeights:
    def test_stale(self):
        """The host's weights are those of before until somebody looks."""
        net = Net()
        values = Host(net)
        executor = trainer(net)
        before = values()
        executor(X, T)
        assert torch.equal(values()[0], before[0])
        assert executor.copyWeightsToHostIfNeeded()
        assert not executor.copyWeightsToHostIfNeeded()
        assert not torch.equal(values()[0], before[0])

    @pytest.mark.parametrize(
        "look",
        [
            lambda net: list(net.parameters()),
            lambda net: net.a.state_dict(),
            lambda net: net.a.weight + 0,
            lambda net: net.b.bias.detach().numpy(),
        ],
    )
    def test_looking(self, look):
        """Looking at the weights reads them from the device."""
        net = Net()
        values = Host(net)
        executor = trainer(net)
        before = values()
        executor(X, T)
        look(net)
        assert not torch.equal(values()[0], before[0])

    def test_edits(self):
        """An edit on the host is the device's when it is copied."""
        net = Net()
        executor = poptorch.inferenceModel(net)
        before = executor(X)
        with torch.no_grad():
            net.b.bias.add_(1)
        assert torch.equal(executor(X), before)
        executor.copyWeightsToDevice()
        assert torch.allclose(executor(X), before + 1)

    def test_load_state_dict(self):
        """load_state_dict of the executor is the device's at once."""
        net, other = Net(), Net()
        with torch.no_grad():
            other.b.bias.add_(1)
        executor = poptorch.inferenceModel(net)
        before = executor(X)
        executor.load_state_dict(other.state_dict())
        assert torch.allclose(executor(X), before + 1)

    @pytest.mark.usefixtures("several_devices")
    def test_training_to_inference(self):
        """An inference model of the module that is trained follows the training, from the wrapper too."""
        net = Net()
        executor = trainer(net)
        inference = [poptorch.inferenceModel(net), poptorch.inferenceModel(executor)]
        for _ in range(2):
            executor(X, T)
            for other in inference:
                got = other(X)
                assert torch.allclose(got, copy.deepcopy(net)(X), atol=1e-6)
        executor.destroy()
        assert torch.allclose(inference[0](X), net(X), atol=1e-6)

    def test_frozen(self):
        """A parameter that needs no gradient at compilation stays."""
        net = Net()
        net.a.weight.requires_grad_(False)
        values = Host(net)
        before = values()
        executor = trainer(net)
        executor(X, T)
        net.state_dict()
        assert [torch.equal(a, b) for a, b in zip(values(), before)] == [True, False, False, False]

    def test_precision(self):
        """Parameters of double precision are single on the device."""
        net = Net().double()
        executor = trainer(net)
        scores, _ = executor(X.double(), T)
        assert scores.dtype == torch.float32
        assert net.a.weight.dtype == torch.float64


class Counting(nn.Module):
    """Adds to its buffer, in a way that is given."""

    def __init__(self, change, start=None):
        super().__init__()
        self.register_buffer("y", torch.zeros(1) if start is None else start)
        self.w = nn.Parameter(torch.ones(1))
        self.change = change

    def forward(self, x):
        self.change(self)
        return self.y + 0 * x, poptorch.identity_loss((self.w * x).sum(), "none")


def _add(model):
    model.y += 1


def _copy(model):
    model.y.copy_(model.y + 1)


class TestBuffers:
    """E6."""

    @pytest.mark.parametrize("change", [_add, _copy])
    def test_in_place(self, change):
        """A buffer that is changed in place counts micro batches, from call to call."""
        model = Counting(change)
        options = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
        options.Training.gradientAccumulation(2)
        executor = poptorch.trainingModel(model, options)
        assert executor(torch.ones(4))[0].tolist() == [1, 2, 3, 4]
        assert executor(torch.ones(4))[0].tolist() == [5, 6, 7, 8]
        assert model.y.item() == 8

    def test_inference_leaves_the_host(self):
        """In inference a buffer of the host changes when it is copied."""
        model = Counting(_add)
        executor = poptorch.inferenceModel(model)
        executor(torch.ones(1))
        assert model.y.item() == 0
        executor.copyWeightsToHost()
        assert model.y.item() == 1

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                lambda model: setattr(model, "y", model.y + 1),
                r"Buffer y is reassigned within the model when calling the forward method\. This is not supported\. "
                r"Consider using self\.y\.copy_\(src\) to copy data from a source tensor",
            ),
            (
                lambda model: setattr(model, "w", nn.Parameter(torch.ones(1))),
                r"Parameter w is reassigned within the model when calling the forward method\.",
            ),
            (
                lambda model: delattr(model, "b"),
                r"Buffer b is removed from the model when calling the forward method\.",
            ),
        ],
    )
    def test_reassigned(self, change, text):
        """Another tensor in the place of a buffer or parameter is an error, and so is none."""
        model = Counting(change)
        model.register_buffer("b", torch.zeros(1))
        with pytest.raises(poptorch.Error, match=text):
            poptorch.inferenceModel(model)(torch.ones(1))
        assert model.y.device.type == model.w.device.type == "cpu"

    def test_integers(self):
        """A buffer of integers is a constant."""
        model = Counting(_add, torch.zeros(1, dtype=torch.int64))
        executor = poptorch.inferenceModel(model)
        assert [executor(torch.ones(1))[0].item() for _ in range(2)] == [1, 1]
        executor.copyWeightsToHost()
        assert model.y.item() == 0
        model.y.fill_(7)
        executor.copyWeightsToDevice()
        assert executor(torch.ones(1))[0].item() == 1

    @pytest.mark.usefixtures("several_devices")
    def test_replicas(self):
        """Replicas each have their buffers, if told so; else a changed buffer is an error."""
        options = poptorch.Options().replicationFactor(2)
        with pytest.raises(poptorch.Error, match="PopTorch does not support broadcasting buffers"):
            poptorch.trainingModel(Counting(_add), options)(torch.ones(2))
        options = poptorch.Options().replicationFactor(2).broadcastBuffers(False)
        model = Counting(_add)
        executor = poptorch.trainingModel(model, options)
        executor(torch.ones(2))
        assert executor(torch.ones(2))[0].tolist() == [2, 2]
        assert model.y.item() == 2
        poptorch.trainingModel(Counting(lambda model: None), poptorch.Options().replicationFactor(2))(torch.ones(2))

    def test_batch_norm(self):
        """Running statistics are updated per micro batch; the number of batches is not."""
        torch.manual_seed(0)
        net = nn.BatchNorm1d(4)
        reference = copy.deepcopy(net)
        executor = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(2))
        got = executor(X)
        expected = torch.cat([reference(X[:3]), reference(X[3:])])
        assert torch.allclose(got, expected, atol=1e-6)
        executor.copyWeightsToHost()
        assert torch.allclose(net.running_mean, reference.running_mean)
        assert torch.allclose(net.running_var, reference.running_var)
        assert net.num_batches_tracked.item() == 0

    def test_plain_attribute(self):
        """State on an attribute lives for one forward, which is refused; another wrapper meets a dead tensor."""

        class Stateful(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = None

            def forward(self, x):
                self.mem = x if self.mem is None else self.mem + x
                return self.mem

        outer = nn.Sequential(Stateful())
        with pytest.raises(
            poptorch.Error, match="forward leaves a tensor in 0.mem and begins with it at the next call"
        ):
            poptorch.inferenceModel(outer)(torch.ones(1))
        with pytest.raises(poptorch.Error, match="Attempted to promote a Tensor converted"):
            poptorch.inferenceModel(outer)(torch.ones(1))
