"""Batches that repeat a step, by their stride: what is computed of them, and how training steps keep them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from first_layers import COMPILED, B, Scale, T, same_weights, values
from graphed import GRAPH, Rerun
from spikecore._base.batches import inputs_on
from spikecore.layers import TimeBatched
from spikecore.training._cuda_graph import facts
from spikecore.training._cuda_graph import step as graph_step

_weights = pytest.fixture(autouse=True)(same_weights)


class TestHoist:
    """Layers that sc.hoist looks after."""

    @pytest.mark.parametrize("grad", [True, False])
    @pytest.mark.parametrize("layer", [nn.Linear(4, 2), TimeBatched(Scale()), nn.Identity()], ids=["linear", "own", ""])
    def test_a_batch_that_repeats_a_step_is_computed_once_and_written_out(self, layer, grad):
        """By its stride, as ``x.expand(T, ...)`` has it; anything may write into what comes of it."""
        x = values(B, 4).float().expand(T, B, 4)
        once, plain = sc.hoist(copy.deepcopy(layer)), copy.deepcopy(layer)
        with torch.set_grad_enabled(grad):
            y, expected = once(x), plain(x.clone())
        torch.testing.assert_close(y, expected)
        if grad and list(layer.parameters()):
            for one in (y, expected):
                one.square().sum().backward()
            for one, other in zip(once.parameters(), plain.parameters()):
                torch.testing.assert_close(one.grad, other.grad)
        for one in (y, expected):
            with torch.no_grad():
                one[0] = 0
                one += 1
        torch.testing.assert_close(y, expected)

    def test_it_is_written_out_in_the_layout_of_the_step(self):
        """Channels-last, here: a convolution behind it would copy else."""
        conv = TimeBatched(nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last))
        x = values(B, 2, 6, 5).float().contiguous(memory_format=torch.channels_last)
        y = conv(x.expand(T, *x.shape))
        assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(y, conv(x.expand(T, *x.shape).clone()))

    @pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILED)])
    @pytest.mark.parametrize("grad", [True, False])
    def test_a_network_that_writes_into_what_comes_of_a_repeated_tensor(self, grad, compiled):
        """Such as a position code, the same for each sample: no batch, and no time."""

        class Coded(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("code", values(1, 3, 4).float())
                self.project = nn.Linear(4, 4)

            def forward(self, x):
                h = self.project(self.code.expand(len(x), -1, -1))
                h[0] = 0
                h += x
                return h

        net, x = Coded(), values(B, 3, 4).float()
        expected = net(x).detach()
        sc.hoist(net)
        with torch.set_grad_enabled(grad):
            y = torch.compile(net, backend="aot_eager")(x) if compiled else net(x)
        torch.testing.assert_close(y.detach(), expected)

    def test_a_batch_with_a_derivative_is_computed_step_by_step(self):
        """Its gradient is asked for at every step."""
        x = values(B, 4).float().expand(T, B, 4).requires_grad_()
        sc.hoist(nn.Linear(4, 2))(x).sum().backward()
        assert x.grad.shape == x.shape


class TestSteps:
    """Batches of training and inference steps, captured ones included."""

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested_tensors_are_left_alone(self):
        """They have no strides."""
        net, x = nn.Linear(4, 2), torch.nested.nested_tensor([torch.rand(2, 4), torch.rand(3, 4)])
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        sc.training_model(net, lambda y, _: y.to_padded_tensor(0.0).sum(), optimizer)(x, torch.zeros(1))
        assert sc.inference_model(net)(x).is_nested

    @pytest.mark.parametrize("options", [None, GRAPH], ids=["eager", "graph"])
    def test_a_batch_that_repeats_a_step_stays_one_through_a_training_step(self, options, monkeypatch):
        """Also in the buffers of a graph, which replays fill; the numbers are those of a batch written out."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
        weights = []
        for repeated in (True, False):
            torch.manual_seed(0)
            scale = Scale()
            net = nn.Sequential(TimeBatched(scale), nn.Linear(4, 2), sc.LIF())
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            step = sc.training_model(net, lambda y, _: y.mean(), optimizer, options=options)
            for i in range(6):
                x = values(B, 4, seed=i).float().expand(T, B, 4)
                step(x if repeated else x.clone(), torch.zeros(B))
                assert scale.seen == ((B, 4) if repeated else (T * B, 4))
            weights.append(list(net.parameters()))
        for one, other in zip(*weights):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("options", [None, GRAPH], ids=["eager", "graph"])
    def test_a_network_that_writes_into_its_repeated_input(self, options, monkeypatch):
        """Of a copy that was made for the network, it is refused; a tensor of the user's own is as torch has it."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))

        class Writes(nn.Linear):
            def forward(self, x):
                x[0] = 0
                return super().forward(x)

        net, x = Writes(4, 2), values(B, 4).float().expand(T, B, 4)
        step = sc.training_model(net, lambda y, _: y.sum(), torch.optim.SGD(net.parameters(), 0.1), options=options)
        weight = net.weight.detach().clone()
        if options is None:
            step(x, torch.zeros(B))
            return
        for call in (lambda: step(x, torch.zeros(B)), lambda: sc.inference_model(net, options=options)(x)):
            with pytest.raises(RuntimeError, match=r"writes into its input.*5, 3, 4.*x\.contiguous\(\)"):
                call()
        assert torch.equal(net.weight, weight)
        step(x.contiguous(), torch.zeros(B))

    @pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Flatten(0, 1)], ids=["written", "viewed"])
    def test_what_torch_refuses_of_a_repeated_input_names_the_way_out(self, first, monkeypatch):
        """A write in place into the input itself, and a view of it."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
        if isinstance(first, nn.Flatten):
            monkeypatch.setattr(first, "forward", lambda x: x.view(T * B, 4))
        net, x = nn.Sequential(first, nn.Linear(4, 2)), values(B, 4).float().expand(T, B, 4)
        step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), 0.1), options=GRAPH)
        with pytest.raises(RuntimeError, match=r"share one memory.*x\.reshape.*x\.contiguous\(\)"):
            step(x, torch.zeros(B))
        step(x.contiguous(), torch.zeros(B))

    def test_a_batch_that_was_made_in_inference_mode(self):
        """It has no count of the writes into it."""
        with torch.inference_mode():
            x = values(B, 2, 4, 4).float().expand(T, B, 2, 4, 4)
        net = sc.layers.TimeBatched(nn.Conv2d(2, 3, 3))
        options = sc.TrainingOptions(channels_last=True)
        step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), 0.1), options=options)
        assert step(x, torch.zeros(B))[0].shape == (T, B, 3, 2, 2)

    def test_kinds_of_tensors_that_repeat_in_a_graph(self, monkeypatch):
        """A parameter is a batch as any other; a batch with a derivative, too."""
        monkeypatch.setattr(graph_step, "Capture", Rerun)
        monkeypatch.setattr(facts, "gpu_of", lambda net: torch.device("cpu"))
        net, x = nn.Linear(4, 2), values(B, 4).float().expand(T, B, 4)
        step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), 0.0), options=GRAPH)
        for given in (x, nn.Parameter(x), x.detach().requires_grad_(), x):
            for _ in range(4):
                torch.testing.assert_close(step(given, torch.zeros(B))[0], net(x.clone()).detach())

    def test_what_repeats_is_moved_once(self):
        """To another device, in the same form; what has a derivative as torch moves it."""
        x, cpu = torch.rand(B, 4, 1), torch.device("cpu")
        for given in (x.expand(T, B, 4, 6), x, x[:, :2], x.expand(B, 4, 1), torch.rand(1).expand(0, 1)):
            found = inputs_on(given, torch.device("meta"))
            assert found.shape == given.shape
            assert inputs_on(given, cpu) is given
            copied = inputs_on(given, cpu, copy=True)
            assert torch.equal(copied, given)
            assert not copied.numel() or copied.data_ptr() != given.data_ptr()
            for size, stride, other in zip(given.shape, given.stride(), found.stride()):
                assert size < 2 or (stride == 0) == (other == 0)
        sparse = torch.eye(3).to_sparse()
        assert inputs_on(sparse, cpu) is sparse
        leaf = torch.rand(3).expand(4, 3).requires_grad_()
        (inputs_on(leaf, cpu, copy=True) * torch.arange(4.0)[:, None]).sum().backward()
        assert torch.equal(leaf.grad[:, 0], torch.arange(4.0))
