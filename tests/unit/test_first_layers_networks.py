"""Whole networks whose first layers are computed once: values, gradients, checkpoints, compilation, threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikecore as sc
from first_layers import COMPILED, B, T, check_same, gradients, pair, same_weights, values
from spikecore.layers import TimeBatched, per_sample

_weights = pytest.fixture(autouse=True)(same_weights)


class TestWholeNetworks:
    """Networks with neurons."""

    @pytest.mark.parametrize("training", [True, False])
    def test_spikes_are_bit_equal_and_gradients_are_the_same(self, training):
        """784-1000-10 in small, and a convolutional network, in float32."""
        first = TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        fully = [nn.Linear(16, 12), sc.LIF(threshold=0.2), nn.Linear(12, 4), sc.LIF(threshold=0.01)]
        conv = [first, sc.LIF(threshold=0.2), TimeBatched(nn.Flatten(), nn.Linear(16, 4)), sc.LIF(threshold=0.01)]
        for modules, shape in ((fully, (B, 16)), (conv, (B, 1, 4, 4))):
            once, every = pair(*modules)
            once, every = sc.hoist(once).float().train(training), every.float().train(training)
            x = values(*shape).float() * 2
            (a, grads), (b, others) = (gradients(net, x, torch.ones(T, B, 4)) for net in (once, every))
            assert a.any()
            assert torch.equal(a, b)
            for grad, other in zip(grads, others):
                torch.testing.assert_close(grad, other, rtol=2e-6, atol=2e-6)

    def test_a_fused_normalisation_is_computed_once(self):
        """sc.fuse: the neuron normalises one step."""
        modules = [TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), sc.LIF()]
        once, every = pair(*modules)
        sc.fuse(once), sc.fuse(every)
        seen = []
        once[2].register_forward_pre_hook(lambda module, args: seen.append(args[0].stride(0)))
        check_same(once, every, values(B, 1, 4, 4))
        assert set(seen) == {0}

    def test_gradients_agree_with_finite_differences(self):
        """In float64, through an encoder, a linear layer, batch normalisation and a smooth neuron without spikes."""
        net = nn.Sequential(sc.encode.Constant(T), TimeBatched(nn.Linear(4, 3), nn.BatchNorm1d(3)), sc.LI(tau=2.0))
        assert torch.autograd.gradcheck(net.double(), values(B, 4).requires_grad_())

    def test_a_loop_over_steps_gets_every_step(self):
        """Single-step networks take the steps of an encoder one by one."""
        net = sc.hoist(nn.Sequential(nn.Linear(7, 5), sc.LIF(step="single")))
        x = torch.rand(B, 7) * 3
        steps = torch.stack([net(x_t) for x_t in sc.encode.Constant(T)(x)])
        multi = nn.Sequential(sc.encode.Constant(T), net[0], sc.LIF())
        assert torch.equal(steps, multi(x))

    @pytest.mark.parametrize("reentrant", [False, True])
    @pytest.mark.parametrize("backend", ["torch", "numba"])
    def test_checkpointed_regions_give_the_same(self, reentrant, backend):
        """A region that begins before, at, or behind the repeated input is computed again as it was first."""
        if backend == "numba":
            pytest.importorskip("spikecore_numba", reason="needs the plugin spikecore-numba")
        make = [
            sc.encode.Constant(T),
            TimeBatched(nn.Conv2d(1, 4, 3)),
            sc.LIF(backend=backend),
            TimeBatched(nn.Flatten()),
        ]
        net = sc.hoist(nn.Sequential(*make))
        x = values(B, 1, 4, 4).float().requires_grad_()
        expected = torch.autograd.grad(net(x).sum(), [x, *net.parameters()])
        for begin in range(3):
            inner = net[begin:]
            out = checkpoint(inner, net[:begin](x), use_reentrant=reentrant)
            x.grad = None
            net.zero_grad()
            out.sum().backward()
            for grad, other in zip([x.grad, *(p.grad for p in net.parameters())], expected):
                torch.testing.assert_close(grad, other, rtol=1e-5, atol=1e-6)

    @pytest.mark.skipif(torch.__version__ < "2.6", reason="checkpoint_contexts needs torch 2.6")
    def test_a_checkpointed_region_computes_every_step_both_times(self):
        """What it is given when it runs again may have lost that it repeats, and it must save the same tensors."""
        seen = []
        layer = per_sample(type("Seeing", (nn.Module,), {"forward": lambda self, x: seen.append(len(x)) or x * x})())
        x = torch.rand(B, 7, requires_grad=True)
        net = TimeBatched(layer)
        again = {"use_reentrant": False, "context_fn": sc.parallel.checkpoint_contexts(net)}
        checkpoint(net, sc.encode.Constant(T)(x * 1), **again).sum().backward()
        assert seen == [T * B, T * B]

    def test_sc_checkpoint_gives_the_same(self):
        """Groups of layers, the first of which begins with the encoder."""
        modules = [
            TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
            sc.LIF(),
            TimeBatched(nn.Flatten(), nn.Linear(16, 4)),
        ]
        once, every = pair(*modules)
        once = sc.checkpoint(once, every=2)
        check_same(once, every, values(B, 1, 4, 4))

    @COMPILED
    @pytest.mark.parametrize("training", [True, False])
    def test_a_compiled_network_computes_once(self, training):
        """One graph, whose convolution and linear layer get B samples; values and gradients are the same."""
        modules = [TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), TimeBatched(nn.Flatten())]
        once, every = pair(*modules, nn.Linear(16, 4), sc.LI(tau=2.0))
        once, every = sc.hoist(once).train(training), every.train(training)
        batches = []

        def compiler(graph, inputs):
            layers = [
                node for node in graph.graph.nodes if getattr(node.target, "__name__", "") in ("conv2d", "linear")
            ]
            batches.extend(node.meta["example_value"].shape[0] for node in layers)
            return graph.forward

        compiled = torch.compile(once, backend=compiler, fullgraph=True)
        x, cotangent = values(B, 1, 4, 4), values(T, B, 4, seed=1)
        found, expected = compiled(x), every(x)
        torch.testing.assert_close(found, expected)
        grads = torch.autograd.grad(found, list(once.parameters()), cotangent)
        for grad, other in zip(grads, torch.autograd.grad(expected, list(every.parameters()), cotangent)):
            torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-9)
        for buffer, other in zip(once.buffers(), every.buffers()):
            torch.testing.assert_close(buffer, other)
        assert batches == [B, B]

    def test_threads_share_a_network(self):
        """Hooks keep nothing between the two halves of a call."""
        net = sc.hoist(nn.Sequential(sc.encode.Constant(T), nn.Linear(7, 5)))
        x, found = torch.rand(B, 7), []
        expected = net(x)
        work = [threading.Thread(target=lambda: found.append(net(x))) for _ in range(4)]
        [thread.start() for thread in work], [thread.join() for thread in work]
        assert all(torch.equal(one, expected) for one in found)
        assert len(found) == 4
