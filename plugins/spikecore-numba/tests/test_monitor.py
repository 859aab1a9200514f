"""``sc.monitor`` sees what Numba's kernels compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc


@pytest.mark.parametrize("kind", ["plain", "fused", "fed back", "single"])
def test_what_kernels_compute_is_seen(kind):
    """Rates, spikes, states and their gradients are those of the reference, however the kernel is called."""
    torch.manual_seed(0)
    made = {
        "plain": sc.ALIF,
        "fused": lambda: sc.layers.NormNeuron(nn.BatchNorm1d(8), sc.LIF()),
        "fed back": lambda: sc.Recurrent(sc.LIF(), nn.Linear(8, 8)),
        "single": lambda: sc.LIF(step="single"),
    }
    net, found = made[kind](), {}
    for backend in ("torch", "numba"):
        sc.set_backend(net, backend)
        sc.reset(net)
        x = (2 * torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(1))).requires_grad_()
        with sc.monitor(net, record=("v",), spikes=True, grad=True) as seen:
            _ = [net(now) for now in x] if kind == "single" else net(x)
        (layer,) = seen.layers
        (gradient,) = torch.autograd.grad(layer.v.square().sum() + layer.spikes.sum(), x)
        found[backend] = layer.rate, layer.spikes, layer.v, gradient
    assert 0 < found["numba"][0] == found["torch"][0] < 1
    for value, wanted in zip(found["numba"][1:], found["torch"][1:]):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)


def test_feedback_within_a_kernel_is_counted():
    """``sc.energy`` counts the products of a matrix that one kernel computes over all steps, as on the reference."""
    torch.manual_seed(0)
    net = sc.Recurrent(sc.LIF(), nn.Linear(8, 8))
    x = 2 * torch.rand(6, 4, 8)
    counts = []
    for backend in ("torch", "numba"):
        sc.set_backend(net, backend)
        net.fused = True if backend == "numba" else None
        counts.append(sc.energy(net, x).acs)
    spikes = net(x)
    assert net.looped == ""
    assert net.fused is True
    assert counts == [8 * int(spikes[:-1].sum())] * 2
    assert counts[0] > 0
