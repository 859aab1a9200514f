"""Products with a matrix that is mostly zeros: rows of the other matrix, added up.

A row of ``x @ table`` is the sum of the rows of ``table`` for which ``x`` has a number other than 0, each times that
number. A kernel lists these numbers, block by block, and gives up where there are too many: a dense product is then
quicker. Sums begin with the bias and are in the order of the columns of ``x``, so that a row does not depend on the
others. For ``x.t() @ table`` the numbers of a block are sorted by their columns, and sums are in the order of the rows.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from spikecore.backend import compute_dtype
from spikecore.kernels.writing import Argument, indented
from spikecore_numba.compiler import INTS, Function, compiled, processor
from spikecore_numba.pages import prefer_large_pages
from spikecore_numba.threads import WORTHWHILE, Scratch, over_blocks
from spikecore_numba.writer import STORAGE, Source

#: Rows of x that are listed together.
BLOCK = 256
#: Of a block rows so far apart are looked at first. Few batches are a multiple of it, so all of their samples are seen.
APART = 7
#: Columns of x whose sums one thread computes at least.
UNIT = 64


class _Cost(NamedTuple):
    """Nanoseconds of products in one dtype."""

    #: Of a dense product: of a call; of a multiplication with up to FEW rows, and with more; what the first row adds.
    call: float
    few: float
    many: float
    first: float
    #: Of an addition, by the bytes of the table, up to 2 to this power.
    added: Mapping[int, float]
    #: Of a number of a table above LARGE that lies by input, and that a dense product copies.
    laid: float = 0.0


# Rows are added where they take at most MARGIN of the time of a dense product, by an estimate of both. It was measured
# beside ``torch.nn.functional.linear`` and the product of its weight's gradient: torch 2.13, one thread, products of
# 128x128 to 1024x1024, 1 to 1280 rows, 1 to 50 % of spikes, other inputs at each call, the least of rounds in which all
# take turns, on an AMD EPYC (Zen 5, AVX-512). Where a prototype of the kernels was worse off on an Intel Xeon (AVX-512,
# AMX), of 128x128 to 4096x4096 and up to 3200 rows, its figures are here: of tables above 1 MiB, and all with AMX. Of
# many rows the figure is between those of both, 0.0125 and 0.02. Those of float64 are twice those of float32.
MARGIN, FEW, LARGE = 0.9, 32, 1 << 22
COSTS: Mapping[str, _Cost] = {
    "float32": _Cost(2500, 0.0225, 0.016, 0.04, {18: 0.025, 20: 0.032, 22: 0.068, 62: 0.145}),
    "float64": _Cost(2500, 0.045, 0.032, 0.08, {19: 0.05, 21: 0.064, 23: 0.136, 62: 0.29}),
    "bfloat16": _Cost(10_000, 0.0045, 0.0045, 0.08, {18: 0.04, 22: 0.026, 62: 0.1}, 0.15),
    "bfloat16 with AMX": _Cost(10_000, 0.002, 0.002, 0.1, {18: 0.04, 22: 0.065, 62: 0.13}),
}
#: Of a call, of a number of x that is listed, and of a number of a table that is copied since it lies the other way.
CALL, LISTED, COPIED = 9500, 0.3, 0.5
#: Of products with ``x.t()``: of a call, and of a number of the result in each block.
CALL_BY_COLUMNS, SUMMED = 10_000, 0.1
#: A dense product that takes less is not worth a look at x, unless rows are added up to this share.
SHORT, ANY = 300_000, 0.305
#: What of a dense product one thread does alone.
ALONE = 30_000
#: Of keeping an input as bits for backward: of a call, and of a number. Rows pay for that at a share of TYPICAL.
BITS_CALL, BITS, TYPICAL = 300_000, 0.8, 0.05
#: The largest share of numbers other than 0.
LARGEST = 0.4

#: Numbers of a result that is computed in the call that lists, at most.
AT_ONCE = 1 << 14

_scratch = Scratch()


@functools.lru_cache(maxsize=256)
def share(
    rows: int,
    count: int,
    width: int,
    dtype: torch.dtype,
    threads: int = 1,
    copied: bool = False,
    by_columns: bool = False,
) -> float:
    """The largest share of numbers other than 0 for which rows are added: of ``x [rows, count]``, for ``x @ table``
    ``[rows, width]``, or with ``by_columns`` for ``x.t() @ table`` ``[count, width]``. 0 for none.
    """
    times = _estimate(rows, count, width, dtype, threads, copied, by_columns)
    if times is None:
        return 0.0
    dense, own, added = times
    largest = min(LARGEST, (MARGIN * dense - own) / added)
    return 0.0 if dense < SHORT and largest < ANY else max(0.0, largest)


@functools.lru_cache(maxsize=256)
def pays_for_bits(rows: int, count: int, width: int, dtype: torch.dtype, threads: int = 1) -> bool:
    """True if output and gradient of the weight by rows save what it takes to keep ``x [rows, count]`` as bits."""
    saved = 0.0
    for by_columns in (False, True):
        times = _estimate(rows, count, width, dtype, threads, False, by_columns)
        dense, own, added = times or (0.0, 0.0, 0.0)
        saved += max(0.0, dense - own - TYPICAL * added)
    return saved > BITS_CALL + BITS * rows * count


def _estimate(
    rows: int, count: int, width: int, dtype: torch.dtype, threads: int, copied: bool, by_columns: bool
) -> Optional[Tuple[float, float, float]]:
    """Nanoseconds of a dense product, of one by rows without additions, and of all additions; None if not known."""
    name = str(dtype)[6:]
    cost = COSTS.get("bfloat16 with AMX" if name == "bfloat16" and _has_amx() else name)
    work = rows * count * width
    if cost is None or not work:
        return None
    # each sum has as many summands as the table has rows
    sums, summands = (count, rows) if by_columns else (rows, count)
    dense = cost.call + work * ((cost.few if sums <= FEW else cost.many) + cost.first / sums)
    size = count * width * torch.finfo(dtype).bits // 8
    dense += cost.laid * count * width * (not by_columns and size > LARGE)
    dense = max(dense / threads, min(dense, ALONE))
    parts = min(threads, -(-count // UNIT) if by_columns else -(-rows // BLOCK))
    own = rows * count * LISTED / parts + copied * summands * width * COPIED
    if by_columns:
        own += CALL_BY_COLUMNS + -(-rows // BLOCK) * count * width * SUMMED / parts
        summands = min(rows, BLOCK)
    else:
        own += CALL
    size = summands * width * torch.finfo(dtype).bits // 8
    added = next(each for power, each in cost.added.items() if size <= 1 << power)
    return dense, own, work * added / parts


@functools.lru_cache(maxsize=None)
def _has_amx() -> bool:
    return "+amx-bf16" in processor()[1].split(",")


def product(x: Tensor, table: Tensor, bias: Optional[Tensor], always: bool) -> Optional[Tensor]:
    """Implementation of :meth:`spikecore.backend.Backend.sparse_product`."""
    by_columns = not x.is_contiguous()
    by_rows = x.t() if by_columns else x
    (rows, count), width = by_rows.shape, table.shape[1]
    copied = not table.is_contiguous()
    most = count
    if not always:
        most = int(count * share(rows, count, width, x.dtype, torch.get_num_threads(), copied, by_columns))
    if most < 1 or not by_rows.is_contiguous() or (by_columns and bias is not None):
        return None
    run, pack = _kernels(x.dtype).adding
    blocks = -(-rows // BLOCK)
    stride = min(rows, BLOCK) * most * 5 // 4 + count
    # a large result is allocated when it is known to be needed: the system gives and takes its memory page by page
    at_once = blocks == 1 and rows * width <= AT_ONCE and not copied and not by_columns
    # sums in the dtype of arithmetic, the listed columns of each block, the ends of each row's, and how many in all
    parts = 8 * blocks * width, 4 * blocks * stride, 4 * (rows + blocks)
    # held in a local variable until the kernels are done: see Scratch.memory
    memory = _scratch.memory(sum(parts)) if at_once else torch.empty(sum(parts), dtype=torch.uint8, device="cpu")
    sums = memory.data_ptr()
    places, ends = sums + parts[0], sums + parts[0] + parts[1]
    numbers = x.data_ptr(), places, ends
    sizes = rows, count, most, stride, width, bias is not None
    tensors = x, memory
    if not at_once:
        over_blocks(lambda i, j: run(pack(i, j, *sizes, 1, 0, *numbers, 0, 0, 0, 0)), blocks, x.numel(), tensors)
        totals = memory[-4 * blocks :].view(torch.int32).tolist()
        if min(totals) < 0:
            return None
        table = table.contiguous()
    if by_columns:
        return _by_columns(numbers, sizes, table, sum(totals) * width, tensors)
    out = _empty(rows, width, x.dtype)
    bias = None if bias is None else bias.contiguous()
    read = table.data_ptr(), 0 if bias is None else bias.data_ptr(), sums, out.data_ptr()
    if at_once:
        run(pack(0, 1, *sizes, 1, 1, *numbers, *read))
        return None if ctypes.c_int32.from_address(ends + 4 * rows).value < 0 else out
    over_blocks(
        lambda i, j: run(pack(i, j, *sizes, 0, 1, *numbers, *read)),
        blocks,
        sum(totals) * width,
        (*tensors, table, bias, out),
    )
    return out


def _by_columns(numbers: Tuple[int, ...], sizes: Tuple[int, ...], table: Tensor, work: int, tensors: Any) -> Tensor:
    """``x.t() @ table`` of listed numbers, added in the dtype of arithmetic."""
    rows, count, _, stride, width, _ = sizes
    out = _empty(count, width, compute_dtype(table.dtype))
    run, pack = _kernels(table.dtype).adding_columns
    at = *numbers, table.data_ptr(), out.data_ptr()

    def some(begin: int, end: int) -> None:
        memory = _scratch.memory(4 * (stride + count + 1))
        run(pack(begin, end, rows, count, stride, width, *at, memory.data_ptr(), memory.data_ptr() + 4 * stride))

    over_blocks(some, -(-count // UNIT), work, (*tensors, table, out))
    return out if out.dtype == table.dtype else _empty(count, width, table.dtype).copy_(out)


def _empty(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Memory of a result: the system gives that of a large one page by page."""
    out = torch.empty((rows, width), dtype=dtype, device="cpu")
    if out.numel() >= WORTHWHILE:
        prefer_large_pages((out,))
    return out


