"""Small whole numbers in one, two, four or eight bits each, and back, by operations of PyTorch on any device.

Rules of this module:

- A tensor goes in as its numbers in the order of memory, ``[n]``; layouts are the affair of the caller.
- Nothing waits for a device, but on a CPU, where there is nothing to wait for, values are compared with what they are
  said to be: :func:`packed` gives None for others. Elsewhere what differs comes back as NaN, never as other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

#: The largest number that a byte holds.
BYTE = 255
#: Fewer numbers than this stay as they are: their bits are not worth two launches.
LEAST = 1024
#: By the bits of a number: a word of as many bytes as numbers go into one byte, and a factor. Times the factor, the
#: highest byte of the word has the numbers side by side, the first one lowest. No two of the products meet in a bit, so
#: nothing is carried.
_GATHER: Mapping[int, Tuple[torch.dtype, int]] = {
    1: (torch.int64, 0x0102040810204080),
    2: (torch.int32, 0x01041040),
    4: (torch.int16, 0x0110),
}


class Whole(NamedTuple):
    """What a tensor holds: ``n * unit`` with whole numbers n from 0 to ``largest``; the unit is a power of 2."""

    largest: int
    unit: float = 1.0

    @property
    def bits(self) -> int:
        """How many bits a number takes."""
        return next(bits for bits in (1, 2, 4, 8) if self.largest < 1 << bits)


@dataclass(frozen=True)
class Packed:
    """Numbers side by side in bytes."""

    #: None while something else keeps it.
    data: Optional[Tensor]
    #: A number that is 1, or NaN where some value was none of those it was said to be; None where this is known.
    right: Optional[Tensor]
    whole: Whole
    count: int
    dtype: torch.dtype

    def holding(self, data: Optional[Tensor]) -> Packed:
        """The same with other memory for the data, or none."""
        return replace(self, data=data)

    def numbers(self) -> Tensor:
        """The numbers, ``[count]``, as they were."""
        data = self.data
        if data is None:
            raise RuntimeError("these bits are kept elsewhere")
        bits = self.whole.bits
        with torch.no_grad():
            # not by a table of what each byte holds: for 64 Mi bfloat16 numbers, gathering took an H200 5.1 ms from
            # rows of 16 bytes, where it took 0.2 ms from rows of 8
            small = data
            if bits < 8:
                places = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
                small = torch.bitwise_right_shift(data[:, None], places).bitwise_and_((1 << bits) - 1).view(-1)
            scale = torch.full((), self.whole.unit, dtype=self.dtype, device=data.device)
            if self.right is not None:
                scale = scale * self.right.to(self.dtype)
            return (small * scale)[: self.count]

    @property
    def bytes(self) -> int:
        """The memory that this keeps."""
        return 0 if self.data is None else self.data.numel()


def packed(numbers: Tensor, whole: Whole) -> Optional[Packed]:
    """The numbers ``[n]`` in as few bits as hold them; None where it is seen that they are others."""
    with torch.no_grad():
        if whole.largest > 1:
            small = (numbers if whole.unit == 1.0 else numbers.mul(1 / whole.unit)).to(torch.uint8)
            same = small.to(numbers.dtype).mul_(whole.unit) == numbers
            same &= small <= whole.largest
        else:
            small = numbers != 0
            same = numbers == (small if whole.unit == 1.0 else small * whole.unit)
        data = small if whole.bits == 8 else _gathered(small, whole.bits)
        right = None
        if numbers.device.type != "cpu":
            right = torch.where(same.all(), 1.0, float("nan"))
        elif not same.all():
            return None
        return Packed(data, right, whole, numbers.numel(), numbers.dtype)


def shared(kept: Packed, made: Packed) -> Optional[Packed]:
    """``made`` with the bits of ``kept``, packed of the same memory before; None where they are seen to differ.

    Something may have written into that memory in between without autograd's knowledge, as with ``tensor.data``.
    """
    if kept.data is None or made.data is None or kept.whole != made.whole:
        return None
    if made.right is None:
        return kept if torch.equal(kept.data, made.data) else None
    return replace(kept, right=torch.where((kept.data == made.data).all(), made.right, float("nan")))


def _gathered(small: Tensor, bits: int) -> Tensor:
    """Bytes with numbers of so many bits, side by side in fewer bytes."""
    word, factor = _GATHER[bits]
    each = 8 // bits
    rest = -small.numel() % each
    if rest:
        small = torch.nn.functional.pad(small, (0, rest))
    # a copy of the highest byte of each word, since the words are as large as the bytes
    return small.view(word).mul(factor).view(torch.uint8)[each - 1 :: each].clone()


def is_dense(shape: Tuple[int, ...], stride: Tuple[int, ...]) -> bool:
    """Whether the numbers fill their memory, each place once."""
    expected = 1
    for step, size in sorted(zip(stride, shape)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True
