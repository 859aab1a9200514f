"""The life of a wrapped model, its weights, its buffers (E6) and its outputs (E7)."""

from __future__ import annotations

import collections
import copy
import gc
import io
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spikecore.structure import mapped
from spikecore_ipu import emulator as poptorch

NO_EXECUTABLE = "Model has not been compiled or has been destroyed."
Pair = collections.namedtuple("Pair", "a b")


class Net(nn.Module):
    """A small network that returns its outputs and its loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 5)
        self.b = nn.Linear(5, 3)

    def forward(self, x, t=None):
        y = self.b(F.relu(self.a(x)))
        return y if t is None else (y, F.cross_entropy(y, t))


class Apply(nn.Module):
    """A function of a tensor as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
T = torch.tensor([0, 1, 2, 0, 1, 2])


def trainer(net, options=None, lr=0.1):
    return poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=lr))


class Host:
    """What the host has of the weights, read past the wrapper, which would look at the device first."""

    def __init__(self, net):
        self.parameters = list(net.parameters())

    def __call__(self):
        with torch._C.DisableTorchFunctionSubclass():
            return [parameter.detach().clone() for parameter in self.parameters]


class TestWrapping:
    def test_twice(self):
        """A module is wrapped for training once."""
        net = Net()
        executor = trainer(net)
        for wrapped in (net, executor):
            with pytest.raises(RuntimeError, match=r"Model has already been wrapped in 'poptorch.trainingModel'"):
                trainer(net) if wrapped is net else poptorch.trainingModel(wrapped)
        executor(X, T)
        executor.destroy()
        trainer(net)(X, T)

    def test_after_its_wrapper_is_gone(self):
        """A wrapper that nobody holds is in nobody's way."""
        net = Net()
        executor = trainer(net)
        del executor
        gc.collect()
        trainer(net)(X, T)

    def test_classes(self):
        """The module, its parameters and buffers get classes of their own, and destroy() gives back the old."""
        net = Net()
        net.register_buffer("mean", torch.zeros(3))
        executor = trainer(net)
        assert type(net).__name__ == "PoptorchNet"
        assert isinstance(net, Net)
        assert type(net.a.weight).__name__ == "PoptorchParameter"
        assert type(net.mean).__name__ == "PoptorchBuffer"
        executor(X, T)
        executor.destroy()
        assert [type(net), type(net.a.weight), type(net.mean)] == [Net, nn.Parameter, torch.Tensor]

    def test_buffers_of_other_classes(self):
        net = Net()
        net.register_buffer("odd", nn.Parameter(torch.zeros(3)))
        with pytest.raises(poptorch.Error, match=r"All buffers must be an instance of torch\.Tensor \(Got <class"):
            trainer(net)

    def test_copies(self):
        """Copies to keep are plain modules with the weights that were trained; a shallow one stays wrapped."""
        net = Net()
        net.register_buffer("mean", torch.zeros(3))
        executor = trainer(net)
        executor(X, T)
        stored = io.BytesIO()
        torch.save(net.state_dict(), stored)
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert [type(other), type(other.a.weight), type(other.mean)] == [Net, nn.Parameter, torch.Tensor]
            assert torch.equal(other.a.weight, net.a.weight)
            assert other.a.weight.data_ptr() != net.a.weight.data_ptr()
        assert type(copy.copy(net)) is type(net)
        assert {type(value) for value in net.state_dict().values()} == {torch.Tensor}

    def test_shallow_copy(self):
        """Plain attributes of the module and the wrapper part at wrapping; submodules are shared."""
        net = Net()
        executor = poptorch.inferenceModel(net)
        net.eval()
        seen = []
        net.a.register_forward_hook(lambda module, *_: seen.append(module.training))
        executor(X)
        assert seen == [False]
        assert executor._model.training

    def test_attributes(self):
        """What the executor has not, the module has."""
        net = Net()
        executor = trainer(net)
        assert executor.a is net.a
        assert executor.model is net
        assert executor.eval() is net
        with pytest.raises(AttributeError):
            _ = executor.nothing
        with pytest.raises(poptorch.Error, match="not modelled by the emulator"):
            executor.getPerfCounters()

    def test_options(self):
        """Options are checked and frozen; accumulation is for training."""
        with pytest.raises(
            poptorch.Error, match=r"Invalid type: 'options' is of type .*dict.* \(Expected poptorch.Options"
        ):
            poptorch.inferenceModel(Net(), {})
        options = poptorch.Options()
        poptorch.inferenceModel(Net(), options)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.deviceIterations(2)
        options = poptorch.Options()
        options.Training.gradientAccumulation(2)
        with pytest.raises(
            poptorch.Error, match=r"You must set poptorch.Options\(\).Training.gradientAccumulation to 1"
        ):
            poptorch.inferenceModel(Net(), options)

    @pytest.mark.usefixtures("several_devices")
    def test_default_optimizer(self):
        """Without an optimiser, SGD at a rate of 0.01."""
        net, other = Net(), Net()
        executors = [poptorch.trainingModel(net), trainer(other, lr=0.01)]
        for executor in executors:
            executor(X, T)
        assert torch.equal(net.a.weight, other.a.weight)
        assert not torch.equal(net.a.weight, Net().a.weight)


