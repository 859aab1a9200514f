"""Neurons as modules: run, the repr, and torch's machinery: compile, jit and fx."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo.testing
from torch import nn

import spikecore as sc
from shell_nets import Block, neurons, values
from spikecore.backend import UnknownBackend

T, B, C = 10, 3, 4


class TestRun:
    """The functional core."""

    def test_reads_and_writes_nothing(self):
        """It takes no notice of what the neuron carries, and leaves none."""
        x, single = values(T, B), sc.LIF(1.7, step="single")
        single(x[0])
        kept = single.state["v"].clone()
        out, _ = single.run(x)
        assert torch.equal(out, sc.LIF(1.7)(x))
        assert torch.equal(single.state["v"], kept)
        multi = sc.LIF(1.7)
        with sc.carry_state(multi):
            multi.run(x)
            assert multi.state is None


class TestConfiguration:
    """Attributes changed after use, and what a neuron says of itself."""

    x = values(T, B).requires_grad_()

    def test_repr_shows_parameters(self):
        """Numbers, learnt ones, tensors by shape, the reset, the surrogate, and what is not as usual."""
        text = repr(
            sc.LIF(2.5, threshold=torch.ones(4), learn=("tau",), reset="soft", detach_reset=True, step="single")
        )
        expected = "LIF(tau=2.5 (learnt), threshold=tensor[4], v_reset=0, reset='soft', decay_input=True, "
        assert text.startswith(expected + "surrogate=ATan(alpha=2.0), detach_reset=True, step='single', backend=")
        assert "reset_delay=False" in repr(sc.Leaky(0.9, reset_delay=False))

    def test_set_backend(self):
        """sc.set_backend asks in every neuron of the net, nested ones too; an unknown name is refused at once."""
        net = Block()
        net(self.x)
        sc.set_backend(net, "torch")
        assert [neuron.extra_repr().endswith("backend=torch from set_backend()") for neuron in neurons(net)] == [
            True
        ] * 3
        net(self.x)
        with pytest.raises(
            UnknownBackend, match=r"unknown backend 'troch' \(from set_backend\(\)\); did you mean 'torch'\?"
        ):
            sc.set_backend(net, "troch")
        assert all("backend=torch from set_backend() (torch on cpu)" in repr(neuron) for neuron in neurons(net))
        sc.set_backend(net, None)
        assert all(neuron.extra_repr().endswith("backend=auto") for neuron in neurons(net))


TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


#: What torch.compile is to make one graph of, on the reference; each may have transforms of its program.
IN_ONE_GRAPH = {
    "neuron": lambda: sc.LIF(1.7, learn=("tau",)),
    "repeat": lambda: sc.LIF(1.7, learn=("tau",), repeat=4),
    "normalised": lambda: sc.layers.NormNeuron(nn.BatchNorm1d(C), sc.LIF(1.7), fused=True),
    "normalised, repeat": lambda: sc.layers.NormNeuron(nn.BatchNorm1d(C), sc.LIF(1.7, repeat=4)),
    "recurrent": lambda: sc.Recurrent(sc.LIF(1.7), nn.Linear(C, C)),
    "recurrent, repeat": lambda: sc.Recurrent(sc.LIF(1.7), nn.Linear(C, C), repeat=4),
}


# torch.compile makes an object of every autograd.Function it meets, of which torch itself warns
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.skipif(TORCH < (2, 6), reason="older versions of Dynamo cannot look through a neuron in one graph")
@pytest.mark.parametrize("name", IN_ONE_GRAPH)
def test_compile_cold(name):
    """A net that was never called compiles in one graph; a later change of a neuron's definition is seen."""
    torch.manual_seed(0)
    net = nn.Sequential(IN_ONE_GRAPH[name]())
    sc.set_backend(net, "torch")
    plain = copy.deepcopy(net)
    x = values(*(() if "repeat" in name else (4,)), B, C, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    found = []
    for one, call in ((net, compiled), (plain, plain)):
        leaf = x.clone().requires_grad_()
        out = call(leaf)
        found.append([out, *torch.autograd.grad(out, [leaf, *one.parameters()], torch.cos(out.detach()))])
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(*found)
    for one in (net, plain):
        getattr(one[0], "neuron", one[0]).reset = "soft"
    assert torch.equal(compiled(x), plain(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        sc.LIF,
        lambda: sc.LIF(step="single", backend="torch"),
        lambda: sc.Recurrent(sc.LIF(), sc.Delay(nn.Linear(2, 2), 2)),
        lambda: sc.layers.NormNeuron(nn.BatchNorm1d(2), sc.LIF()),
    ],
)
def test_jit_trace(make):
    """torch.jit.trace of a network with a neuron is refused before it records."""
    net = nn.Sequential(nn.Linear(3, 2), make())
    with pytest.raises(sc.backend.Unsupported, match=r"^torch.jit.trace, .* cannot record .*torch.export.*export_c"):
        torch.jit.trace(net, torch.rand(4, 2, 3))


def test_fx():
    """torch.fx.symbolic_trace of a network with a neuron says how it keeps neurons whole, and so it does."""
    net = nn.Sequential(nn.Linear(3, 2), sc.LIF(step="multi"))
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
