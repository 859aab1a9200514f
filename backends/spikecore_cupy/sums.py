"""Sums over a channel: within the blocks of a kernel, of the blocks' numbers, and of an input for its statistics.

The threads of a block add up what they have of each channel, so that little is left in memory. The order of every sum
is fixed: the same bits at every run.

Mean and standard deviation of each channel take one pass over an input. Each thread adds up its numbers less its own
last one, and the squares of that: no digits are lost where the mean is far from 0, and one number far from all others
costs the digits of one thread. Means and squares of threads, and then of blocks, are put together in a fixed order
(Chan, Golub and LeVeque, 1983).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Spec
from spikecore.kernels import KERNELS, Geometry, Moved, Recent
from spikecore_cupy.device import shared
from spikecore_cupy.text import TYPES

#: Threads at most of a block of a kernel that adds up what blocks left, and channels that lie side by side in one:
#: memory is read in sectors of 32 bytes, and with more channels a thread waits for memory several times.
THREADS, SIDE = 1024, 8
#: Numbers that such a thread loads before it adds up the first, as ``ChannelNumbers`` has it, and threads of a warp.
LOADED, WARP = 8, 32


class Arrangement(NamedTuple):
    """Threads of a block that have the same channels, and the sums that a block leaves."""

    #: Threads of a block.
    block: int
    #: Neighbouring threads that lie in one channel; 0 where each neuron of a thread has a channel of its own.
    lanes: int
    #: Without lanes: after how many neurons of a block the channels begin again.
    period: int
    #: Numbers that a block leaves. Number k of all blocks, one behind the other, is of channel k // inner % channels.
    numbers: int
    inner: int


def arrangement(width: int, inner: int, channels: int, most: int) -> Optional[Arrangement]:
    """Arrangement of blocks of at most ``most`` threads, each with ``width`` neighbouring neurons, that add up channels
    ``inner`` neurons apart; None where channels and threads do not fit.
    """
    if inner == 1:
        if channels % width:
            return None
        threads = channels // width
        if threads > most:
            # every neuron of a block has another channel: there is nothing to add up within it
            return Arrangement(most, 0, most * width, most * width, 1)
        return Arrangement(most // threads * threads, 0, channels, channels, 1)
    if inner % width:
        return None
    lanes = inner // width
    if lanes <= most:
        return Arrangement(most // lanes * lanes, lanes, 0, most // lanes, 1)
    block = next(count for count in range(most, 0, -1) if lanes % count == 0)
    # blocks of few threads would leave most of a multiprocessor idle
    return Arrangement(block, block, 0, 1, lanes // block) if 4 * block >= most else None


#: Bytes that memory moves together. Neighbouring threads of a tile have as many at least, and are as many as have a
#: float32 each of them; with more of them fewer neurons of a block read one number, and more sums are left.
SECTOR = 32
NEIGHBOURS = SECTOR // 4
#: Sums that a block leaves of an input with one number a step, where it has as many threads.
FEW = 8


class Tiling(NamedTuple):
    """Blocks that add up gradients of inputs that broadcast, ``Tile`` in their text."""

    tile: int
    blocks: int
    #: Numbers that all blocks leave of a step, by the kind of the input.
    numbers: Dict[str, int]


def tiling(width: int, neurons: int, period: int, threads: int, size: int) -> Tiling:
    """Tiles of blocks of so many threads, each with ``width`` neighbouring neurons of ``size`` bytes in memory. Without
    a period, 0, a tile is all that a block has.
    """
    period = period or neurons
    rows = neurons // period
    apart = min(threads, max(NEIGHBOURS, SECTOR // (width * size), threads // rows))
    tile = min(period, apart * width)
    lines = -(-rows // (threads // (tile // width)))
    blocks = -(-period // tile) * lines
    return Tiling(tile, blocks, {"period": lines * period, "step": blocks * min(FEW, threads)})


class Adding(NamedTuple):
    """Second kernel of a sum, which adds up the numbers of blocks: the threads of a block, and its channels."""

    threads: int
    side: int


@lru_cache(maxsize=1024)
def adding(numbers: int, channels: int, inner: int, most: int) -> Adding:
    """For ``numbers`` that lie as an :class:`Arrangement` says, by blocks of at most ``most`` threads.

    A thread has :data:`LOADED` numbers where there are enough, and waits for memory once. Blocks of 1024 threads for
    eight numbers of a channel took 4.5 us on an H200, of which most went into waiting for one another.
    """
    # neighbouring numbers of as many channels are read in one access
    side = min(SIDE, most) if inner == 1 else 1
    lines = -(-(-(-numbers // (channels * inner)) * inner) // LOADED)
    return Adding(min(most, -(-lines * side // WARP) * WARP), side)


#: Parameters whose sums one launch adds up at most: weight and bias of two normalised inputs.
ROWS = 4


class Totals:
    """Adds up what blocks left, for several parameters in one launch."""

    def __init__(self, kernel: Callable[..., Any], compute: torch.dtype) -> None:
        real = TYPES[compute]
        types = ("int", "int", "int", "int", "int", f"const {real}*", *[f"{real}*"] * ROWS)
        self._run = shared(kernel, "channel_totals", _TEXT.replace("REAL", real), types)
        self._most = THREADS if self._run.block > 1 else 1

    def __call__(self, parts: Tensor, channels: int, inner: int) -> Sequence[Tensor]:
        """The sums ``[channels]`` of each row of ``parts``, see :class:`Arrangement`."""
        rows, numbers = parts.shape
        threads, side = adding(numbers, channels, inner, self._most)
        groups = -(-channels // side)
        # tensors of their own: views of one would be gradients that share memory
        sums = [parts.new_empty(channels) for _ in range(rows)]
        start, apart = parts.data_ptr(), numbers * parts.element_size()
        for row in range(0, rows, ROWS):
            some = [value.data_ptr() for value in sums[row : row + ROWS]]
            blocks = len(some) * groups
            some += some[:1] * (ROWS - len(some))
            arguments = (numbers, channels, inner, side, groups, start + row * apart, *some)
            self._run(blocks, parts.get_device(), arguments, threads)
        return sums


_TEXT = f"""\
#include "spikecore.cuh"