# -- the kernels

_ADDING = ("begin", "end", "rows", "count", "most", "stride", "width", "biased", "lists", "adds")
_BY_COLUMNS = ("begin", "end", "rows", "count", "stride", "width")


class _Kernels(NamedTuple):
    """Functions, each with the packing of its arguments."""

    adding: Tuple[Function, Callable[..., bytes]]
    adding_columns: Tuple[Function, Callable[..., bytes]]


@functools.lru_cache(maxsize=None)
def _kernels(dtype: torch.dtype) -> _Kernels:
    return _Kernels(*(_made(source, dtype) for source in printed(dtype)))


def _made(source: Source, dtype: torch.dtype) -> Tuple[Function, Callable[..., bytes]]:
    layout = struct.Struct(f"{len(source.head) + len(source.arguments)}q")
    return compiled(source, dtype, compute_dtype(dtype)), layout.pack


def printed(dtype: torch.dtype) -> List[Source]:
    """Both kernels as text."""
    storage = STORAGE.get(dtype)
    real = "float64" if dtype == torch.float64 else "float32"
    value: Any = "from_{0}({1})" if storage else "{1}"
    read = functools.partial(value.format, storage)
    bits = " & 32767" if storage else ""  # without the sign, since -0 is 0
    stored = f"to_{storage}(sums[acc + j])" if storage else "sums[acc + j]"
    x, places, ends = (Argument("x", "pointer", "inputs"), *(Argument(n, "pointer", INTS) for n in ("places", "ends")))
    table, bias = (Argument(name, "pointer", "inputs") for name in ("table", "bias"))
    sums, out = Argument("sums", "pointer"), Argument("out", "pointer", "outputs")
    of_block = [f"first = b * {BLOCK}", f"last = min(first + {BLOCK}, rows)", "start = b * stride"]
    one = f"{read('x[{}]')} == 1"
    fired = f"1 if (x[n * count + i]{bits}) != 0 else 0"
    adding = [
        "for b in range(begin, end):",
        *indented(of_block),
        "    at, n, seen, room = start, first, 0, (last - first) * most",
        "    if lists:",
        f"        for n in range(first, last, {APART}):",
        "            for i in range(count):",
        f"                seen += {fired}",
        f"        if seen > (last - first + {APART - 1}) // {APART} * most:",
        "            ends[rows + b] = -1",
        "        else:",
        "            room += room // 4",
        "            n = first",
        "            while n < last and at - start <= room:",
        "                for i in range(count):",
        "                    places[at] = i",
        f"                    at += {fired}",
        "                ends[n] = at - start",
        "                n += 1",
        "            ends[rows + b] = at - start if at - start <= room else -1",
        "    if adds and ends[rows + b] >= 0:",
        "        acc = b * width",
        "        e = start",
        "        for n in range(first, last):",
        "            till = start + ends[n]",
        "            plain = True",
        "            for f in range(e, till):",
        f"                plain &= {one.format('n * count + places[f]')}",
        "            for j in range(width):",
        f"                sums[acc + j] = {read('bias[j]')} if biased else {real}(0)",
        *indented(indented(indented(_sums("acc", "places[e + {}]", "n * count + places[e + {}]", read)))),
        "            for j in range(width):",
        f"                out[n * width + j] = {stored}",
    ]
    columns = [
        f"low, high = begin * {UNIT}, min(end * {UNIT}, count)",
        "for k in range(low * width, high * width):",
        f"    sums[k] = {real}(0)",
        f"for b in range((rows + {BLOCK - 1}) // {BLOCK}):",
        *indented(of_block),
        "    plain = True",
        "    for i in range(high - low + 1):",
        "        ranks[i] = 0",
        "    for f in range(start, start + ends[last - 1]):",
        "        i = places[f] - low",
        "        if (i >= 0) & (i < high - low):",
        "            ranks[i + 1] += 1",
        "    for i in range(high - low):",
        "        ranks[i + 1] += ranks[i]",
        "    f = start",
        "    for n in range(first, last):",
        "        till = start + ends[n]",
        "        while f < till:",
        "            i = places[f] - low",
        "            if (i >= 0) & (i < high - low):",
        "                inner[ranks[i]] = n",
        "                ranks[i] += 1",
        f"                plain &= {one.format('n * count + places[f]')}",
        "            f += 1",
        "    e = 0",
        "    for i in range(low, high):",
        "        till = ranks[i - low]",
        "        acc = i * width",
        *indented(indented(_sums("acc", "inner[e + {}]", "inner[e + {}] * count + i", read))),
    ]
    inner, ranks = (Argument(name, "pointer", INTS) for name in ("inner", "ranks"))
    return [
        _source("add_rows", dtype, _ADDING, (x, places, ends, table, bias, sums, out), adding),
        _source("add_columns", dtype, _BY_COLUMNS, (x, places, ends, table, sums, inner, ranks), columns),
    ]