class TestLife:
    def test_not_compiled(self):
        """Weights are copied when there is an executable."""
        executor = trainer(Net())
        assert not executor.isCompiled()
        for method in (executor.copyWeightsToHost, executor.copyWeightsToDevice, executor.attachToDevice):
            with pytest.raises(poptorch.Error, match=NO_EXECUTABLE):
                method()

    def test_compile(self, caplog):
        """Compilation runs nothing; a second one is ignored, with a warning."""
        net = Net()
        values = Host(net)
        before = values()
        executor = trainer(net)
        executor.compile(X, T)
        executor.compile(X, T)
        assert "Call to compile() ignored: the executable is already compiled" in caplog.text
        assert executor.isCompiled()
        assert all(torch.equal(a, b) for a, b in zip(values(), before))

    def test_destroy(self):
        """destroy() reads the weights; before compilation it does nothing, so that the module stays wrapped."""
        net = Net()
        values = Host(net)
        executor = trainer(net)
        executor.destroy()
        assert type(net) is not Net
        executor(X, T)
        stale = values()
        executor.destroy()
        assert not torch.equal(values()[0], stale[0])
        with pytest.raises(poptorch.Error, match=NO_EXECUTABLE):
            executor.copyWeightsToHost()

    def test_failed_compilation(self):
        """After an error in forward the module has its weights, and can be trained."""
        net = Net()
        executor = trainer(net)
        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            executor(X[:, :3], T)
        assert not executor.isCompiled()
        assert net.a.weight.device.type == "cpu"
        executor(X, T)

    def test_offline(self):
        """Without a device a model is compiled, not run."""
        executor = poptorch.inferenceModel(Net(), poptorch.Options().connectionType(poptorch.ConnectionType.Never))
        executor.compile(X)
        with pytest.raises(
            AssertionError, match=r"Trying to run a model on an offline device \(ConnectionType.Never\)"
        ):
            executor(X)

    def test_attach(self):
        """The device is held once; what was trained survives a break."""
        net = Net()
        values = Host(net)
        executor = trainer(net)
        executor(X, T)
        assert executor.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is already attached"):
            executor.attachToDevice()
        executor.detachFromDevice()
        with pytest.raises(poptorch.Error, match="Device is not attached"):
            executor.detachFromDevice()
        trained = values()
        executor.attachToDevice()
        executor.copyWeightsToHost()
        assert torch.equal(values()[0], trained[0])


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
            lambda net: net.state_dict(),
            lambda net: dict(net.named_parameters()),
            lambda net: list(net.buffers()),
            lambda net: net.a.weight + 0,
            lambda net: net.a.weight.sum(),
            lambda net: net.a.state_dict(),
            lambda net: torch.equal(net.a.weight, net.a.weight),
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

    def test_edit_that_is_lost(self):
        """An edit that is not copied is overwritten by what was trained."""
        net = Net()
        executor = trainer(net)
        executor(X, T)
        with torch.no_grad():
            net.b.bias.fill_(100)
        executor(X, T)
        assert net.b.bias.max() < 50

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


def _no_grad(model):
    with torch.no_grad():
        model.y[0] += 1


def _reassign(model):
    model.y = model.y + 1


def _remove(model):
    del model.y


def _parameter(model):
    model.w = None