// The sums over each channel of what blocks left, of one parameter to four.
extern "C" __global__ void __launch_bounds__({THREADS}) channel_totals(
    const int numbers, const int channels, const int inner, const int side, const int groups,
    const REAL* __restrict__ parts, REAL* __restrict__ first, REAL* __restrict__ second, REAL* __restrict__ third,
    REAL* __restrict__ fourth
) {{
    BLOCK_SHARED REAL found[{THREADS}];
    const int row = blockIdx.x / groups, c = blockIdx.x % groups * side + threadIdx.x % side;
    const REAL* from = parts + (long long)row * numbers;
    const ChannelNumbers of(numbers, channels, inner, side, c);
    REAL total[] = {{of.sum<REAL>([=](unsigned at) {{ return from[at]; }})}};
    lines_totals(found, total, side);
    if (threadIdx.x < side && c < channels) (row > 1 ? row > 2 ? fourth : third : row ? second : first)[c] = total[0];
}}
"""


#: Threads of a block, and blocks of a launch: two for each multiprocessor of an H200 (three took 24.0 us instead of
#: 23.3, in a small layer 8.8 instead of 7.5). The same on every GPU, since the order of a sum decides its bits.
BLOCK, BLOCKS = 256, 264


class _Plan(NamedTuple):
    """Launch of the first kernel on inputs of one size; ``first`` is None if it does not take them."""

    first: Any
    #: Arguments before the pointers.
    sizes: Tuple[int, ...]
    blocks: int
    block: int
    #: Numbers that blocks leave, of how many channels, and how these lie: see :class:`Arrangement`.
    numbers: int
    channels: int
    inner: int
    #: Numbers of a channel.
    each: float


class Statistics:
    """The two kernels, for inputs of one dtype."""

    def __init__(self, kernel: Callable[..., Any], spec: Spec) -> None:
        self.kernel, self.compute = kernel, spec.compute
        self._stored, self._real = TYPES[spec.dtype], TYPES[spec.compute]
        self._bits = torch.finfo(spec.dtype).bits
        #: By neighbouring numbers of a thread, and by the dtype of running statistics.
        self._first: Dict[int, Any] = {}
        self._last: Dict[torch.dtype, Any] = {}
        self._plans: Recent[Any, _Plan] = Recent(KERNELS)

    def __call__(
        self,
        geometry: Geometry,
        x: Tensor,
        eps: float,
        running: Optional[Moved],
    ) -> Optional[Tuple[Tensor, Tensor]]:
        """Implementation of :meth:`spikecore.kernels.KernelBackend.statistics`."""
        step, pointer, device = x.stride(0), x.data_ptr(), x.get_device()
        aligned = pointer & 15
        # layers of a network have few sizes, and a call has to be quick
        plan = self._plans.get((geometry, step, aligned)) or self._planned(geometry, step, aligned)
        if plan.first is None:
            return None
        parts = torch.empty((3, plan.numbers), dtype=self.compute, device=x.device)
        plan.first(plan.blocks, device, (*plan.sizes, pointer, parts.data_ptr()), plan.block)
        mean, variance, count, factor = running or (None, None, None, 0.0)
        dtype = x.dtype if mean is None else mean.dtype
        last = self._last.get(dtype) or self._finishing(dtype)
        sums = parts.new_empty(plan.channels), parts.new_empty(plan.channels)
        pointers = [0 if value is None else value.data_ptr() for value in (mean, variance, count)]
        threads, side = adding(plan.numbers, plan.channels, plan.inner, THREADS if last.block > 1 else 1)
        pointers = [parts.data_ptr(), sums[0].data_ptr(), sums[1].data_ptr(), *pointers]
        arguments = (plan.numbers, plan.channels, plan.inner, side, *pointers, plan.each, eps, factor)
        last(-(-plan.channels // side), device, arguments, threads)
        return sums

    def _planned(self, geometry: Geometry, step: int, aligned: int) -> _Plan:
        """The launch of the first kernel for inputs of these sizes, at addresses that lie so far behind a multiple
        of 16.
        """
        steps, neurons, ((inner, channels),) = geometry[:3]
        if step == neurons:
            # dense steps are read as one
            steps, neurons = 1, steps * neurons
        # 16 bytes, or what sizes and alignment allow, of which all lie in one channel or each in another
        width = 128 // self._bits
        bits = neurons | step | aligned * 8 // self._bits | (channels if inner == 1 else inner)
        while bits % width:
            width //= 2
        first = self._first.get(width) or self._made(width)
        arranged = arrangement(width, inner, channels, BLOCK if first.block > 1 else 1)
        if arranged is None:
            return self._plans.put((geometry, step, aligned), _Plan(None, (), 0, 0, 0, 0, 0, 0.0))
        # all groups of a thread lie in the same channels
        period, whole = inner * channels, arranged.block * width
        span = min(-(-neurons // period), max(1, BLOCKS * whole // period)) * period
        blocks = -(-span // whole)
        numbers = blocks * arranged.numbers
        sizes = (neurons, step, span, numbers, steps, arranged.lanes, arranged.period)
        plan = _Plan(
            first, sizes, blocks, arranged.block, numbers, channels, arranged.inner, steps * neurons / channels
        )
        return self._plans.put((geometry, step, aligned), plan)

    def _made(self, width: int) -> Any:
        text = _FIRST.replace("STORED", self._stored).replace("REAL", self._real).replace("WIDTH", str(width))
        types = (*["long long"] * 4, *["int"] * 3, f"const {self._stored}*", f"{self._real}*")
        kernel = self._first[width] = shared(self.kernel, "channel_moments", text, types)
        return kernel

    def _finishing(self, dtype: torch.dtype) -> Any:
        text = _LAST.replace("HELD", TYPES[dtype]).replace("REAL", self._real)
        real, stored = f"{self._real}*", f"{TYPES[dtype]}*"
        pointers = (f"const {real}", real, real, stored, stored, "long long*")
        types = (*["int"] * 4, *pointers, *[self._real] * 3)
        kernel = self._last[dtype] = shared(self.kernel, "channel_statistics", text, types)
        return kernel


_FIRST = f"""\
#include "spikecore.cuh"

