"""``repeat=T``: a neuron takes one step for all, reads it once and gives the sum over time of its gradient."""

from __future__ import annotations

import copy
import importlib.util
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.testing._install import installed
from spikecore_cupy.host import HostBackend, reason

#: Backends by name, and why one cannot be had here.
BACKENDS = {
    "torch": None,
    "numba": None if importlib.util.find_spec("spikecore_numba") else "spikecore-numba is not installed",
    "cupy_host": reason(),
}
STEPS = (4, 25)


class Unread(sc.Neuron):
    """Reads nothing of its input."""

    states = {"v": 0.0}
    params = {"rise": 0.3}

    def dynamics(self, x, s, p):
        """``h = v + rise``."""
        h = s.v + p.rise
        z = self.spike(h - 1.0)
        return z, {"v": sc.ops.select(z, 0.0, h)}


NEURONS = {
    "LIF learnt": lambda backend: sc.LIF(learn=("tau", "threshold"), reset="soft", backend=backend),
    "LIF per channel": lambda backend: sc.LIF(tau=torch.full((6,), 1.7), learn=("tau",), backend=backend),
    "ALIF": lambda backend: sc.ALIF(backend=backend),
    "Unread": lambda backend: Unread(backend=backend, learn=("rise",)),
}


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


def run(neuron, step, steps, cotangent, once, record=()):
    """Results and gradients of a call with ``repeat``, or (not ``once``) on the steps written out."""
    step = step.clone().requires_grad_()
    neuron.repeat = steps if once else None
    outs, state, *trace = neuron.run(step if once else sc.encode.Constant(steps)(step), record=record)
    results = [outs, *state.values(), *(value for recorded in trace for value in recorded.values())]
    total = (outs * cotangent).sum() + sum((value * value).sum() for value in results[1:])
    wanted = [step, *neuron.parameters()]
    grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return results, [torch.zeros_like(one) if grad is None else grad for one, grad in zip(wanted, grads)]


def check(neuron, step, steps, rtol, record=()):
    """Results bit for bit, gradients to rounding, and the layout of the gradient."""
    cotangent = values(steps, *step.shape, seed=1, dtype=step.dtype)
    results, grads = run(neuron, step, steps, cotangent, True, record)
    expected, others = run(neuron, step, steps, cotangent, False, record)
    for result, other in zip(results, expected):
        assert torch.equal(result, other)
    for grad, other in zip(grads, others):
        scale = other.abs().max().item() if other.numel() else 1.0
        torch.testing.assert_close(grad, other, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("name", NEURONS)
@pytest.mark.parametrize("steps", STEPS)
def test_spikes_are_bit_equal_and_gradients_agree(backend, name, steps):
    """Outputs, final state and traces, with every kind of parameter, at numbers of steps with and without chunks."""
    check(NEURONS[name](backend), values(3, 6, 8), steps, 1e-5, record=("v",))


@pytest.mark.parametrize(
    ("name", "dtype"), [("ALIF", torch.float32), ("ALIF", torch.bfloat16), ("Unread", torch.float64)]
)
def test_calls_for_outputs_alone(backend, name, dtype):
    """As a network calls its neurons: with and without gradients, saved-tensor hooks, and a graph of the gradient."""
    neuron = NEURONS[name](backend)
    for steps, shape in ((4, (3, 8)), (25, (3, 8)), (25, (1, 5))):
        step = values(*shape, dtype=dtype).requires_grad_()
        cotangent = values(steps, *shape, seed=3, dtype=dtype)

        def gradient(x, step=step, cotangent=cotangent, hooks=nullcontext, **options):
            with hooks():
                out = neuron(x)
            return out.detach(), *torch.autograd.grad(out, [step], cotangent, allow_unused=True, **options)

        neuron.repeat = None
        expected, other = gradient(sc.encode.Constant(steps)(step))
        neuron.repeat = steps
        if other is None:  # by torch, of a neuron that reads no input
            other = torch.zeros_like(step)
        moved = lambda: torch.autograd.graph.saved_tensors_hooks(  # noqa: E731  # one for each call
            lambda value: value.t() if value.ndim == 2 else value, lambda value: value.t() if value.ndim == 2 else value
        )
        with torch.no_grad():
            assert torch.equal(neuron(step), expected)
        for options in ({}, {"hooks": moved}, {"create_graph": backend != "torch"}):
            out, grad = gradient(step, retain_graph=True, **options)
            assert torch.equal(out, expected)
            tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
            grad = torch.zeros_like(step) if grad is None else grad
            torch.testing.assert_close(grad, other, rtol=tolerance, atol=tolerance * (1e-3 + other.abs().max().item()))


def test_a_sum_of_many_halves_is_exact_to_one_rounding(backend):
    """Gradients of 40 steps that are each lost beside their sum, in bfloat16: the kernel adds in float32."""
    if backend == "torch":
        pytest.skip("autograd adds what the reference rounded")
    step = values(64, dtype=torch.bfloat16).requires_grad_()
    exact = step.detach().double().requires_grad_()
    sc.LI(backend=backend, repeat=40)(step).sum().backward()
    sc.LI(backend="torch", repeat=40)(exact).sum().backward()
    torch.testing.assert_close(step.grad.double(), exact.grad, rtol=2**-8, atol=0)


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


def test_an_initial_state_and_carried_ones(backend):
    """Beside a given state; continuing over calls."""
    step = values(3, 8)
    found = []
    for neuron, x in (
        (sc.LIF(backend=backend, repeat=4), step),
        (sc.LIF(backend=backend), sc.encode.Constant(4)(step)),
    ):
        with sc.carry_state(neuron):
            carried = torch.cat([neuron(x) for _ in range(3)])
        state = {"v": values(3, 8, seed=7)}
        given, end = neuron.run(x, state=state)
        found.append((carried, given, end["v"]))
    assert all(map(torch.equal, *found))
