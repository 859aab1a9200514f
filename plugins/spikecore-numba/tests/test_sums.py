"""Sums over groups of neurons."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc

C = 6
NEURONS = {
    "scalar": lambda: sc.PLIF(backend="numba"),
    "channels": lambda: sc.LIF(
        torch.linspace(2, 3, C), threshold=torch.linspace(0.5, 1, C), learn=("tau", "threshold"), backend="numba"
    ),
}


def results(neuron, x):
    """Output and all gradients."""
    x = x.clone().requires_grad_()
    out = neuron(x)
    return [out.detach(), *torch.autograd.grad(out, [x, *neuron.parameters()], torch.cos(x))]


def drive(steps, *shape, dtype=torch.float32):
    """Values that make neurons fire."""
    return (torch.rand(steps, *shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


@pytest.mark.parametrize("shape", [(50, C, 100), (7, C, 3001), (900, C), (3, C, 1)], ids=str)
@pytest.mark.parametrize("kind", NEURONS)
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
