"""Spikes as bits: a kernel that packs small whole numbers, and one that unpacks them, each in one pass.

Every block says by a number of its own whether what it packed was right, so that nothing is set before a launch. The
least of these is that of all, since a minimum with NaN is NaN; unpacking multiplies by it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikecore.backend import Bits, Whole
from spikecore_triton.compiler import options

#: Numbers of a block: 32 of a thread.
BLOCK = 4096


@triton.jit
def pack_bits(
    numbers, data, right, count: tl.int64, unit: tl.float32, inverse: tl.float32, largest: tl.float32,
    BITS: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """``BYTES`` bytes of a block."""
    place = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    each = tl.arange(0, 8 // BITS)
    i = place[:, None] * (8 // BITS) + each[None, :]
    x = tl.load(numbers + i, mask=i < count, other=0.0).to(tl.float32)
    k = x * inverse
    n = tl.where((k >= 0.0) & (k <= largest), k, 0.0).to(tl.int32)
    wrong = tl.sum(tl.sum((n.to(tl.float32) * unit != x).to(tl.int32), 1), 0)
    byte = tl.sum(n << (each * BITS)[None, :], 1)
    tl.store(data + place, byte.to(tl.uint8), mask=place * (8 // BITS) < count)
    tl.store(right + tl.program_id(0), tl.where(wrong == 0, 1.0, float("nan")))


@triton.jit
def unpack_bits(numbers, data, right, count: tl.int64, unit: tl.float32, BITS: tl.constexpr, BYTES: tl.constexpr):
    """``BYTES`` bytes of a block."""
    place = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    each = tl.arange(0, 8 // BITS)
    i = place[:, None] * (8 // BITS) + each[None, :]
    byte = tl.load(data + place, mask=place * (8 // BITS) < count, other=0).to(tl.int32)
    n = (byte[:, None] >> (each * BITS)[None, :]) & ((1 << BITS) - 1)
    # NaN if something was wrong, and then every number is
    scale = unit * tl.load(right)
    tl.store(numbers + i, n.to(tl.float32) * scale, mask=i < count)


def pack(numbers: Tensor, whole: Whole) -> Bits:
    """Implementation of :meth:`spikecore.backend.Backend.pack`."""
    count, bits = numbers.numel(), whole.bits
    data = torch.empty(-(-count * bits // 8), dtype=torch.uint8, device=numbers.device)
    right = torch.empty(-(-count // BLOCK), dtype=torch.float32, device=numbers.device)
    _launch(pack_bits, bits, numbers, data, right, count, whole.unit, 1 / whole.unit, float(whole.largest))
    return Bits(data, right.amin())


def unpack(bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
    """Implementation of :meth:`spikecore.backend.Backend.unpack`."""
    data = bits.data.contiguous()
    numbers = torch.empty(count, dtype=dtype, device=data.device)
    _launch(unpack_bits, whole.bits, numbers, data, bits.right, count, whole.unit)
    return numbers


def _launch(kernel: Any, bits: int, numbers: Tensor, *arguments: Any) -> None:
    blocks = -(-numbers.numel() // BLOCK)
    kernel[(blocks,)](numbers, *arguments, BITS=bits, BYTES=BLOCK * bits // 8, **options())
