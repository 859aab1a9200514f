"""Batch normalisation within cupy's kernels, on a GPU: sums over blocks of many threads, for channels of any number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import NormNeuron

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def _norm(channels, dtype):
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, channels))
        norm.bias.copy_(torch.linspace(-0.2, 0.5, channels))
    return norm.to(DEVICE).to(torch.float64 if dtype == torch.float64 else torch.float32)


def _results(backend, fused, inputs, cotangent, dtype, two):
    """Outputs of two calls; gradients of their inputs and of parameters, and running statistics. ``two``: with a
    shortcut that is normalised.
    """
    options = {"shortcut": "before", "shortcut_norm": _norm(cotangent.shape[2], dtype)} if two else {}
    neuron = sc.LIF(backend=backend, detach_reset=True)
    layer = NormNeuron(_norm(cotangent.shape[2], dtype), neuron, fused=fused, **options)
    leaves = [value.to(dtype).clone().requires_grad_() for value in inputs]
    outputs = [layer(*leaves), layer(*reversed(leaves))] if two else [layer(leaf) for leaf in leaves]
    torch.autograd.backward(outputs, [cotangent.to(dtype)] * 2)
    rest = [*(leaf.grad for leaf in leaves), *(p.grad for p in layer.parameters()), *layer.buffers()]
    return [value.double() for value in outputs], [value.double() for value in rest]


@pytest.mark.parametrize("two", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "sizes",
    [(4, 8, 64, 8, 8), (4, 5, 96, 7, 7), (6, 2, 33, 5, 3), (20, 16, 512, 4, 4), (4, 16, 4, 32, 32), (4, 2, 2048, 1, 2)],
    ids=str,
)
def test_statistics_spikes_and_gradients_are_those_of_torch(sizes, dtype, layout, two):
    """Two calls and their gradients: running statistics, gradients of input, weight and bias; twice the same bits."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(sizes, device=DEVICE, generator=generator) * 2 + 3
    cotangent = torch.randn(sizes, device=DEVICE, generator=generator)
    if layout == "last":
        x, cotangent = (
            value.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(sizes) for value in (x, cotangent)
        )
    inputs, cotangent = [x.to(dtype), (1.5 * x).to(dtype)], cotangent.to(dtype)
    half = dtype in (torch.bfloat16, torch.float16)
    mine, again = (_results("cupy", True, inputs, cotangent, dtype, two) for _ in range(2))
    its = _results("torch", False, inputs, cotangent, torch.float32 if half else dtype, two)
    for one, other in zip([*mine[0], *mine[1]], [*again[0], *again[1]]):
        assert torch.equal(one, other)
    for one, other in zip(mine[0], its[0]):
        assert (one != other).double().mean() < 1e-4  # spikes at the threshold, to rounding
    for one, other in zip(mine[1], its[1]):
        assert (one - other).norm() <= (1e-2 if half else 5e-3) * other.norm()
