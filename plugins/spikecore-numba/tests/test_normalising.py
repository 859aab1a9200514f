"""Statistics of batch normalisation by loops of ours, against float64."""

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
    "every other step": lambda x: (torch.cat([x, x], 1)[:, : x.shape[1]], x[0, 0, 0].numel()),
}


def found(x, inner, running=None, eps=1e-5):
    """Mean and 1 / standard deviation."""
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    geometry = Geometry(x.shape[0], x[0].numel(), ((inner, x.shape[2]),))
    return Statistics(Spec(x.dtype, None, (), (), False))(geometry, x, eps, running), compute


def exact(x, eps=1e-5):
    """The same, and the unbiased variance."""
    x, dims = x.double(), [d for d in range(x.ndim) if d != 2]
    return x.mean(dims), 1 / torch.sqrt(x.var(dims, unbiased=False) + eps), x.var(dims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 2, 3), (4, 3, 5, 7, 2), (20, 2, 64, 3, 3), (2, 2, 2, 40, 60)], ids=str)
def test_statistics_and_running_ones(sizes, layout, dtype):
    """Of means far from 0, in pieces of rows and in rows of channels; the running ones move once."""
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(0)) * 2
    x, inner = LAYOUTS[layout]((x + 100 * torch.arange(sizes[2]).view(-1, *[1] * (x.ndim - 3))).to(dtype))
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    held, moved, count = torch.ones(sizes[2], dtype=compute), torch.ones(sizes[2], dtype=compute), torch.tensor(4)
    (mean, rstd), _ = found(x, inner, (held, moved, count, 0.25))
    for one, right in zip((mean, rstd), exact(x)):
        torch.testing.assert_close(one.double(), right, rtol=3e-6, atol=1e-6)
    torch.testing.assert_close(held.double(), 0.75 + 0.25 * exact(x)[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moved.double(), 0.75 + 0.25 * exact(x)[2], rtol=1e-6, atol=1e-6)
    assert int(count) == 5
    (again, _), _ = found(x, inner)
    assert torch.equal(again, mean)
    assert int(count) == 5


@pytest.mark.parametrize("first", [0.0, 1e3, 1e4])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_one_number_far_from_all_others_costs_no_digits(layout, first):
    """Be it the first of its channel, from which distances are taken."""
    x = torch.randn(2, 8, 3, 40, 40, generator=torch.Generator().manual_seed(0)) + 5
    x[0, 0, 0, 0, 0] = first
    x, inner = LAYOUTS[layout](x)
    (mean, rstd), _ = found(x, inner)
    torch.testing.assert_close(mean.double(), exact(x)[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(rstd.double(), exact(x)[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_gives_the_same_bits(threads):
    """Of a layer large enough for several, forward and backward, in both layouts."""
    before = torch.get_num_threads()
    results = []
    try:
        for count in (threads, 3):
            torch.set_num_threads(count)
            for layout in ("contiguous", "channels-last"):
                x = torch.randn(4, 8, 16, 20, 20, generator=torch.Generator().manual_seed(1))
                x = LAYOUTS[layout](x)[0].detach().requires_grad_()
                layer = NormNeuron(nn.BatchNorm2d(16), sc.LIF(backend="numba"), fused=True)
                layer(x).square().sum().backward()
                results.append([x.grad, *(p.grad for p in layer.parameters()), *layer.buffers()])
    finally:
        torch.set_num_threads(before)
    for one, other in zip(results[:2], results[2:]):
        assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_no_number_and_infinite_ones():
    """A channel with NaN or infinity has no statistics, and the others keep theirs."""
    x = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0], x[1, 1, 1] = float("nan"), float("inf")
    (mean, rstd), _ = found(x, 1)
    assert torch.isnan(rstd[:2]).all()
    assert torch.isnan(mean[0])
    torch.testing.assert_close(mean[2].double(), exact(x)[0][2], rtol=1e-6, atol=1e-6)