constexpr int V = WIDTH;  // neighbouring numbers of a thread
constexpr int L = 8;  // loads of a thread that are under way together, and as many behind them

// Mean, squares about it and count of the numbers that a block has of each channel.
extern "C" __global__ void __launch_bounds__({BLOCK}, 2) channel_moments(
    const long long neurons, const long long step, const long long span, const long long numbers, const int steps,
    const int lanes, const int period, const STORED* __restrict__ xs, REAL* __restrict__ parts
) {{
    BLOCK_SHARED REAL scratch[2 * {BLOCK} * V];
    const long long first = V * (blockIdx.x * (long long)blockDim.x + threadIdx.x);
    // a thread has the numbers at first, first + span, ... of every step
    const long long groups = first < span && first < neurons ? (neurons - first + span - 1) / span : 0;
    const long long over = step - groups * span, count = groups * steps;
    Pack<REAL, V> shift, total, squares;
    #pragma unroll
    for (int j = 0; j < V; ++j) shift[j] = total[j] = squares[j] = 0;
    if (count) {{
        // from the last number to the first: what the layer before wrote last is in the cache
        const STORED* at = xs + (steps - 1) * step + first + (groups - 1) * span;
        long long left = count, group = groups;
        const auto taken = [&]() {{
            const Pack<STORED, V> found = load<V>(at);
            at -= span;
            if (--group == 0) at -= over, group = groups;
            return found;
        }};
        const auto add = [&](const Pack<STORED, V>& x) {{
            #pragma unroll
            for (int j = 0; j < V; ++j) {{
                const REAL away = value(x[j]) - shift[j];
                total[j] += away;
                squares[j] = multiply_add(away, away, squares[j]);
            }}
        }};
        const Pack<STORED, V> start = load<V>(at);
        #pragma unroll
        for (int j = 0; j < V; ++j) shift[j] = value(start[j]);
        Pack<STORED, V> x[L], next[L];
        if (left >= L) {{
            #pragma unroll
            for (int k = 0; k < L; ++k) x[k] = taken();
        }}
        for (; left >= 2 * L; left -= L) {{
            // what is added next is under way while this is added
            #pragma unroll
            for (int k = 0; k < L; ++k) next[k] = taken();
            #pragma unroll
            for (int k = 0; k < L; ++k) add(x[k]), x[k] = next[k];
        }}
        const int rest = left % L;
        #pragma unroll
        for (int k = 0; k < L; ++k)
            if (k < rest) next[k] = taken();
        if (left >= L) {{
            #pragma unroll
            for (int k = 0; k < L; ++k) add(x[k]);
        }}
        #pragma unroll
        for (int k = 0; k < L; ++k)
            if (k < rest) add(next[k]);
    }}
    const REAL n = count, share = count ? 1 / n : 0;
    Pack<REAL, V> means, found[2];  // found: numbers, and their sums
    #pragma unroll
    for (int j = 0; j < V; ++j) {{
        squares[j] -= total[j] * (total[j] * share);
        means[j] = shift[j] + total[j] * share;
        found[0][j] = n, found[1][j] = n * means[j];
    }}
    block_totals(scratch, found, lanes, period);
    #pragma unroll
    for (int j = 0; j < V; ++j) {{
        found[1][j] = found[0][j] > 0 ? found[1][j] / found[0][j] : 0;
        const REAL away = means[j] - found[1][j];
        squares[j] += n * away * away;
    }}
    block_totals(scratch, squares, lanes, period);
    block_store(parts, found[1], lanes, period);
    block_store(parts + numbers, squares, lanes, period);
    block_store(parts + 2 * numbers, found[0], lanes, period);
}}
"""

_LAST = f"""\
#include "spikecore.cuh"

