"""Neurons as modules: calls from rest, run, the repr, and torch's machinery: threads, torch.func, compile, copies."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from shell_nets import Block, grads, network, neurons, values
from spikecore._base.context import is_compiling
from spikecore._base.versions import COMPILES
from spikecore.backend import UnknownBackend

T, B, C = 10, 3, 4


class TestMultiStep:
    """A call on a sequence."""

    def test_every_call_starts_at_rest(self):
        """The same input gives the same output, however often and whatever came between."""
        net, x = Block(), values(T, B, C)
        first = net(x)
        net(values(T + 3, B + 1, C, seed=1))
        assert torch.equal(net(x), first)
        assert all(neuron.state is None for neuron in neurons(net))

    def test_keeps_no_graph_alive(self):
        """After a call, dropping its output frees the graph; carried state holds it to the end of the block."""
        net = network()

        def call():
            x = values(T, B, C).requires_grad_()
            net(x)
            gc.collect()
            return weakref.ref(x)

        assert call()() is None
        with sc.carry_state(net):
            held = call()
            assert held() is not None
        gc.collect()
        assert held() is None


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

    def test_repr_shows_choice_and_bound_backend(self):
        """Before a call the choice; after it also the backend that was bound, per device."""
        assert repr(sc.LIF(backend="torch")).endswith("backend=torch)")
        lif = sc.LIF()
        assert lif.extra_repr().endswith(", backend=auto")
        lif = sc.LIF(backend="torch")
        lif(self.x)
        lif(self.x.to("meta"))
        assert lif.extra_repr().endswith(", backend=torch (torch on cpu, torch on meta)")

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


class TestTogetherWithTorch:
    """What PyTorch does around modules."""

    def test_checkpoint(self):
        """Under torch.utils.checkpoint gradients are the same."""
        net, x = network(), values(T, B, C).requires_grad_()
        found = torch.autograd.grad(checkpoint(net, x, use_reentrant=False).sum(), [x, *net.parameters()])
        torch.testing.assert_close(found, grads(net, x), rtol=0, atol=0)

    def test_threads(self):
        """One neuron called from many threads at once, the first time for all of them, gives each its own result."""
        lif = sc.LIF(1.7)
        xs = [values(T + i % 3, B, seed=i).requires_grad_() for i in range(12)]
        expected = [torch.autograd.grad(sc.LIF(1.7)(x).sum(), x)[0] for x in xs]
        found, barrier = [None] * len(xs), threading.Barrier(len(xs))

        def work(i):
            barrier.wait()
            found[i] = torch.autograd.grad(lif(xs[i]).sum(), xs[i])[0]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    def test_functional_transforms(self):
        """torch.func: grad equals backward, vmap over the batch equals the batch, both together too."""
        lif, x = sc.LIF(1.7), values(T, B, C)

        def loss(x):
            return (lif(x) * torch.arange(T).view(T, *[1] * (x.ndim - 1))).sum()

        wanted = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(wanted), wanted)
        assert torch.equal(torch.func.vmap(lif, in_dims=1, out_dims=1)(x), lif(x))
        torch.testing.assert_close(torch.func.grad(loss)(x), expected)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss), in_dims=1, out_dims=1)(x), expected)

    # torch.compile makes an object of every autograd.Function it meets, of which torch itself warns

    @pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
    @pytest.mark.skipif(TORCH < (2, 6), reason="older versions of Dynamo cannot look through a neuron in one graph")
    def test_compile_cold(self):
        """A net that was never called compiles in one graph; a later change of a neuron's definition is seen."""
        net, x = nn.Sequential(sc.LIF(1.7, learn=("tau",))), values(3, B, dtype=torch.float32)
        torch._dynamo.reset()
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        found = torch.autograd.grad(compiled(x).sum(), net.parameters())
        torch.testing.assert_close(found, torch.autograd.grad(net(x).sum(), net.parameters()))
        net[0].reset = "soft"
        assert torch.equal(compiled(x), net(x))
        assert not torch.equal(net(x), sc.LIF(1.7)(x))


class Choosing(sc.Neuron):
    """Uses one of two parameters, so that two of a kind have different programs."""

    states = {"v": 0.0}
    params = {"a": 1.0, "b": 10.0}

    def __init__(self, which, **options):
        super().__init__(**options)
        self.which = which

    def dynamics(self, x, s, p):
        v = x * (p.a if self.which == "a" else p.b)
        return v, {"v": v}


class TestDerived:
    """What is derived from a definition belongs to it and to nothing else."""

    @pytest.mark.skipif(TORCH < (2, 6), reason="older versions of Dynamo cannot look through a neuron in one graph")
    def test_compiled_neurons_do_not_mix(self):
        """Two neurons of one class, each compiled by itself, read each its own parameter."""
        torch._dynamo.reset()
        x = torch.rand(3, 4)
        for which, factor in (("a", 1.0), ("b", 10.0)):
            neuron = Choosing(which)
            neuron(x)
            assert torch.equal(torch.compile(neuron, backend="eager", fullgraph=True)(x), x * factor)

    def test_a_parametrized_neuron_with_state_is_copied(self):
        """The copy has the values of a single-step state without its graph, and the original keeps its own."""
        lif, x = sc.LIF(learn=("tau",), step="single", threshold=0.4), values(3, B, C).requires_grad_()
        torch.nn.utils.parametrize.register_parametrization(lif, "tau", nn.Softplus())
        lif(x[0])
        made = copy.deepcopy(nn.Sequential(lif))[0]
        assert not made.state["v"].requires_grad
        assert lif.state["v"].requires_grad
        assert made.parametrizations.tau.original is not lif.parametrizations.tau.original
        for x_t in x[1:]:
            assert torch.equal(made(x_t), lif(x_t))
        with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
            pickle.dumps(lif)


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


def test_jit_script():
    """torch.jit.script of a network with a neuron names what works instead."""
    with pytest.raises(
        sc.BackendError, match="torch.jit.script cannot compile a (LIF|Recurrent).*use torch.compile or"
    ):
        torch.jit.script(nn.Sequential(nn.Linear(3, 2), sc.LIF()))


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
