"""Small layers, whose launches find all but addresses beforehand; and sums over groups of neurons."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore_numba import launches

C = 6
NEURONS = {
    "numbers": lambda: sc.LIF(backend="numba"),
    "scalar": lambda: sc.PLIF(backend="numba"),
    "scalar of one": lambda: sc.LIF(tau=torch.tensor([2.5]), learn=("tau",), backend="numba"),
    "channels": lambda: sc.LIF(
        torch.linspace(2, 3, C), threshold=torch.linspace(0.5, 1, C), learn=("tau", "threshold"), backend="numba"
    ),
    "channels not learnt": lambda: sc.LIF(torch.linspace(2, 3, C), learn=("threshold",), backend="numba"),
    "one per neuron": lambda: sc.LIF(torch.linspace(2, 3, 3 * C * 5).view(3, C, 5), learn=("tau",), backend="numba"),
    "no state": lambda: sc.LI(backend="numba"),
    "two states": lambda: sc.Synaptic(learn=("alpha", "beta"), backend="numba"),
}


def results(neuron, x):
    """Output and all gradients."""
    x = x.clone().requires_grad_()
    out = neuron(x)
    return [out.detach(), *torch.autograd.grad(out, [x, *neuron.parameters()], torch.cos(x))]


def drive(steps, *shape, dtype=torch.float32):
    """Values that make neurons fire."""
    return (torch.rand(steps, *shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


@pytest.mark.matrix(turn=0)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("steps", [1, 4, 300])
@pytest.mark.parametrize("kind", NEURONS)
def test_the_bits_are_those_of_all_launches(kind, steps, dtype, monkeypatch):
    """Also with several chunks of steps; gradients have the shape of their parameters."""
    x, neuron = drive(steps, 3, C, 5, dtype=dtype), NEURONS[kind]()
    found = results(neuron, x)
    assert [grad.shape for grad in found[2:]] == [parameter.shape for parameter in neuron.parameters()]
    for direction in (launches.Forward, launches.Backward):
        monkeypatch.setattr(direction, "dense", lambda *_: None)
    for one, other in zip(found, results(NEURONS[kind](), x)):
        assert torch.equal(one, other)


def test_a_large_layer_is_left_to_threads(monkeypatch):
    """The launch of a small one computes on the calling thread."""
    seen = []
    original = launches.over_blocks
    monkeypatch.setattr(launches, "over_blocks", lambda *args: seen.append(args[2]) or original(*args))
    neuron = NEURONS["numbers"]()
    results(neuron, drive(4, 3, C, 5))
    assert not seen
    results(neuron, drive(4, 40, C, 200))
    assert seen == [4 * 40 * C * 200] * 2


@pytest.mark.parametrize("shape", [(50, C, 100), (7, C, 3001), (900, C), (3, C, 1)], ids=str)
@pytest.mark.parametrize("kind", ["scalar", "channels"])
@pytest.mark.parametrize("steps", [2, 9])
def test_sums_over_groups_of_neurons_are_those_of_the_reference(kind, shape, steps):
    """Of more neurons than are added up apart, the last group not whole; with any number of threads the same bits."""
    x, before = drive(steps, *shape, dtype=torch.float64), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(results(NEURONS[kind]().double(), x))
    finally:
        torch.set_num_threads(before)
    neuron = NEURONS[kind]().double()
    neuron.backend = "torch"
    for one, two, five, right in zip(*found, results(neuron, x)):
        assert torch.equal(one, two)
        assert torch.equal(one, five)
        torch.testing.assert_close(one, right)