// Mean and 1 / standard deviation of each channel from what blocks left, and the running statistics that they move.
extern "C" __global__ void __launch_bounds__({THREADS}) channel_statistics(
    const int numbers, const int channels, const int inner, const int side, const REAL* __restrict__ parts,
    REAL* __restrict__ mean_of, REAL* __restrict__ rstd_of, HELD* __restrict__ running_mean,
    HELD* __restrict__ running_variance, long long* __restrict__ calls, const REAL n, const REAL eps, const REAL factor
) {{
    BLOCK_SHARED REAL found[2 * {THREADS}];
    const int c = blockIdx.x * side + threadIdx.x % side;
    const bool writes = threadIdx.x < side && c < channels, moves = writes && running_mean;
    // loaded now, so that nothing waits for them behind the sums
    const REAL m = moves ? value(running_mean[c]) : 0, v = moves ? value(running_variance[c]) : 0;
    const REAL *means = parts, *squares = parts + numbers, *counts = parts + 2ll * numbers;
    const ChannelNumbers of(numbers, channels, inner, side, c);
    // the means of blocks lie near one another, so that one pass is enough
    const REAL near = c < channels ? means[c * inner] : 0;
    REAL sums[] = {{0, 0}};
    sums[1] = of.sum<REAL>([&](unsigned at) {{
        const REAL n = counts[at], d = means[at] - near;
        sums[0] += n * d;
        return squares[at] + n * d * d;
    }});
    lines_totals(found, sums, side);
    const REAL share = sums[0] / n;
    const REAL mean = near + share, spread = sums[1] / n - share * share;
    // not fmax, which takes 0 for NaN
    const REAL variance = spread < 0 ? (REAL)0 : spread;
    if (writes) {{
        mean_of[c] = mean;
        rstd_of[c] = 1 / sqrt(variance + eps);
    }}
    if (moves) {{
        running_mean[c] = rounded<HELD>(m + factor * (mean - m));
        running_variance[c] = rounded<HELD>(v + factor * (variance * (n / (n - 1)) - v));
    }}
    if (calls && blockIdx.x == 0 && threadIdx.x == 0) ++*calls;
}}
"""
