"""The life of a wrapped model, and its outputs (E7)."""

from __future__ import annotations

import collections
import copy
import gc
import io
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import refusals
from emulated_nets import Apply, Host, Net, T, X, trainer
from poptorch_emulator.arguments import tree_map

NO_EXECUTABLE = "Model has not been compiled or has been destroyed."
Pair = collections.namedtuple("Pair", "a b")


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

    def test_attributes(self):
        """Attributes that the executor lacks are the module's."""
        net = Net()
        executor = trainer(net)
        assert executor.a is net.a
        assert executor.model is net
        assert executor.eval() is net
        with pytest.raises(AttributeError):
            _ = executor.nothing
        with pytest.raises(poptorch.Error, match="not modelled by the emulator"):
            executor.getPerfCounters()

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


class TestOutputs:
    """E7."""

    def test_structure(self):
        """The structure is that which forward returned, with Python values as they were."""

        def function(x):
            return Pair(x + 1, [x, (None, "text", 5)]), collections.OrderedDict(a={"b": x * 2}, c=tuple(x.shape))

        got = poptorch.inferenceModel(Apply(function))(X)
        expected = function(X)
        assert tree_map(type, got) == tree_map(type, expected)
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
            import popart
            import poptorch as installed
            from poptorch.optim import SGD

            with pytest.raises(poptorch.Error, match=r"popart\.Builder is not modelled by the emulator"):
                _ = popart.Builder
            assert installed is poptorch
            assert SGD is poptorch.optim.SGD
            poptorch.install()
        finally:
            for name in set(sys.modules) - before:
                if name.split(".")[0] in ("popart", "poptorch"):
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
        with pytest.raises(poptorch.Error, match=r"poptorch\.Phase is not modelled by the emulator"):
            _ = poptorch.Phase
        with pytest.raises(AttributeError):
            _ = poptorch.anchorMode


def test_the_readme():
    """The program that the README shows runs as shown."""
    readme = Path(__file__).parents[1] / "README.md"
    program = "\n".join(re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL))
    exec(compile(program, "README.md", "exec"), {})


test_refused = refusals.table(__file__, globals())