class TestBuffers:
    """E6."""

    @pytest.mark.parametrize("change", [_add, _copy, _no_grad])
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
                _reassign,
                "Buffer y is reassigned within the model when calling the forward method. This is not supported. "
                "Consider using self.y.copy_(src) to copy data from a source tensor, where src is the name of the "
                "source tensor.",
            ),
            (_parameter, "Parameter w is reassigned within the model when calling the forward method."),
        ],
    )
    def test_reassigned(self, change, text):
        """Another tensor in the place of a buffer or parameter is an error."""
        model = Counting(change)
        if change is _parameter:
            model.forward = lambda x: (_parameter(model), x)[1]
        with pytest.raises(poptorch.Error) as caught:
            poptorch.inferenceModel(model)(torch.ones(1))
        assert text in str(caught.value)
        assert model.y.device.type == model.w.device.type == "cpu"

    def test_removed(self):
        class Removing(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("y", torch.zeros(1))

            def forward(self, x):
                x = x + self.y
                del self.y
                return x

        with pytest.raises(poptorch.Error, match="Buffer y is removed from the model when calling the forward method."):
            poptorch.inferenceModel(Removing())(torch.ones(1))

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_integers(self, dtype):
        """A buffer of integers is a constant."""
        model = Counting(_add, torch.zeros(1, dtype=dtype))
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


class TestOutputs:
    """E7."""

    def test_structure(self):
        """The structure is that which forward returned, with Python values as they were."""

        def function(x):
            return Pair(x + 1, [x, (None, "text", 5)]), collections.OrderedDict(a={"b": x * 2}, c=tuple(x.shape))

        got = poptorch.inferenceModel(Apply(function))(X)
        expected = function(X)
        assert mapped(type, got) == mapped(type, expected)
        assert torch.equal(got[0].b[0], X)
        assert torch.equal(got[1]["a"]["b"], X * 2)
        assert isinstance(got[0], Pair)
        assert got[0].b[1] == (None, "text", 5)
        assert poptorch.inferenceModel(Apply(lambda x: None))(X) is None

    @pytest.mark.usefixtures("several_devices")
    def test_fresh(self):
        """Outputs are new tensors of the host, of 32 bits, without gradients."""
        executor = poptorch.inferenceModel(Apply(lambda x: (x, x.long(), x.double(), x > 0)))
        first, second = executor(X), executor(X)
        assert [value.dtype for value in first] == [torch.float32, torch.int32, torch.float32, torch.bool]
        assert all(a.data_ptr() != b.data_ptr() for a, b in zip(first, second))
        assert first[0].data_ptr() != X.data_ptr()
        assert type(first[0]) is torch.Tensor
        assert poptorch.inferenceModel(Apply(lambda x: x))(X.long()).dtype == torch.int32

    def test_backward(self):
        """There is nothing to go backward from."""
        _, loss = trainer(Net())(X, T)
        with pytest.raises(
            poptorch.Error, match=r"backward\(\) cannot be called explicitly on outputs of a PopTorch model"
        ):
            loss.backward()

    def test_host_tensor(self):
        """A tensor of the host comes back as it was at compilation, with a warning."""
        calls = []

        def function(x):
            calls.append(1)
            return x, torch.full((2,), float(len(calls)), device="cpu")

        executor = poptorch.inferenceModel(Apply(function))
        with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
            executor(X)
        assert executor(X)[1].tolist() == [1, 1]

    def test_loops_in_training(self):
        """for_loop and cond are for inference (E9)."""

        def looped(x):
            return poptorch.for_loop(2, lambda y: y * 2, [x])[0]

        def chosen(x):
            return poptorch.cond(x[0, 0] > 0, lambda y: y, [x], lambda y: -y, [x])[0]

        for function, name in ((looped, "for_loop"), (chosen, "cond")):
            model = Apply(lambda x, function=function: poptorch.identity_loss(function(x), "sum"))
            model.weight = nn.Parameter(torch.ones(1))
            with pytest.raises(poptorch.Error, match=rf"poptorch\.{name}\(\) is only supported in inference\."):
                poptorch.trainingModel(model)(X)
            poptorch.inferenceModel(Apply(function))(X)


class TestInstall:
    def test_installed(self, monkeypatch):
        """After install(), import poptorch gives the emulator, and its parts are the same."""
        before = set(sys.modules)
        poptorch.install()
        try:
            import poptorch as installed
            from poptorch.optim import SGD

            assert installed is poptorch
            assert SGD is poptorch.optim.SGD
            poptorch.install()
        finally:
            for name in set(sys.modules) - before:
                if name.split(".")[0] == "poptorch":
                    del sys.modules[name]

    def test_refused(self, monkeypatch):
        """PopTorch itself is never replaced."""
        monkeypatch.setitem(sys.modules, "poptorch", object())
        with pytest.raises(RuntimeError, match="poptorch is installed"):
            poptorch.install()

    def test_surface(self):
        """The names of PopTorch are here, and the version it stands for."""
        assert poptorch.__version__ == "3.4.0"
        assert all(hasattr(poptorch, name) for name in poptorch.__all__)
        assert not poptorch.ipuHardwareIsAvailable()
        with pytest.raises(poptorch.Error, match=r"poptorch\.MultiConv is not modelled by the emulator"):
            _ = poptorch.MultiConv
        with pytest.raises(AttributeError):
            _ = poptorch.anchorMode
