"""Small whole numbers in one, two, four or eight bits each, and back: what a backend does, and the reference for it.

Rules of this module:

- A tensor goes in as its numbers in the order of memory, ``[n]``; layouts are the affair of the caller.
- Nothing waits for a device. What is not as it was said to be comes back with NaN, never as other numbers.
- Here everything is an operation of PyTorch, on any device. A backend overrides :class:`Packing` to take one pass.
"""

from __future__ import annotations

import math
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

#: The largest number that a byte holds.
BYTE = 255
#: By the bits of a number: a word of as many bytes as numbers go into one byte, and a factor. Times the factor, the
#: highest byte of the word has the numbers side by side, the first one lowest. No two of the products meet in a bit, so
#: nothing is carried.
_GATHER: Mapping[int, Tuple[torch.dtype, int]] = {
    1: (torch.int64, 0x0102040810204080),
    2: (torch.int32, 0x01041040),
    4: (torch.int16, 0x0110),
}


class _Whole(NamedTuple):
    largest: int
    unit: float


class Whole(_Whole):
    """Range of a tensor's values: ``k * unit`` with whole numbers k from 0 to ``largest``, which is from 1 to 255.

    The unit is a power of 2, from 1/128 to 128, so that every ``k * unit`` is exact in every dtype of a neuron.

    Raises: ``ValueError`` for another ``largest`` or ``unit``.
    """

    __slots__ = ()

    def __new__(cls, largest: int, unit: float = 1.0) -> Whole:
        # of larger numbers a byte would hold the last 8 bits
        if not 1 <= largest <= BYTE:
            raise ValueError(f"Whole: largest={largest!r} must be from 1 to {BYTE}")
        if not 1 / 128 <= unit <= 128 or math.frexp(unit)[0] != 0.5:
            raise ValueError(f"Whole: unit={unit!r} must be a power of 2 from 1/128 to 128")
        return super().__new__(cls, largest, unit)

    @property
    def bits(self) -> int:
        """Number of bits that a number takes: 1, 2, 4 or 8."""
        # asked for at every save: no loop
        return 1 if self.largest < 2 else 2 if self.largest < 4 else 4 if self.largest < 16 else 8


class Bits(NamedTuple):
    """Numbers side by side in bytes.

    data: uint8, ``[ceil(n * bits / 8)]``: the first number is in the lowest bits of the first byte, and bits behind the
    last number are 0.
    right: a number ``[]`` of float32: 1, or NaN where some number was not ``k * unit``.
    """

    data: Tensor
    right: Tensor


def memory_order(x: Tensor) -> List[int]:
    """The dimensions of a tensor from the outermost in memory to the innermost."""
    return sorted(range(x.ndim), key=x.stride().__getitem__, reverse=True)


def added(a: Optional[Whole], b: Optional[Whole]) -> Optional[Whole]:
    """Range of a sum of two tensors; None if one range is unknown or a byte does not hold the sum."""
    if a is None or b is None:
        return None
    unit = min(a.unit, b.unit)
    return _bounded((a.largest * a.unit + b.largest * b.unit) / unit, unit)


def multiplied(a: Optional[Whole], b: Optional[Whole]) -> Optional[Whole]:
    """Range of a product of two tensors; None as for a sum."""
    if a is None or b is None:
        return None
    return _bounded(a.largest * b.largest, a.unit * b.unit)


def joined(wholes: Sequence[Optional[Whole]]) -> Optional[Whole]:
    """Range of the numbers of several tensors; None as for a sum."""
    ranges = [whole for whole in wholes if whole is not None]
    if not ranges or len(ranges) < len(wholes):
        return None
    unit = min(whole.unit for whole in ranges)
    return _bounded(max(whole.largest * whole.unit for whole in ranges) / unit, unit)


