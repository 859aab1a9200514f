"""Square roots are rounded correctly, whatever root a device gives: every float32 of two binades stands for all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikecore.lang import _functions as _root
from spikecore.lang.eager import TORCH

BINADE = 1 << 23
LITTLE = torch.arange(1, 64, dtype=torch.int32)


def every(first, count=2 * BINADE):
    """So many float32 from a power of two on. Roots of numbers four times as large have the same digits."""
    begin = torch.tensor(first).view(torch.int32).item()
    return torch.arange(begin, begin + count, dtype=torch.int32).view(torch.float32)


def nearest(x):
    """NumPy's root, which is the processor's instruction: rounded as IEEE 754 has it."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def beside(x, units):
    """Numbers so many units in the last place from these."""
    kind = torch.int32 if x.dtype == torch.float32 else torch.int64
    return (x.view(kind) + units).view(x.dtype)


def bits(x):
    """The memory of a tensor."""
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int64)


class TestEveryNumber:
    """All float32 of [1, 4)."""

    def test_through_float64(self):
        """As on a CPU."""
        x = every(1.0)
        assert torch.equal(TORCH["sqrt"](x), nearest(x))

    @pytest.mark.parametrize("units", [-1, 0, 1])
    def test_without_float64(self, units):
        """A root that is one unit off, or right, is right afterwards."""
        x = every(1.0)
        right = nearest(x)
        y = beside(right, units)
        assert torch.equal(y + _root.correction(x, y), right)

    @pytest.mark.parametrize("units", [-3, -2, 2, 3])
    def test_worse_roots(self, units):
        """Up to three units, as SYCL allows: every 16th number, and those whose roots are nearest to a midpoint."""
        x = torch.cat([every(1.0)[::16], every(1.0, 64), beside(torch.tensor([4.0]), -LITTLE)])
        right = nearest(x)
        y = beside(right, units)
        assert torch.equal(y + _root.correction(x, y), right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("units", [-1, 0, 1])
def test_numbers_of_every_size(dtype, units):
    """Subnormal and the largest ones included; of float64 as many as of float32."""
    generator = torch.Generator().manual_seed(7)
    if dtype == torch.float32:
        drawn = torch.randint(1, 0x7F800000, (1 << 20,), generator=generator).to(torch.int32).view(dtype)
    else:
        drawn = torch.randint(1, 0x7FF << 52, (1 << 20,), generator=generator).view(dtype)
    limits = torch.finfo(dtype)
    small = limits.tiny * limits.eps
    x = torch.cat([drawn, torch.tensor([small, 3 * small, limits.tiny, limits.max], dtype=dtype)])
    right = nearest(x)
    y = beside(right, units)
    assert torch.equal(y + _root.correction(x, y), right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_has_no_correction(dtype):
    """Zeros keep their signs; infinity, NaN and roots of negative numbers stay."""
    x = torch.tensor([0.0, -0.0, float("inf"), float("nan"), -1.0], dtype=dtype)
    y = torch.sqrt(x)
    found = y + _root.correction(x, y)
    assert torch.equal(bits(found)[:3], bits(y)[:3])
    assert torch.equal(found.isnan(), torch.tensor([False, False, False, True, True]))


def test_a_gradient_of_first_and_second_order():
    """The correction is a constant: derivatives are those of the root."""
    x = torch.tensor([0.3, 2.0, 7.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TORCH["sqrt"], x)
    assert torch.autograd.gradgradcheck(TORCH["sqrt"], x)
