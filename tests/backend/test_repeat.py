"""``repeat=T``: what the suite, whose calls have it as a factor, does not say of one step for all."""

from __future__ import annotations

import copy
import importlib.util
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.testing import installed
from spikecore_cupy.host import HostBackend, reason

#: Backends by name, and why one cannot be had here.
BACKENDS = {
    "torch": None,
    "numba": None if importlib.util.find_spec("spikecore_numba") else "spikecore-numba is not installed",
    "cupy_host": reason(),
}


class Unread(sc.Neuron):
    """Reads nothing of its input."""

    states = {"v": 0.0}
    params = {"rise": 0.3}

    def dynamics(self, x, s, p):
        """``h = v + rise``."""
        h = s.v + p.rise
        z = self.spike(h - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, h)}


@pytest.fixture(params=["torch", "numba", pytest.param("cupy_host", marks=pytest.mark.kernels)])
def backend(request):
    """A backend that works here."""
    if BACKENDS[request.param]:
        pytest.skip(BACKENDS[request.param])
    with installed(HostBackend, devices=("cpu",)) if request.param == "cupy_host" else nullcontext():
        yield request.param


def values(*shape, seed=0, dtype=torch.float32):
    """Values in [0, 2)."""
    return (2 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def test_a_neuron_that_reads_no_input(backend):
    """The program has no parameter in the place of its input."""
    neuron, step = Unread(backend=backend, learn=("rise",)), values(3, 8).requires_grad_()
    found = []
    for repeat, x in ((None, sc.encode.Constant(25)(step)), (25, step)):
        neuron.repeat = repeat
        out = neuron(x)
        of_step, of_rise = torch.autograd.grad(out.sum(), [step, neuron.rise], allow_unused=True)
        assert of_step is None or not of_step.any()
        found.append((out, of_rise))
    assert all(map(torch.equal, *found))


def test_the_gradient_lies_as_the_step_does(backend):
    """Channels-last steps, and their gradients; no copy."""
    if backend == "torch":
        pytest.skip("autograd adds the gradients, in the layout of its choice")
    neuron = sc.LIF(backend=backend, repeat=6)
    step = values(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    (other,) = torch.autograd.grad(sc.LIF(backend=backend)(sc.encode.Constant(6)(step)).sum(), step)
    for _ in range(2):  # the second call is a direct one
        out = neuron(step)
        assert out[0].is_contiguous(memory_format=torch.channels_last)
        (grad,) = torch.autograd.grad(out.sum(), step)
        assert grad.stride() == step.stride()
        torch.testing.assert_close(grad, other, rtol=1e-5, atol=1e-6)


def test_layers_in_front_compute_one_step(backend):
    """Outputs and gradients are those of all steps; the running variance is the unbiased one of B numbers, where it was
    that of T * B.
    """
    first, second = nn.Conv2d(3, 4, 3).double(), nn.BatchNorm2d(4, momentum=1.0).double()
    once = nn.Sequential(first, second, sc.LIF(backend=backend, repeat=5))
    every = nn.Sequential(
        sc.encode.Constant(5), sc.layers.TimeBatched(first, copy.deepcopy(second)), sc.LIF(backend=backend)
    )
    step = 3 * values(2, 3, 6, 6, dtype=torch.float64).requires_grad_()
    cotangent = values(5, 2, 4, 4, 4, seed=1, dtype=torch.float64)
    results = []
    for net in (once, every):
        out = net(step)
        results.append([out, *torch.autograd.grad(out, [step, *net.parameters()], cotangent)])
    for result, other in zip(*results):
        torch.testing.assert_close(result, other, rtol=1e-9, atol=1e-9)
    ratio = every[1].module[1].running_var / second.running_var
    torch.testing.assert_close(ratio, torch.full_like(ratio, (160 / 159) / (32 / 31)))


class Moved(sc.Neuron):
    """A threshold that an input moves."""

    inputs = ("x", "moves")
    states = {"v": 0.0}

    def dynamics(self, x, s, p):
        """``h = (v + x) / 2``."""
        h = (s.v + x.x) / 2.0
        z = self.spike(h - x.moves)
        return z, {"v": sc.ops.select(z, 0.0, h)}


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (1,)], ids=str)
def test_a_step_that_is_repeated_once_is_one_step(backend, shape):
    """Of ``repeat=1`` the second and the third call of a kind have time in front, too."""
    x, moves = values(*shape).requires_grad_(), values(*[1] * len(shape), seed=1)
    for kind, given in ((sc.LIF, (x,)), (Moved, (x, moves))):
        neuron = kind(backend=backend, repeat=1)
        timed = [value[None].expand(1, *shape) for value in given]
        expected = kind(backend="torch")(*timed)
        wanted = torch.autograd.grad(expected.sum(), x)
        for _ in range(3):
            (out, state), again = neuron.run(*given), neuron(*given)
            assert torch.equal(out, expected)
            assert torch.equal(again, expected)
            assert state["v"].shape == shape
            torch.testing.assert_close(torch.autograd.grad(again.sum(), x), wanted)


@pytest.mark.parametrize("shapes", [((6,), (6, 1)), ((6,), (1, 1, 1)), ((6, 1, 1), (6,))], ids=str)
def test_a_number_a_step_is_enough_for_one_neuron(backend, shapes):
    """``[T]`` has as many numbers as the call, and fewer dimensions."""
    given = [values(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]
    rest = [1] * (max(map(len, shapes)) - 1)
    expected = Moved(backend="torch")(*[value.view(-1, *rest).expand(6, *rest) for value in given])
    wanted = torch.autograd.grad(expected.sum(), given)
    neuron = Moved(backend=backend)
    for _ in range(2):
        out = neuron(*given)
        assert torch.equal(out, expected)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), given), wanted)
