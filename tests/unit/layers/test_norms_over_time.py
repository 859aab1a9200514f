"""tdBN and TEBN against their equations in NumPy, and against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import refusals
import spikecore as sc
from spikecore.layers import TEBN, TimeBatched, tdbn

T, B, C = 4, 3, 5
SHAPES = {1: (), 2: (4, 6), 3: (2, 3, 4)}


def values(dims, seed=0):
    return (
        torch.randn(T, B, C, *SHAPES[dims], generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1
    )


def by_hand(x, eps=1e-5):
    """Each channel to mean 0 and variance 1, over all but C."""
    found = np.zeros_like(x)
    for c in range(x.shape[2]):
        found[:, :, c] = (x[:, :, c] - x[:, :, c].mean()) / np.sqrt(x[:, :, c].var() + eps)
    return found


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_tdbn(dims):
    """alpha V_th (x - mean) / sqrt(var + eps) at first; in eval() with running statistics."""
    layer = TimeBatched(tdbn(C, threshold=0.5, alpha=0.7, dims=dims, momentum=1.0)).double()
    y = layer(values(dims))
    np.testing.assert_allclose(y.detach().numpy(), 0.35 * by_hand(values(dims).numpy()), rtol=1e-7, atol=1e-9)
    layer.eval()
    assert layer(values(dims)).std().item() == pytest.approx(0.35, rel=0.05)
    assert type(layer.module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    assert tdbn(C, dims=dims, affine=False).weight is None


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_tebn(dims):
    """p[t] (w x^ + b), in training, and with running statistics in eval()."""
    layer = TEBN(C, T, dims=dims).double()
    generator = torch.Generator().manual_seed(1)
    for value in layer.parameters():
        value.data = torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5
    w, b, p = (value.detach().numpy() for value in (layer.norm.weight, layer.norm.bias, layer.scale))
    wide = (1, 1, C, *[1] * len(SHAPES[dims]))
    along = (T, *[1] * (2 + len(SHAPES[dims])))
    expected = p.reshape(along) * (w.reshape(wide) * by_hand(values(dims).numpy()) + b.reshape(wide))
    np.testing.assert_allclose(layer(values(dims)).detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    layer.eval()
    mean, std = layer.norm.running_mean.numpy(), np.sqrt(layer.norm.running_var.numpy() + 1e-5)
    normal = (values(dims).numpy() - mean.reshape(wide)) / std.reshape(wide)
    expected = p.reshape(along) * (w.reshape(wide) * normal + b.reshape(wide))
    np.testing.assert_allclose(layer(values(dims)).detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    assert list(TEBN(C, T).state_dict()) == [
        "scale",
        *(f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    ]


def test_tebn_gradient():
    """Of input, factors, weight and bias, by finite differences."""
    layer = TEBN(C, T, dims=1, track_running_stats=False).double()
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters)), (x,))

    start = [torch.rand_like(value).requires_grad_() for value in layer.parameters()]
    assert torch.autograd.gradcheck(call, (values(1).requires_grad_(), *start), fast_mode=True)


def test_tebn_in_a_network():
    """Channels-last steps stay so; sc.fuse leaves it."""
    net = nn.Sequential(TimeBatched(nn.Conv2d(2, C, 3)), TEBN(C, T), sc.LIF())
    x = torch.rand(T, B, 2, 6, 6)
    expected = net(x)
    with pytest.warns(UserWarning, match="found no batch normalisation"):
        torch.testing.assert_close(sc.fuse(net)(x), expected)
    last = x.flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (T, B))
    y = net[1](net[0].to(memory_format=torch.channels_last)(last))
    assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


test_refused = refusals.table(__file__, globals())
