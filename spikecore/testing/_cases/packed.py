"""Spikes as bits, and products of spikes: ``Backend.pack``, ``unpack`` and ``sparse_product``."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.backend import Whole, compute_dtype
from spikecore.dtypes import DTYPES
from spikecore.testing._case import Collection
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator
from spikecore.testing._oracle import Array
from spikecore.testing.compare import Mismatch

#: The largest number of each number of bits, and one below it, with units beside 1.
WHOLES = (Whole(1), Whole(1, 0.25), Whole(2), Whole(3, 0.5), Whole(4, 0.25), Whole(15), Whole(16, 4.0), Whole(255))
#: Parts of a byte, of a group of bytes and of a block, and some of all that.
COUNTS = (1, 7, 8, 9, 63, 1025, 4096, 70_001)
#: Values that no number may have.
OTHERS = (-1.0, 0.75, 256.0, float("nan"), float("inf"), float("-inf"))


CASES = Collection()
_case = CASES.family("packed", "robust", computes=False)


def bytes_of(ks: Array, bits: int) -> Array:
    """The bytes that numbers are to become: the first one in the lowest bits."""
    each = 8 // bits
    filled = np.zeros(-(-len(ks) // each) * each, np.int64)
    filled[: len(ks)] = ks
    packed: Array = (filled.reshape(-1, each) << np.arange(0, 8, bits)).sum(1)
    return packed


def drawn(context: Context, whole: Whole, count: int, dtype: torch.dtype) -> Tuple[Array, Tensor]:
    """Whole numbers, the largest among them, and the tensor that holds them."""
    ks = generator("packed", whole.largest, count).integers(0, whole.largest + 1, count)
    ks[-1] = whole.largest
    return ks, context.tensor(ks * whole.unit, dtype)


def check(context: Context, bits: Any, whole: Whole, ks: Array, numbers: Tensor, which: str) -> None:
    """Compare bits with the bytes they are to be, and what they become with the numbers."""
    of = f"{which} {len(ks)} {numbers.dtype} numbers that are {whole}"
    expected = bytes_of(ks, whole.bits)
    data = bits.data.cpu().numpy()
    if bits.data.dtype != torch.uint8 or data.shape != expected.shape:
        raise Mismatch(
            f"pack() of {of} gave {bits.data.dtype} {list(data.shape)}, expected uint8 {list(expected.shape)}"
        )
    if not np.array_equal(data, expected):
        at = int(np.argmax(data != expected))
        raise Mismatch(f"pack() of {of}: byte {at} is {data[at]:#04x}, expected {int(expected[at]):#04x}")
    check_right(bits, of)
    if not bool(bits.right == 1):
        raise Mismatch(f"pack() of {of} says that they are not what they are said to be")
    back = context.backend.unpack(bits, whole, len(ks), numbers.dtype)
    if back.dtype != numbers.dtype or back.shape != numbers.shape or back.device != numbers.device:
        raise Mismatch(f"unpack() of {of} gave {back.dtype} {list(back.shape)} on {back.device}")
    if not torch.equal(back, numbers):
        at = int((back != numbers).nonzero()[0])
        raise Mismatch(f"unpack() of {of}: number {at} is {float(back[at])}, expected {float(numbers[at])}")


def check_right(bits: Any, of: str) -> None:
    """Check that the flag of valid bits is one number."""
    if bits.right.dtype != torch.float32 or bits.right.ndim:
        raise Mismatch(f"pack() of {of} gave right as {bits.right.dtype} {list(bits.right.shape)}, expected float32 []")


def numbers(context: Context, kind: str) -> None:
    """Every number of bits, every count."""
    for whole in WHOLES:
        for count in COUNTS:
            ks, tensor = drawn(context, whole, count, DTYPES[kind])
            check(context, context.backend.pack(tensor, whole), whole, ks, tensor, "")


for _kind in DTYPES:
    _holds = "numbers of 1, 2, 4 and 8 bits become the bytes that the contract says, and come back, of any count"
    _case(f"numbers-{_kind}", _holds, dtype=_kind, undeclared="nothing")(partial(numbers, kind=_kind))


@_case("address", "numbers that begin anywhere in memory, and bits that were moved to other memory")
def address(context: Context) -> None:
    """Numbers that begin at an odd place; the bits as a part of other bytes."""
    for whole in (Whole(1), Whole(3, 0.5), Whole(15), Whole(200)):
        ks, tensor = drawn(context, whole, 1003, torch.float32)
        for first in (1, 2, 3):
            wide = torch.cat([tensor[:first] + 7, tensor, tensor[:1] + 7])
            part = wide[first:-1]
            bits = context.backend.pack(part, whole)
            check(context, bits, whole, ks, part, f"(from number {first} of some memory)")
            moved = torch.cat([bits.data[:first], bits.data])[first:]
            check(context, bits._replace(data=moved), whole, ks, part, f"(bits from byte {first} of some memory)")


@_case("others", "what is not as it was said to be is told, wherever it is, and comes back as NaN")
def others(context: Context) -> None:
    """One number that is another one, first, last and between."""
    count = 5003
    for whole in (Whole(1), Whole(1, 0.5), Whole(3), Whole(5), Whole(15, 0.5), Whole(200)):
        wrongs: List[float] = [wrong * whole.unit for wrong in (*OTHERS, whole.largest + 1)]
        for wrong in wrongs:
            for at in (0, 2500, count - 1):
                _, tensor = drawn(context, whole, count, torch.float32)
                tensor[at] = wrong
                bits = context.backend.pack(tensor, whole)
                of = f"{count} numbers that are said to be {whole}, of which number {at} is {wrong}"
                check_right(bits, of)
                if not bool(bits.right.isnan()):
                    raise Mismatch(f"pack() of {of} takes them all for right")
                back = context.backend.unpack(bits, whole, count, tensor.dtype)
                if not bool(back.isnan().all()):
                    raise Mismatch(f"unpack() of {of} gives numbers, expected NaN everywhere")
    whole = Whole(3)
    _, tensor = drawn(context, whole, count, torch.float32)
    bits = context.backend.pack(torch.where(tensor == 0, -tensor, tensor), whole)
    if not bool(bits.right == 1):
        raise Mismatch(f"pack() of {count} numbers that are {whole} does not take -0 for 0")


def in_order(x: Array, table: Array, bias: Array) -> Array:
    """``x @ table + bias`` with sums that begin with the bias and go on in the order of the columns of ``x``."""
    total = np.repeat(bias[None], len(x), 0)
    for column, row in zip(x.T, table):
        total += column[:, None] * row
    return total


def products(context: Context, kind: str) -> None:
    """Rows of both layouts, of one block and several, of spikes and counts; and the product of the transposed."""
    dtype = DTYPES[kind]
    arithmetic = np.float64 if compute_dtype(dtype) == torch.float64 else np.float32
    for rows, count, width, largest in ((1, 9, 5, 1), (7, 130, 33, 1), (300, 70, 40, 3)):
        draw = generator("products", rows, largest)
        x = context.tensor(draw.integers(0, largest + 1, (rows, count)) * (draw.random((rows, count)) < 0.3), dtype)
        table, bias, g = (
            context.tensor(draw.normal(size=shape), dtype) for shape in ((count, width), (width,), (rows, width))
        )
        across = table.t().contiguous().t()
        none = torch.zeros_like(bias)
        each = {
            "x @ table + bias": (x, table, bias),
            "x @ table + bias, of a transposed table": (x, across, bias),
            "x.t() @ table": (x.t(), g, None),
        }
        for which, factors in each.items():
            found = context.backend.sparse_product(*factors, always=True)
            if found is None:
                continue
            numbers_of = [
                (none if factor is None else factor).double().cpu().numpy().astype(arithmetic) for factor in factors
            ]
            expected = torch.from_numpy(in_order(*numbers_of)).to(dtype)
            if found.shape != expected.shape or found.dtype != dtype or not torch.equal(found.cpu(), expected):
                raise Mismatch(f"sparse_product() of {which}, {rows} rows of {dtype}, is not the sum in order")


for _kind in DTYPES:
    _holds = "a product by rows, where a backend adds them, is a sum in the order of what fired, bit for bit"
    _case(f"products-{_kind}", _holds, dtype=_kind, undeclared="nothing")(partial(products, kind=_kind))
