"""What a user tries first and the project has not says what to write instead."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._base.versions import COMPILES
from spikecore.lang._plain import is_compiling


def traced(how):
    """Trace a neuron that outputs what a function makes of its input, states and parameters."""

    class Wrong(sc.Neuron):
        states = {"v": 0.0}
        params = {"tau": 2.0}

        def dynamics(self, x, s, p):
            return how(x, s, p), {"v": x}

    return Wrong().program


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda x, s, p: s["v"], r"states of Wrong are attributes in Wrong.dynamics: write s.v, not \['v'\]"),
        (lambda x, s, p: s[0], r"write s.v, not \[0\]"),
        (lambda x, s, p: p["tau"], r"parameters of Wrong are attributes .*: write p.tau, not \['tau'\]"),
        (
            lambda x, s, p: x.detach(),
            r"the method .detach is not part of the language.*; write sc.ops.detach\(x\)$",
        ),
        (lambda x, s, p: x.exp(), r"; write sc.ops.exp\(x\)$"),
        (lambda x, s, p: x.exp_(), r"; write sc.ops.exp\(x\)$"),
        (lambda x, s, p: x.clamp(0.0, 1.0), r"; write sc.ops.clamp\(x, low, high\)$"),
        (lambda x, s, p: x.clamp_min(0.0), r"; write sc.ops.maximum\(x, low\)$"),
        (lambda x, s, p: x.pow(2), r"; write sc.ops.power\(x, n\)$"),
        (lambda x, s, p: x.relu(), r"; write sc.ops.relu\(x\)$"),
        (lambda x, s, p: x.add_(1.0), r"; write x \+ y$"),
        *(
            (
                how,
                r"the method .(float|to|int) .*; for a spike write self.spike\(v - 1\) in place of v > 1; sc.ops.where",
            )
            for how in (lambda x, s, p: (x > 1).float(), lambda x, s, p: (x > 1).to(x), lambda x, s, p: (x > 1).int())
        ),
        (lambda x, s, p: x.float(), r"; leave .float\(...\) out: traced values have the dtype of the inputs$"),
        (lambda x, s, p: x.to(torch.half), r"; leave .to\(...\) out: traced values have the dtype of the inputs$"),
        (
            lambda x, s, p: x.lgamma(),
            r"the method .lgamma is not part of the language in Wrong.dynamics; see sc.ops for what there is",
        ),
    ],
)
def test_methods_and_subscripts_of_traced_values(how, text):
    """A method of tensors names the function or operator, a subscript the attribute."""
    with pytest.raises(sc.TraceError, match=text):
        traced(how)


@pytest.mark.parametrize("loss", ["ce_count", "ce_rate", "ce_max_membrane", "mse_count", "mse_membrane"])
@pytest.mark.parametrize(("target", "shown"), [(-100, "-100"), (4, "4")])
def test_a_target_that_is_no_class(loss, target, shown):
    """The text says which classes there are, and how samples are left out."""
    loss = getattr(sc.losses, loss)
    outputs, targets = torch.rand(3, 2, 4), torch.tensor([1, target])
    text = rf"targets has {shown}, out of range: the classes are 0 to 3; ignore_index={shown} leaves samples with this"
    with pytest.raises(IndexError, match=text):
        loss(outputs, targets)
    assert torch.isfinite(loss(outputs, targets, ignore_index=target))


def test_a_generator_inside_torch_compile():
    """A compiled encoder that draws from a generator says so, without compiling one says nothing."""
    pytest.importorskip("torch._dynamo", reason="this torch has no compiler")
    if not COMPILES:
        pytest.skip("torch cannot say here that it compiles")
    torch._dynamo.reset()
    net = nn.Sequential(sc.encode.Poisson(2, generator=torch.Generator().manual_seed(0)), nn.Linear(3, 2))
    x = torch.rand(2, 3)
    assert not is_compiling()
    assert net(x).shape == (2, 2, 2)
    with pytest.raises(
        Exception,
        match="a compiled or exported graph cannot draw from a torch.Generator: leave generator= out and seed",
    ):
        torch.compile(net, fullgraph=True, backend="eager")(x)


@pytest.mark.parametrize("make", [sc.LIF, lambda: sc.Recurrent(sc.LIF(), nn.Linear(2, 2))])
def test_jit_script(make):
    """torch.jit.script of a network with a neuron names what works instead."""
    with pytest.raises(
        sc.BackendError, match="torch.jit.script cannot compile a (LIF|Recurrent).*use torch.compile or"
    ):
        torch.jit.script(nn.Sequential(nn.Linear(3, 2), make()))


@pytest.mark.parametrize("step", ["multi", "single"])
def test_fx(step):
    """torch.fx.symbolic_trace of a network with a neuron says how it keeps neurons whole, and so it does."""
    net = nn.Sequential(nn.Linear(3, 2), sc.LIF(step=step))
    with pytest.raises(TypeError, match="LIF: torch.fx.symbolic_trace cannot look through a neuron.*is_leaf_module"):
        torch.fx.symbolic_trace(net)

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, sc.Neuron) or super().is_leaf_module(module, name)

    x = torch.rand(4, 3)
    graph = torch.fx.GraphModule(net, Tracer().trace(net))
    sc.reset(net)
    found = graph(x)
    sc.reset(net)
    assert torch.equal(found, net(x))
