"""The reference's fast paths, where only reverse-mode autograd follows a computation.

There the same values take fewer and quicker operations of torch than the forms that torch.func and torch.compile need.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, List, Sequence

import torch
from torch import Tensor

from spikecore.context import is_plain

_FLOAT32_MAX = torch.finfo(torch.float32).max
#: dtype -> the integers of that size.
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
#: From so many values on, torch.where takes longer on a CPU than a choice bit by bit.
_MANY = 1 << 12


def step(u: Tensor, strict: bool) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``. Of plain tensors, without a graph."""
    # written as numbers at once: torch's kernels for truth values take four times as long on a CPU
    return (torch.gt if strict else torch.ge)(u, zero_of(u), out=torch.empty_like(u))


def choice(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``, bit for bit. Of plain tensors, without a graph."""
    zero = zero_of(z)
    bits = None if is_few(z) else _BITS.get(z.dtype)
    if bits is None or a.dtype != z.dtype or b.dtype != z.dtype or not z.is_cpu:
        return torch.where(torch.ne(z, zero), a, b)
    # torch.where branches at every element there, and where spikes are irregular the CPU guesses half of them wrong
    a, b = a.resolve_neg().view(bits), b.resolve_neg().view(bits)
    if not a.shape and b.shape == z.shape and not a.item():
        # a reset to 0, whose bits are all 0; a NaN among the spikes equals no 0 here, and differs from it below
        mask = torch.eq(z, zero, out=torch.empty_like(z)).to(bits).neg_()  # all bits 1 or all 0
        return mask.bitwise_and_(b).view(z.dtype)
    mask = torch.ne(z, zero, out=torch.empty_like(z)).to(bits).neg_()
    return (mask & (a ^ b)).bitwise_xor_(b).view(z.dtype)


def silent(z: Tensor) -> Tensor:
    """Mask of spikes that are 0, for :func:`masked`: truth values, or for many numbers on a CPU 1 and 0 as integers of
    the size of a number. Each number of ``z`` is 0 or 1, and no 0 is -0.
    """
    bits = None if is_few(z) or not z.is_cpu else _BITS.get(z.dtype)
    if bits is None:
        return torch.eq(z, zero_of(z))
    spikes = z.view(bits)  # of 0.0 all bits are 0
    return torch.eq(spikes, ZERO.of_plain(spikes)[0], out=torch.empty_like(spikes))


def masked(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``b`` where spikes are 0, else ``a``, bit for bit; ``mask`` is what :func:`silent` gave."""
    bits = mask.dtype
    if bits is torch.bool:
        return torch.where(mask, b, a)
    a, b, dtype = a.resolve_neg().view(bits), b.resolve_neg().view(bits), b.dtype
    if not a.shape and not a.item():  # a reset to 0
        return torch.mul(mask, b).view(dtype)
    return (mask.neg() & (a ^ b)).bitwise_xor_(a).view(dtype)


def is_few(z: Tensor) -> bool:
    """True if torch.where on truth values is the fastest choice by ``z``, as for few numbers on a CPU."""
    return z.numel() < _MANY and z.is_cpu


def is_chosen(z: Tensor) -> Tensor:
    """Mask of ``z`` that are not 0, as truth values for torch.where."""
    return torch.ne(z, zero_of(z))


def zero_of(like: Tensor) -> Any:
    """The number 0, as comparisons with ``like`` take it."""
    # a CPU compares with a 0-d tensor in half the time that a number takes; a GPU would have to fill the tensor first
    return ZERO.of_plain(like)[0] if like.is_cpu else 0.0


class Constants:
    """Numbers as 0-d tensors. Kept on a CPU only: a tensor of a GPU belongs to the stream that made it."""

    def __init__(self, values: Sequence[float]) -> None:
        # as text: torch.compile would make variables of floats, and then cannot look into a surrogate
        self.values: List[str] = [repr(float(value)) for value in values]
        self._made: Dict[torch.dtype, List[Tensor]] = {}

    def __call__(self, like: Tensor) -> List[Tensor]:
        """The numbers in the dtype and on the device of ``like``."""
        if not self.values:
            return []
        if not is_plain(like):
            return [number(float(value), like) for value in self.values]
        return self.of_plain(like)

    def of_plain(self, like: Tensor) -> List[Tensor]:
        """The same where ``like`` is plain."""
        if not like.is_cpu:
            return [number(float(value), like) for value in self.values]
        made = self._made.get(like.dtype)
        if made is None:
            with torch.inference_mode(False):  # what is made in inference mode cannot be saved for backward later
                made = self._made[like.dtype] = [number(float(value), like) for value in self.values]
        return made


def number(value: float, like: Tensor) -> Tensor:
    """A number as a 0-d tensor of the dtype and on the device of ``like``; beyond float32 it is infinite.

    A number given to torch as it is would be divided by through its reciprocal on some devices, and no longer correctly
    rounded.
    """
    if like.dtype == torch.float32 and _FLOAT32_MAX < abs(value) < math.inf:
        value = ctypes.c_float(value).value  # which torch.compile cannot trace, so only where torch.full would raise
    return torch.full((), value, dtype=like.dtype, device=like.device)


#: The number 0.
ZERO = Constants([0.0])
