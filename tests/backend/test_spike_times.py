"""``gradient="spike_time"`` on backends with kernels, which know nothing of it: what the reference computes."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

import pytest
import torch

import spikecore as sc
from spikecore.testing import installed
from spikecore_cupy.host import HostBackend, reason

BACKENDS = {
    "numba": None if importlib.util.find_spec("spikecore_numba") else "spikecore-numba is not installed",
    "cupy_host": reason(),
}
NEURONS = {
    "Synaptic": lambda **options: sc.Synaptic(0.9, 0.95, learn=("beta",), **options),
    "LIF soft": lambda **options: sc.LIF(8.0, reset="soft", **options),
    "ALIF": lambda **options: sc.ALIF(6.0, **options),
}


@pytest.fixture(params=["numba", pytest.param("cupy_host", marks=pytest.mark.kernels)])
def backend(request):
    """A backend that works here."""
    if BACKENDS[request.param]:
        pytest.skip(BACKENDS[request.param])
    with installed(HostBackend, devices=("cpu",)) if request.param == "cupy_host" else nullcontext():
        yield request.param


def run(neuron, dtype):
    """Outputs, and the gradients of input and parameters, of a sum with different weights at each step."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(60, 3, 5, generator=generator, dtype=torch.float64) * 2.5).to(dtype).requires_grad_()
    weights = torch.rand(60, 3, 5, generator=generator, dtype=torch.float64).to(dtype)
    y = neuron(x)
    return y, torch.autograd.grad((y * weights).sum(), [x, *neuron.parameters()])


@pytest.mark.parametrize("name", NEURONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_is_that_of_the_reference(backend, name, dtype, tolerance):
    """The same spikes, and gradients to rounding."""
    y, gradients = run(NEURONS[name](gradient="spike_time", backend=backend), dtype)
    expected, theirs = run(NEURONS[name](gradient="spike_time", backend="torch"), dtype)
    assert torch.equal(y, expected)
    assert y.sum() > 20
    for ours, wanted in zip(gradients, theirs):
        assert wanted.any()
        assert (ours - wanted).abs().max() <= tolerance * wanted.abs().max()
