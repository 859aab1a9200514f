"""Spikes as bits: loops that pack small whole numbers and unpack them, each in one pass.

Every block of numbers says by a number of its own whether what was packed of it was right, so that threads share
nothing. The least of these is that of all, since a minimum with NaN is NaN; who unpacks multiplies by it.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from spikecore.backend import Bits, Whole, compute_dtype
from spikecore.kernels.writing import Argument, indented
from spikecore_numba.compiler import BYTES, Function, compiled
from spikecore_numba.pages import prefer_large_pages
from spikecore_numba.threads import WORTHWHILE, over_blocks
from spikecore_numba.writer import STORAGE, Source

#: Numbers of a block: whole bytes, whatever the bits of a number.
BLOCK = 1 << 14

_HEAD = ("begin", "end", "count")
_OWN = (
    Argument("unit", "number"),
    Argument("inverse", "number"),
    Argument("largest", "number"),
    Argument("numbers", "pointer", "inputs"),
    Argument("data", "pointer", BYTES),
    Argument("right", "pointer"),
)


class _Kernel(NamedTuple):
    run: Function
    pack: Callable[..., bytes]


class Packer:
    """The kernels, each compiled when it is first needed."""

    def __init__(self) -> None:
        self._kernels: Dict[Tuple[str, int, torch.dtype], _Kernel] = {}

    def pack(self, numbers: Tensor, whole: Whole) -> Bits:
        """Implementation of :meth:`spikecore.backend.Backend.pack`."""
        count = numbers.numel()
        data = torch.empty(-(-count * whole.bits // 8), dtype=torch.uint8, device=numbers.device)
        right = torch.empty(-(-count // BLOCK), dtype=compute_dtype(numbers.dtype), device=numbers.device)
        self._over("pack", numbers, whole, data, right)
        return Bits(data, right.amin().float())

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        """Implementation of :meth:`spikecore.backend.Backend.unpack`."""
        data = bits.data.contiguous()
        numbers = torch.empty(count, dtype=dtype, device=data.device)
        if count >= WORTHWHILE:
            prefer_large_pages((numbers,))
        self._over("unpack", numbers, whole, data, bits.right.to(compute_dtype(dtype)))
        return numbers

    def _over(self, direction: str, numbers: Tensor, whole: Whole, data: Tensor, right: Tensor) -> None:
        count, dtype = numbers.numel(), numbers.dtype
        key = direction, whole.bits, dtype
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = _made(*key)
        units = whole.unit, 1 / whole.unit, float(whole.largest)
        places = numbers.data_ptr(), data.data_ptr(), right.data_ptr()
        run, pack = kernel

        def work(begin: int, end: int) -> None:
            run(pack(begin, end, count, *units, *places))

        over_blocks(work, -(-count // BLOCK), count, (numbers, data, right))


def _made(direction: str, bits: int, dtype: torch.dtype) -> _Kernel:
    source = printed(direction, bits, dtype)
    return _Kernel(compiled(source, dtype, compute_dtype(dtype)), struct.Struct("3q3d3q").pack)


def printed(direction: str, bits: int, dtype: torch.dtype) -> Source:
    """A kernel as text."""
    storage = STORAGE.get(dtype)
    name = f"{direction}_{bits}_bits"
    body = (_packing if direction == "pack" else _unpacking)(bits, storage)
    real = "float64" if dtype == torch.float64 else "float32"
    lines = [
        f'"""{bits} bits a number, {str(dtype)[6:]} in memory: {direction}."""',
        "",
        "import numpy as np",
        f"from numba import {real} as real",
        "from numba import uint8",
        *([f"\nfrom spikecore_numba.functions import from_{storage}, to_{storage}"] if storage else []),
        "",
        "",
        f"def {name}({', '.join((*_HEAD, *(argument.name for argument in _OWN)))}):",
        "    for block in range(begin, end):",
        *indented(indented(body)),
    ]
    return Source(name, "\n".join(lines) + "\n", _HEAD, _OWN, 0)


def _packing(bits: int, storage: Optional[str]) -> List[str]:
    each = 8 // bits
    number: Any = "from_{0}(numbers[{1}])" if storage else "numbers[{1}]"

    def one(place: str, j: int) -> List[str]:
        lines = [f"x = {number.format(storage, place)}"]
        if bits == 1:
            return [*lines, "n = 1 if x != 0 else 0", "wrong |= (x != 0) & (x != unit)", f"byte |= n << {j}"]
        return [
            *lines,
            "k = x * inverse",
            "n = int(k) if (k >= 0) & (k <= largest) else 0",
            "wrong |= real(n) * unit != x",
            f"byte |= n << {bits * j}",
        ]

    # written out: LLVM makes vector instructions of eight comparisons side by side, and not of an inner loop
    whole = [line for j in range(each) for line in one(f"{each} * b + {j}" if j else f"{each} * b", j)]
    tail = [
        line for j in range(each) for line in (f"if {each} * b + {j} < count:", *indented(one(f"{each} * b + {j}", j)))
    ]
    return [
        f"first = block * {BLOCK}",
        f"last = min(first + {BLOCK}, count)",
        "wrong = False",
        f"for b in range(first // {each}, last // {each}):",
        *indented(["byte = 0", *whole, "data[b] = byte"]),
        f"if last % {each}:",
        *indented([f"b = last // {each}", "byte = 0", *tail, "data[b] = byte"]),
        "right[block] = real(np.nan) if wrong else real(1.0)",
    ]


def _unpacking(bits: int, storage: Optional[str]) -> List[str]:
    each = 8 // bits
    written: Any = "to_{0}({1})" if storage else "{1}"

    def one(place: str, j: int) -> str:
        n = f"byte >> {bits * j} & {(1 << bits) - 1}" if each > 1 else "byte"
        value = f"one if {n} else zero" if bits == 1 else written.format(storage, f"real({n}) * scale")
        return f"numbers[{place}] = {value}"

    whole = [one(f"{each} * b + {j}" if j else f"{each} * b", j) for j in range(each)]
    tail = [
        line for j in range(each) for line in (f"if {each} * b + {j} < count:", f"    {one(f'{each} * b + {j}', j)}")
    ]
    return [
        f"first = block * {BLOCK}",
        f"last = min(first + {BLOCK}, count)",
        "# NaN if something was wrong, and then every number is",
        "scale = unit * right[0]",
        f"zero, one = {written.format(storage, 'real(0.0) * scale')}, {written.format(storage, 'scale')}",
        f"for b in range(first // {each}, last // {each}):",
        *indented(["byte = data[b]", *whole]),
        f"if last % {each}:",
        *indented([f"b = last // {each}", "byte = data[b]", *tail]),
    ]
