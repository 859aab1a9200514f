"""A tensor that repeats one step over time is a tensor as any other: derivatives, changes, copies."""

from __future__ import annotations

import copy
import io
import pickle
import weakref

import pytest
import torch
from torch import nn

import spikecore as sc
from kernel_loop import Loop, bound
from spikecore._shell.repeated import repeat, step_of
from spikecore.layers import TimeBatched

T, B = 5, 3


class TestRepeatedTensor:
    """The encoder's output is a tensor as any other."""

    def test_a_derivative_of_the_steps_themselves_is_right(self):
        """A leaf, a hook and retain_grad ask for the gradient of every step, and get it."""
        net = nn.Sequential(TimeBatched(nn.Linear(7, 5)), sc.LIF())
        x, cotangent = torch.rand(B, 7) * 4, torch.rand(T, B, 5)

        def expected():
            steps = x.expand(T, B, 7).clone().requires_grad_()
            (net(steps) * cotangent).sum().backward()
            return steps.grad

        leaf = sc.encode.Constant(T)(x).requires_grad_()
        (net(leaf) * cotangent).sum().backward()
        torch.testing.assert_close(leaf.grad, expected())
        kept = sc.encode.Constant(T)(x.clone().requires_grad_())
        kept.retain_grad()
        (net(kept) * cotangent).sum().backward()
        torch.testing.assert_close(kept.grad, expected())
        hooked, seen = sc.encode.Constant(T)(x.clone().requires_grad_()), []
        hooked.register_hook(seen.append)
        (net(hooked) * cotangent).sum().backward()
        torch.testing.assert_close(seen[0], expected())

    @pytest.mark.parametrize("late", ["hook", "several", "retain"])
    @pytest.mark.parametrize("layer", ["layer", "neuron", "norm"])
    def test_a_hook_that_comes_too_late_raises(self, layer, late):
        """Where one step was computed there is no gradient of every step: a hook would not be called."""
        behind = {
            "layer": lambda: TimeBatched(nn.Linear(5, 4)),
            "neuron": lambda: bound(sc.LIF(), Loop()),
            "norm": lambda: sc.layers.NormNeuron(nn.BatchNorm1d(5), sc.LIF(backend="torch")),
        }[layer]()
        watch = {
            "hook": lambda z: z.register_hook(lambda gradient: gradient * 0),
            "several": lambda z: torch.autograd.graph.register_multi_grad_hook((z,), lambda gradients: None),
            "retain": lambda z: z.retain_grad(),
        }[late]
        first = TimeBatched(nn.Linear(7, 5))
        z = first(sc.encode.Constant(T)(torch.rand(B, 7)))
        out = behind(z).sum()
        watch(z)
        with pytest.raises(RuntimeError, match=r"shape \[5, 3, 5\] after a layer had read it.* 5 times.*clone\(\)"):
            out.backward()
        # before it is read, or of a copy, every step is computed
        copied = first(sc.encode.Constant(T)(torch.rand(B, 7))).clone()
        out = behind(copied).sum()
        watch(copied)
        out.backward()

    @pytest.mark.parametrize("shape", [(1, 4, 6, 6), (2, 1, 6, 6), (1, 1, 6, 6)], ids=str)
    def test_the_step_that_is_read_lies_as_it_lay(self, shape):
        """Dimensions of size 1 keep their strides: torch's batch normalisation counts on them in evaluation mode."""
        step = torch.rand(shape).to(memory_format=torch.channels_last).requires_grad_() * 1
        assert step_of(repeat(step, T)).stride() == step.stride()
        torch.manual_seed(0)
        first, norm = TimeBatched(nn.Conv2d(shape[1], 4, 3)), TimeBatched(nn.BatchNorm2d(4)).eval()
        for layer in (norm, sc.layers.NormNeuron(copy.deepcopy(norm.module), bound(sc.LIF(), Loop())).eval()):
            found = []
            for read in (lambda z: z, torch.clone):
                first.zero_grad()
                x = torch.rand(shape, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
                z = layer(read(first(sc.encode.Constant(T)(x))))
                (z * torch.linspace(-1, 2, z.numel()).view(z.shape)).sum().backward()
                found.append([parameter.grad.clone() for parameter in first.parameters()])
            for once, every in zip(*found):
                torch.testing.assert_close(once, every, rtol=1e-4, atol=1e-4)

    def test_a_kept_loss_keeps_no_activation(self):
        """A program that collects losses after their backward passes holds no tensor of the network with them."""
        first, second = TimeBatched(nn.Linear(7, 5)), TimeBatched(nn.Linear(5, 4))
        z = first(sc.encode.Constant(T)(torch.rand(B, 7)))
        loss = second(z).sum()
        loss.backward()
        dropped = weakref.ref(z)
        del z
        assert dropped() is None
        assert loss.grad_fn is not None

    def test_no_gradient_flows_past_no_grad_and_detach(self):
        """Encoded or computed without a graph: the input gets none."""
        x = torch.rand(B, 7, requires_grad=True)
        layer = TimeBatched(nn.Linear(7, 5))
        with torch.no_grad():
            encoded = sc.encode.Constant(T)(x)
        layer(encoded).sum().backward()
        assert x.grad is None
        with torch.no_grad():
            assert not layer(sc.encode.Constant(T)(x)).requires_grad

    def test_changed_data_counts(self):
        """The tensor's data replaced, its memory written to, and one written to before the layers."""
        layer = TimeBatched(nn.Linear(7, 5))
        x = torch.rand(B, 7)
        steps = sc.encode.Constant(T)(x)
        steps.data = torch.rand(T, B, 7)
        torch.testing.assert_close(layer(steps), layer(steps.clone()))
        steps = sc.encode.Constant(T)(x)
        x.mul_(2)
        torch.testing.assert_close(layer(steps), layer(steps.clone()))

    def test_saved_and_copied_tensors_are_right(self):
        """torch.save, deepcopy and pickle of what the encoder gives."""
        steps = sc.encode.Constant(T)(torch.rand(B, 7))
        file = io.BytesIO()
        torch.save(steps, file)
        file.seek(0)
        layer = TimeBatched(nn.Linear(7, 5))
        for other in (torch.load(file), copy.deepcopy(steps), pickle.loads(pickle.dumps(steps))):
            assert torch.equal(other, steps)
            torch.testing.assert_close(layer(other), layer(steps))