def _sums(at: str, place: str, number: str, read: Callable[[str], str]) -> List[str]:
    """Lines that add rows ``e`` to ``till`` of the table, several in one pass, one after the other."""

    def passes(several: int, times: bool) -> List[str]:
        total = f"sums[{at} + j]"
        for k in range(several):
            row = read(f"table[w{k} + j]")
            total = f"({total} + {f'v{k} * {row}' if times else row})"
        values = [f"v{k} = {read('x[' + number.format(k) + ']')}" for k in range(several) if times]
        return [
            f"while e + {several} <= till:",
            *(f"    w{k} = {place.format(k)} * width" for k in range(several)),
            *indented(values),
            "    for j in range(width):",
            f"        sums[{at} + j] = {total}",
            f"    e += {several}",
        ]

    plain = [line for several in (8, 4, 2, 1) for line in passes(several, False)]
    times = [line for several in (4, 1) for line in passes(several, True)]
    return ["if plain:", *indented(plain), "else:", *indented(times)]


def _source(
    name: str, dtype: torch.dtype, head: Tuple[str, ...], arguments: Tuple[Argument, ...], body: List[str]
) -> Source:
    storage = STORAGE.get(dtype)
    lines = [
        f'"""{name}: {str(dtype)[6:]} in memory."""',
        "",
        f"from numba import {'float64' if dtype == torch.float64 else 'float32'}",
        *([f"\nfrom spikecore_numba.functions import from_{storage}, to_{storage}"] if storage else []),
        "",
        "",
        f"def {name}({', '.join((*head, *(argument.name for argument in arguments)))}):",
        *indented(body),
    ]
    return Source(name, "\n".join(lines) + "\n", head, arguments, 0)
