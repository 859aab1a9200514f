"""The layout of a kernel with feedback: blocks of a cluster, warps that share a sum, rows of the batch of a cluster."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import List, NamedTuple, Optional

import torch

from spikecore.backend import Spec
from spikecore.kernels import BackwardPlan
from spikecore.lang import Program
from spikecore_cupy.derivative import derivative

#: Shared memory of a block, in bytes, as an H100 has it, less what sums over a block take.
MEMORY = 232448 - 1024
#: Words before all else: two signals.
SIGNALS = 4
#: 32-bit registers that the warps of one of the four parts of a multiprocessor have for a lane, and a thread at most.
REGISTERS, MOST = 512, 255
#: Registers of a thread beside those of its weights: with plenty of them, and with as few as do with some in memory.
PLENTY, FEW, FEWEST = 90, 32, 24
#: Threads of a block at most, where fewer do, too.
MANY = 512
#: Clusters of so many blocks that an H200 holds at once, if a block fills a multiprocessor, as the driver's
#: cuOccupancyMaxActiveClusters says. Where one more is asked for, it runs alone, and a step takes twice the time.
CO_RESIDENT = {1: 132, 2: 66, 4: 30, 8: 15}
MULTIPROCESSORS = 132
#: Numbers of a neuron that are kept of the steps of a chunk at most, and steps of a chunk at most.
KEPT, LONGEST = 24, 8
#: Warps that may share a sum.
SPLITS = (1, 2, 4)


def parts_of(dtype: torch.dtype) -> int:
    """The parts of 8 bits of a number's digits: of float32 3, of float16 2, of bfloat16 1."""
    digits = 1 - math.log2(torch.finfo(dtype).eps)
    return math.ceil(digits / 8)


class Shape(NamedTuple):
    """The arguments of ``Layer`` in recurrent.cuh."""

    width: int
    cluster: int
    split: int
    tiles: int
    weight_parts: int
    value_parts: int = 3
    length: int = 1
    kept: int = 0

    @property
    def blocks_tiles(self) -> int:
        """Groups of 16 neurons of a block."""
        return -(-self.width // (16 * self.cluster))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.blocks_tiles * self.split

    @property
    def each(self) -> int:
        """Neurons of a thread, V in the text."""
        return 2 * -(-2 * self.tiles // self.split)

    @property
    def rows(self) -> int:
        """Rows of the batch of a cluster."""
        return 8 * self.tiles

    @property
    def weights(self) -> int:
        """Registers of a thread that hold weights."""
        return -(-self.blocks_tiles * self.cluster // self.split) * self.weight_parts * 4

    @property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        groups = self.blocks_tiles
        fragments = 2 * self.value_parts * self.tiles * groups * self.cluster * 64
        parts = self.split * groups * self.tiles * 128 if self.split > 1 else 0
        workers = 2 * self.tiles // (self.each // 2)
        return 4 * (SIGNALS + fragments + parts + self.length * self.kept * self.each * 32 * groups * workers)

    @property
    def text(self) -> str:
        """The type of a thread's neurons."""
        return f"Layer<{', '.join(map(str, self))}>"


def _fits(shape: Shape, room: int) -> bool:
    registers = min(MOST, REGISTERS // -(-shape.threads // 128) // 8 * 8)
    return shape.threads <= 1024 and shape.weights + room <= registers


@lru_cache(maxsize=256)
def shape_of(width: int, dtype: torch.dtype, clusters: bool = True) -> Optional[Shape]:
    """The layout that was the fastest on an H200 of those whose registers hold the weights; None where none do.

    ``clusters``: whether there are any, as there are from compute capability 9.0 on. The order of sums follows from
    the width alone, so that neither the batch nor the GPU changes a bit of a row.
    """
    # up to four blocks, even where some registers are in memory: twice the blocks take more time (of 256 rows of 360
    # neurons 3.3 ms with four, 4.0 with eight, of which 16 clusters do not run at once)
    for room in (PLENTY, FEWEST):
        for cluster in (1, 2, 4) if clusters else (1,):
            for split in SPLITS:
                found = Shape(width, cluster, split, 1, parts_of(dtype))
                if _fits(found, room):
                    return found
    eight = [Shape(width, 8, split, 1, parts_of(dtype)) for split in SPLITS if clusters]
    fitting = [shape for shape in eight if _fits(shape, FEW) and shape.threads <= MANY]
    return fitting[-1] if fitting else None


def with_rows(shape: Shape, batch: int, multiprocessors: int) -> Shape:
    """The same with as many rows of the batch for a cluster as let all clusters run at once, or 16 at most."""
    at_once = CO_RESIDENT[shape.cluster] * multiprocessors // MULTIPROCESSORS
    wider = shape._replace(tiles=2)
    many = -(-batch // shape.rows) > at_once
    return wider if many and wider.memory <= MEMORY else shape


@lru_cache(maxsize=256)
def kept_of(program: Program, spec: Spec) -> int:
    """Numbers of a neuron that backward keeps of a step at most, whatever gradients are asked for."""
    everything = BackwardPlan(
        program,
        spec,
        has_initial_state=True,
        outputs=(True,) * len(program.outputs),
        trace=program.states,
        final=True,
        inputs=(True,) * len(program.inputs),
        state=True,
        learn=tuple([name for name in spec.learn if name in program.params]),
    )
    return 1 + len(derivative(everything).cut)


def length_of(program: Program, spec: Spec) -> int:
    """Steps of a chunk: an even number, so that each step of any chunk has its place of two."""
    return max(2, min(LONGEST, KEPT // kept_of(program, spec) // 2 * 2))


def takes(program: Program, spec: Spec, width: int, clusters: bool = True) -> bool:
    """Whether there is a kernel for all steps of such a call: float32 arithmetic, weights that fit the registers of a
    cluster, and no more numbers to keep than fit shared memory.
    """
    if spec.compute != torch.float32 or program.statistics or program.seeds or width < 1:
        return False
    shape = shape_of(width, spec.dtype, clusters)
    if shape is None:
        return False
    kept = kept_of(program, spec)
    return shape._replace(length=length_of(program, spec), kept=kept).memory <= MEMORY


def shapes(width: int, dtype: torch.dtype) -> List[Shape]:
    """All layouts that hold the weights, for measurements."""
    parts = parts_of(dtype)
    found = [Shape(width, c, s, n, parts) for c in (1, 2, 4, 8) for s in SPLITS for n in (1, 2)]
    return [shape for shape in found if _fits(shape, FEWEST)]