def averaged(whole: Optional[Whole], count: int) -> Optional[Whole]:
    """Range of averages of ``count`` numbers; None unless division is exact, with a power of 2."""
    if whole is None or count & (count - 1):
        return None
    return _bounded(whole.largest * count, whole.unit / count)


def _bounded(largest: float, unit: float) -> Optional[Whole]:
    return Whole(round(largest), unit) if largest <= BYTE and 1 / 128 <= unit <= 128 else None


class Packing:
    """Packing, unpacking and products of spikes, the part of a backend that every one has: by operations of PyTorch
    where it says nothing else, of which packing takes about six passes over the numbers.
    """

    def pack(self, numbers: Tensor, whole: Whole) -> Bits:
        """The numbers in ``whole.bits`` bits each.

        numbers: ``[n]``, dense, n at least 1, of any floating-point dtype of the dtype table (declared or not), on a
        device of the backend, at any address. They are said to be ``k * unit``; zeros of both signs are 0.

        Nothing may wait for the device, since the call may be within a CUDA graph. An override may call this method for
        what it has no kernel for; :meth:`unpack` then gets its result.
        """
        with torch.no_grad():
            if whole.largest > 1:
                small = (numbers if whole.unit == 1.0 else numbers.mul(1 / whole.unit)).to(torch.uint8)
                same = small.to(numbers.dtype).mul_(whole.unit) == numbers
                same &= small <= whole.largest
            else:
                small = numbers != 0
                same = numbers == (small if whole.unit == 1.0 else small * whole.unit)
            data = small if whole.bits == 8 else _gathered(small, whole.bits)
            return Bits(data, torch.where(same.all(), 1.0, float("nan")).float())

    def adds_rows(self, rows: int, count: int, width: int, dtype: torch.dtype, *, bits: bool = False) -> bool:
        """True if :meth:`sparse_product` may add rows ``[width]`` for an ``x [rows, count]``; False, as here, for none.
        Cheap, since each call of a layer asks. ``bits``: for an ``x`` that :meth:`pack` keeps for backward, which is
        to pay, too.
        """
        return False

    def sparse_product(
        self, x: Tensor, table: Tensor, bias: Optional[Tensor] = None, always: bool = False
    ) -> Optional[Tensor]:
        """``x @ table + bias`` of an ``x [n, k]`` that is mostly 0, by adding up rows of ``table [k, m]``; None, as
        here, where a dense product takes no longer.

        Of a contiguous ``x`` each sum begins with the bias ``[m]`` and is in the order of the columns of ``x``, so that
        no row of the result depends on another one. ``always``: where rows can be added, they are. ``x`` has at least
        one number, dtypes are the same, and rows whose number is 0 are not read.
        """
        return None

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        """The numbers ``[count]`` of :meth:`pack`, in their dtype: new memory.

        All are NaN if some number was not right. The bits may be another backend's, and lie elsewhere than they did:
        every backend makes the same ones.
        """
        with torch.no_grad():
            # not by a table of what each byte holds: for 64 Mi bfloat16 numbers, gathering took an H200 5.1 ms from
            # rows of 16 bytes, where it took 0.2 ms from rows of 8
            small, each = bits.data, whole.bits
            if each < 8:
                places = torch.arange(0, 8, each, dtype=torch.uint8, device=small.device)
                small = torch.bitwise_right_shift(small[:, None], places).bitwise_and_((1 << each) - 1).view(-1)
            scale = torch.full((), whole.unit, dtype=dtype, device=small.device) * bits.right.to(dtype)
            return (small * scale)[:count]


def _gathered(small: Tensor, bits: int) -> Tensor:
    """Bytes with numbers of so many bits, side by side in fewer bytes."""
    word, factor = _GATHER[bits]
    each = 8 // bits
    missing = -small.numel() % each
    if missing:
        small = torch.nn.functional.pad(small, (0, missing))
    # a copy of the highest byte of each word, since the words are as large as the bytes
    return small.view(word).mul(factor).view(torch.uint8)[each - 1 :: each].clone()
