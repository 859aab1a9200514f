"""Spikes as bits: ``Backend.pack`` and ``Backend.unpack``, alone and under ``sc.packed_spikes()``."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Tuple

import numpy as np
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.backend import Whole
from spikecore.dtypes import DTYPES
from spikecore.testing._case import Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._inputs import generator
from spikecore.testing._oracle import Array

#: The largest number of each number of bits, and one below it, with units beside 1.
WHOLES = (Whole(1), Whole(1, 0.25), Whole(2), Whole(3, 0.5), Whole(4, 0.25), Whole(15), Whole(16, 4.0), Whole(255))
#: Parts of a byte, of a group of bytes and of a block, and some of all that.
COUNTS = (1, 7, 8, 9, 63, 1025, 4096, 70_001)
#: What no number is to be.
OTHERS = (-1.0, 0.75, 256.0, float("nan"), float("inf"), float("-inf"))


def add_to(cases: Collection) -> None:
    """Add the cases of this theme."""

    def add(name: str, holds: str, run: Any, **more: Any) -> None:
        cases.add(f"packed/{name}", "robust", holds, run, computes=False, **more)

    for dtype in DTYPES:
        back = "numbers of 1, 2, 4 and 8 bits become the bytes that the contract says, and come back, of any count"
        add(f"numbers-{dtype}", back, partial(numbers, dtype=dtype), dtype=dtype, undeclared="nothing")
    add("address", "numbers that begin anywhere in memory, and bits that were moved to other memory", address)
    add("others", "what is not as it was said to be is told, wherever it is, and comes back as NaN", others)
    add("again", "numbers packed again share their bits, and are told apart where one has changed", again)
    cases.add(
        "packed/gradients",
        "robust",
        "a network under sc.packed_spikes() has the gradients of the plain one, to the bit",
        gradients,
        ("gradients",),
    )


def bytes_of(ks: Array, bits: int) -> Array:
    """The bytes that numbers are to become: the first one in the lowest bits."""
    each = 8 // bits
    filled = np.zeros(-(-len(ks) // each) * each, np.int64)
    filled[: len(ks)] = ks
    found: Array = (filled.reshape(-1, each) << np.arange(0, 8, bits)).sum(1)
    return found


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
    if not bool((bits.right == 1).all()):
        raise Mismatch(f"pack() of {of} says that they are not what they are said to be")
    back = context.backend.unpack(bits, whole, len(ks), numbers.dtype)
    if back.dtype != numbers.dtype or back.shape != numbers.shape or back.device != numbers.device:
        raise Mismatch(f"unpack() of {of} gave {back.dtype} {list(back.shape)} on {back.device}")
    if not torch.equal(back, numbers):
        at = int((back != numbers).nonzero()[0])
        raise Mismatch(f"unpack() of {of}: number {at} is {float(back[at])}, expected {float(numbers[at])}")


def numbers(context: Context, dtype: str) -> None:
    """Every number of bits, every count."""
    for whole in WHOLES:
        for count in COUNTS:
            ks, tensor = drawn(context, whole, count, DTYPES[dtype])
            check(context, context.backend.pack(tensor, whole), whole, ks, tensor, "")


def address(context: Context) -> None:
    """Numbers that begin at an odd place; the bits as a part of other bytes."""
    for whole in (Whole(1), Whole(3, 0.5), Whole(15), Whole(200)):
        ks, tensor = drawn(context, whole, 1003, torch.float32)
        for first in (1, 2, 3):
            wide = torch.cat([tensor[:first] + 7, tensor, tensor[:1] + 7])
            part = wide[first:-1]
            found = context.backend.pack(part, whole)
            check(context, found, whole, ks, part, f"(from number {first} of some memory)")
            moved = torch.cat([found.data[:first], found.data])[first:]
            check(context, found._replace(data=moved), whole, ks, part, f"(bits from byte {first} of some memory)")


def others(context: Context) -> None:
    """One number that is another one, first, last and between."""
    count = 5003
    for whole in (Whole(1), Whole(1, 0.5), Whole(3), Whole(5), Whole(15, 0.5), Whole(200)):
        wrongs: List[float] = [wrong * whole.unit for wrong in (*OTHERS, whole.largest + 1)]
        for wrong in wrongs:
            for at in (0, 2500, count - 1):
                _, tensor = drawn(context, whole, count, torch.float32)
                tensor[at] = wrong
                found = context.backend.pack(tensor, whole)
                of = f"{count} numbers that are said to be {whole}, of which number {at} is {wrong}"
                if not bool(found.right.isnan().any()):
                    raise Mismatch(f"pack() of {of} takes them all for right")
                back = context.backend.unpack(found, whole, count, tensor.dtype)
                if not bool(back[at].isnan()):
                    raise Mismatch(f"unpack() of {of} gives {float(back[at])} there, expected NaN")
    whole = Whole(3)
    _, tensor = drawn(context, whole, count, torch.float32)
    found = context.backend.pack(torch.where(tensor == 0, -tensor, tensor), whole)
    if not bool((found.right == 1).all()):
        raise Mismatch(f"pack() of {count} numbers that are {whole} does not take -0 for 0")


def again(context: Context) -> None:
    """``like``: the same numbers, and numbers of which one has changed to another one that fits."""
    count = 5003
    for whole in (Whole(1), Whole(3), Whole(15), Whole(255)):
        ks, tensor = drawn(context, whole, count, torch.float32)
        first = context.backend.pack(tensor, whole)
        second = context.backend.pack(tensor, whole, first.data)
        if second.data.data_ptr() != first.data.data_ptr():
            raise Mismatch(f"pack() of {count} numbers that are {whole} made other bits than those it was given")
        check(context, second, whole, ks, tensor, "(packed again)")
        for at in (0, 2500, count - 1):
            changed = tensor.clone()
            changed[at] = 1 - tensor[at].clamp(max=1)
            found = context.backend.pack(changed, whole, first.data)
            of = f"{count} numbers that are {whole}, of which number {at} has changed since these bits were packed"
            back = context.backend.unpack(found, whole, count, tensor.dtype)
            if not bool(found.right.isnan().any()) or not bool(back[at].isnan()):
                raise Mismatch(f"pack() of {of} takes them for right")
            check(context, context.backend.pack(tensor, whole, first.data), whole, ks, tensor, "(as before)")


def gradients(context: Context) -> None:
    """Spikes, averages of them and sums, which layers save for the gradients of their weights."""
    found = []
    for pack in (False, True):
        torch.manual_seed(0)
        first, second = context.place(nn.Linear(40, 203)), context.place(nn.Linear(203, 5))
        # about half of the neurons fire, so that a bit that is lost is one
        one, other = (sc.LIF(threshold=0.1, backend=context.name) for _ in range(2))
        x = context.tensor(generator("packed", "x").uniform(0, 3, (5, 7, 40)))

        def run() -> Tensor:
            z = one(first(x))  # noqa: B023  # called in this turn of the loop
            y = other(first(x).flip(0)) + z  # noqa: B023
            pooled = nn.functional.avg_pool1d(z.flatten(0, 1), 4)
            loss: Tensor = second(y).square().sum() + (pooled * pooled).sum() + second(z).sum()  # noqa: B023
            return loss

        if pack:
            with sc.packed_spikes() as packs:
                loss = run()
            if not packs.before > packs.after > 0:
                raise Mismatch(f"sc.packed_spikes() packed nothing of what neurons on {context.name!r} gave")
        else:
            loss = run()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in (*first.parameters(), *second.parameters()))])
    for plain, packed in zip(*found):
        if not torch.equal(plain, packed):
            worst = float((plain - packed).abs().max())
            raise Mismatch(f"under sc.packed_spikes() a gradient differs from the plain one by {worst:g}")
