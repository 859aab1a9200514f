"""Square roots that are rounded correctly, whatever torch's own do on a device.

- CPU: torch takes Intel's vector library there, whose roots are off by one unit in the last place for some values (for
  a quarter of all float32 from 0.5 to 1 on a processor with AVX-512). float32 goes through float64.
- GPUs of NVIDIA's and AMD's: torch's own is correct. It is compiled with the compilers' default, ``-prec-sqrt=true``
  for one.
- IPU: the device's. PopTorch compiles the one operation.
- Every other device, and float64 on a CPU: torch's own, of which up to three units in the last place are corrected in
  arithmetic of the same dtype. MPS and some GPUs of Intel's have no float64, and neither Metal nor SYCL promises a root
  that is rounded correctly. What is needed is that ``+ - * /`` are, and that a product is rounded before it is added.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

#: Device types whose own root is taken.
_OWN = ("cuda", "ipu")


class _Numbers(NamedTuple):
    """What the exact remainder of a root needs in a dtype."""

    #: Times this number, a number splits into two halves whose products are exact (Dekker, 1971).
    split: float
    #: A number times this one, added to it or subtracted, is rounded to the next one (Rump, Zimmermann, Boldo and
    #: Melquiond, 2009: "Computing predecessor and successor in rounding to nearest").
    beside: float
    #: Below this one, and above its inverse, ``x`` is scaled, so that no part of a product is lost.
    small: float
    #: By how much the root is scaled there; ``x`` is by its square.
    scale: float


_NUMBERS = {
    torch.float32: _Numbers(2.0**12 + 1.0, 2.0**-24 * (1.0 + 2.0**-23), 2.0**-60, 2.0**50),
    torch.float64: _Numbers(2.0**27 + 1.0, 2.0**-53 * (1.0 + 2.0**-52), 2.0**-900, 2.0**100),
}


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    device = x.device.type
    if device == "cpu" and x.dtype == torch.float32:
        # no root of a float32 is so close to the midpoint of two float32 that an error in float64 rounds it wrongly
        return x.double().sqrt().to(x.dtype)
    y = torch.sqrt(x)
    if device in _OWN or x.dtype not in _NUMBERS:
        return y
    return y + correction(x.detach(), y.detach())


def correction(x: Tensor, y: Tensor) -> Tensor:
    """What must be added to ``y``, a root of ``x`` to three units in the last place, to have the nearest one."""
    by = _NUMBERS[x.dtype]
    small, large = x < by.small, x > 1.0 / by.small
    square = _scaled(x, small, large, by.scale * by.scale)
    near = _scaled(y, small, large, by.scale)
    # one step of Newton's leaves less than a unit
    near = near + _remainder(square, near, by.split) / (2.0 * near)
    # The remainder is a whole multiple of the square of a unit, and so is each bound: comparisons are exact. The next
    # number is nearer where near + unit / 2 is below the root: where the remainder is above near * unit + unit^2 / 4.
    left = _remainder(square, near, by.split)
    step = near * by.beside
    above, below = near + step, near - step
    root = torch.where(left <= -(near * (near - below)), below, near)
    root = torch.where(left > near * (above - near), above, root)
    moved = _scaled(root, large, small, by.scale) - y
    # 0, infinity and NaN have none; none is -0, so that the root of -0 is -0
    return torch.where(torch.isfinite(moved), moved, -torch.zeros_like(y))


def _scaled(value: Tensor, up: Tensor, down: Tensor, by: float) -> Tensor:
    return torch.where(up, value * by, torch.where(down, value / by, value))


def _remainder(x: Tensor, y: Tensor, split: float) -> Tensor:
    """``x - y * y``, of which only the last sum is rounded."""
    turned = y * split
    high = turned - (turned - y)
    low = y - high
    product = y * y
    return (x - product) - (((high * high - product) + 2.0 * high * low) + low * low)
