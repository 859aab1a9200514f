"""Sums over a channel: within the blocks of a kernel, and of the blocks' numbers by a kernel of its own.

The threads of a block add up what they have of each channel, so that little is left in memory. The order of every sum
is fixed: the same bits at every run.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from spikecore_cupy.device import shared
from spikecore_cupy.printer import TYPES

#: Threads at most of a block of a kernel that adds up what blocks left, and channels that lie side by side in one:
#: memory is read in sectors of 32 bytes, and with more channels a thread waits for memory several times.
THREADS, SIDE = 1024, 8
#: Numbers that such a thread loads before it adds up the first, as ``ChannelNumbers`` has it, and threads of a warp.
LOADED, WARP = 8, 32


class Arrangement(NamedTuple):
    """Which threads of a block have the same channels, and what a block leaves."""

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
    """How blocks of at most ``most`` threads, each with ``width`` neighbouring neurons, add up channels that lie
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


class Adding(NamedTuple):
    """How the numbers that blocks left are added up: the threads of a block, and how many channels it adds up."""

    threads: int
    side: int


def adding(numbers: int, channels: int, inner: int, most: int) -> Adding:
    """For ``numbers`` that lie as an :class:`Arrangement` says, by blocks of at most ``most`` threads.

    A thread has :data:`LOADED` numbers where there are enough, and waits for memory once. Blocks of 1024 threads for
    eight numbers of a channel took 4.5 us on an H200, of which most went into waiting for one another.
    """
    # neighbouring numbers of as many channels are read in one access
    side = min(SIDE, most) if inner == 1 else 1
    lines = -(-(-(-numbers // (channels * inner)) * inner) // LOADED)
    return Adding(min(most, -(-lines * side // WARP) * WARP), side)


class Totals:
    """Adds up what blocks left, for several parameters in one launch."""

    def __init__(self, kernel: Callable[..., Any], compute: torch.dtype) -> None:
        real = TYPES[compute]
        types = ("int", "int", "int", "int", "int", f"const {real}*", f"{real}*", f"{real}*")
        self._run = shared(kernel, "channel_totals", _TEXT.replace("REAL", real), types)
        self._most = THREADS if self._run.block > 1 else 1

    def __call__(self, parts: Tensor, channels: int, inner: int) -> Sequence[Tensor]:
        """The sums ``[channels]`` of each row of ``parts``, see :class:`Arrangement`."""
        rows, numbers = parts.shape
        threads, side = adding(numbers, channels, inner, self._most)
        groups = -(-channels // side)
        # tensors of their own: views of one would be gradients that share memory
        found = [parts.new_empty(channels) for _ in range(rows)]
        start, apart = parts.data_ptr(), numbers * parts.element_size()
        for row in range(0, rows, 2):
            pair = [found[row].data_ptr(), found[min(row + 1, rows - 1)].data_ptr()]
            arguments = (numbers, channels, inner, side, groups, start + row * apart, *pair)
            self._run(min(2, rows - row) * groups, parts.get_device(), arguments, threads)
        return found


_TEXT = f"""\
#include "spikecore.cuh"

// The sums over each channel of what blocks left, of one parameter or of two.
extern "C" __global__ void __launch_bounds__({THREADS}) channel_totals(
    const int numbers, const int channels, const int inner, const int side, const int groups,
    const REAL* __restrict__ parts, REAL* __restrict__ first, REAL* __restrict__ second
) {{
    BLOCK_SHARED REAL found[{THREADS}];
    const int row = blockIdx.x / groups, c = blockIdx.x % groups * side + threadIdx.x % side;
    const REAL* from = parts + (long long)row * numbers;
    const ChannelNumbers of(numbers, channels, inner, side, c);
    REAL total[] = {{of.sum<REAL>([=](unsigned at) {{ return from[at]; }})}};
    lines_totals(found, total, side);
    if (threadIdx.x < side && c < channels) (row ? second : first)[c] = total[0];
}}
"""
