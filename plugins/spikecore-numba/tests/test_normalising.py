"""Sums that the suite has not: statistics of numbers far off, any number of threads, groups of neurons."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.backend import Spec
from spikecore.kernels import Geometry
from spikecore.layers import NormNeuron
from spikecore_numba.normalising import Statistics

LAYOUTS = {
    "contiguous": lambda x: (x, x[0, 0, 0].numel()),
    "channels-last": lambda x: (x.movedim(2, -1).contiguous().movedim(-1, 2), 1),
}


@pytest.mark.parametrize("first", [0.0, 1e3, 1e4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_number_far_from_all_others_costs_no_digits(layout, first):
    """Be it the first of its channel, from which distances are taken."""
    x = torch.randn(2, 8, 3, 40, 40, generator=torch.Generator().manual_seed(0)) + 5
    x[0, 0, 0, 0, 0] = first
    x, inner = LAYOUTS[layout](x)
    geometry = Geometry(x.shape[0], x[0].numel(), ((inner, x.shape[2]),))
    mean, rstd = Statistics(Spec(x.dtype, None, (), (), False))(geometry, x, 1e-5, None)
    exact = x.double().transpose(0, 2).flatten(1)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(rstd.double(), (exact.var(1, unbiased=False) + 1e-5).rsqrt(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_gives_the_same_bits(threads):
    """Of a layer large enough for several, forward and backward, in both layouts."""
    before = torch.get_num_threads()
    results = []
    try:
        for count in (threads, 3):
            torch.set_num_threads(count)
            for layout in LAYOUTS:
                x = torch.randn(4, 8, 16, 20, 20, generator=torch.Generator().manual_seed(1))
                x = LAYOUTS[layout](x)[0].detach().requires_grad_()
                layer = NormNeuron(nn.BatchNorm2d(16), sc.LIF(backend="numba"), fused=True)
                layer(x).square().sum().backward()
                results.append([x.grad, *(p.grad for p in layer.parameters()), *layer.buffers()])
    finally:
        torch.set_num_threads(before)
    for one, other in zip(results[:2], results[2:]):
        assert all(torch.equal(a, b) for a, b in zip(one, other))


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
