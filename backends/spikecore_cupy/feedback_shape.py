"""The layout of a kernel with feedback: blocks of a cluster, warps that share a sum, rows of the batch of a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import List, NamedTuple, Sequence, Tuple, Union

import torch

from spikecore.backend import Spec
from spikecore.kernels import every_gradient, smallest_cut
from spikecore.lang import Program
from spikecore_cupy.derivative import derivative

#: Shared memory of a block, in bytes, as an H100 has it, less what sums over a block take.
MEMORY = 232448 - 1024
#: Words before all else: two signals; and those of groups of blocks that are no cluster.
SIGNALS, OF_GROUPS = 4, 32
#: 32-bit registers that the warps of one of the four parts of a multiprocessor have for a lane, and a thread at most.
REGISTERS, MOST = 512, 255
#: Registers of a thread beside those of its weights: with as many all is in registers, with as few it still works.
PLENTY, FEWEST = 60, 24
#: Neurons of a layer whose warps do not share a sum, and neurons of a block at least in a cluster: fewer do not pay.
NARROW, SMALL = 64, 32
#: Clusters of so many blocks that an H200 holds at once, if a block fills a multiprocessor, as the driver's
#: cuOccupancyMaxActiveClusters says. Where one more is asked for, it runs alone, and a step takes twice the time.
CO_RESIDENT = {1: 132, 2: 66, 4: 30, 8: 15}
MULTIPROCESSORS = 132
#: Relative time of a step with half of a cluster's blocks, and of each block more on a multiprocessor. On an H200, of
#: 128 to 256 neurons: 1.2 to 1.4, and 0.2 to 0.3.
HALF, SHARED = 1.2, 0.25
#: Numbers of a neuron that are kept of the steps of a chunk at most, and steps of a chunk at most.
KEPT, LONGEST = 24, 8
#: Neurons of a layer at most of which a block has a row, with one matrix and with several gates.
WIDEST, WIDEST_GATES = 96, 64
#: Numbers of a step, those of each gate, up to which a narrow layer has a block for each row. On an H200, beside tensor
#: cores: 96 neurons of 256, 512 and 1024 rows take 0.62, 1.00 and 1.31 of the time.
ALONE = 49152
#: Places of a tensor that arrives for a narrow layer.
PLACES = 4
#: Lanes that share sums, and how many, in narrow layers.
LANES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4))
#: Warps that may share a sum; blocks of a cluster.
SPLITS, CLUSTERS = (1, 2, 4), (8, 4, 2, 1)
#: Groups of 8 rows of blocks that are no cluster, and what a step of theirs takes beside that of such a group.
TILES, MEETING = (1, 2, 3, 4), 2.0


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
    arriving: int = 0
    gates: int = 1
    gives: int = 1

    @property
    def header(self) -> str:
        """The header that has it."""
        return "recurrent.cuh"

    @property
    def blocks_tiles(self) -> int:
        """Groups of 16 neurons of a block."""
        return -(-self.width // (16 * self.cluster))

    @property
    def apart(self) -> bool:
        """True if there are more blocks than a cluster has, so that they exchange numbers through global memory."""
        return self.cluster > CLUSTERS[0]

    @property
    def fragments(self) -> int:
        """Words of the numbers that blocks give to one another, twice."""
        halves = min(2, self.value_parts) if self.apart else self.value_parts
        return 2 * self.gives * halves * self.tiles * self.blocks_tiles * self.cluster * 64

    @property
    def exchange(self) -> int:
        """Words of global memory through which the blocks of a row exchange numbers, and a count of each block."""
        return self.fragments + -(-self.cluster // 32) * 32

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.blocks_tiles * self.warps

    @property
    def warps(self) -> int:
        """Warps of 16 neurons."""
        return self.split * self.gates

    @property
    def each(self) -> int:
        """Neurons of a thread, V in the text."""
        return 2 * -(-2 * self.tiles // self.warps)

    @property
    def rows(self) -> int:
        """Rows of the batch of a cluster."""
        return 8 * self.tiles

    @property
    def weights(self) -> int:
        """Registers of a thread that hold weights."""
        return -(-math.ceil(self.width / 16) // self.split) * self.weight_parts * 4

    @property
    def registers(self) -> int:
        """Registers that a thread has at most."""
        return min(MOST, REGISTERS // -(-self.threads // 128) // 8 * 8)

    @property
    def order(self) -> Tuple[int, bool]:
        """Key of the order of a sum: layouts of one width with the same give the same bits."""
        return self.split, self.registers - self.weights >= 80

    @property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        groups = self.blocks_tiles
        fragments = self.fragments // 2 if self.apart else self.fragments
        parts = self.warps * groups * self.tiles * 128 if self.warps > 1 else 0
        workers = 2 * self.tiles // (self.each // 2)
        numbers = (self.length * self.kept + 2 * self.arriving) * self.each * 32 * groups * workers
        return 4 * (SIGNALS + OF_GROUPS * self.apart + fragments + parts + numbers)

    @property
    def text(self) -> str:
        """The type of a thread's neurons."""
        return f"Layer<{', '.join(map(str, self))}>"


class Narrow(NamedTuple):
    """The arguments of ``Narrow`` in narrow.cuh: a row of the batch in one block, multiplied without tensor cores."""

    width: int
    lanes: int
    share: int
    length: int = 1
    kept: int = 0
    arriving: int = 0
    gates: int = 1
    gives: int = 1

    @property
    def header(self) -> str:
        """The header that has it."""
        return "narrow.cuh"

    @property
    def cluster(self) -> int:
        """Blocks of a row: one."""
        return 1

    @property
    def apart(self) -> bool:
        """False: blocks exchange nothing."""
        return False

    @property
    def exchange(self) -> int:
        """Words of global memory through which blocks exchange numbers: none."""
        return 0

    @property
    def padded(self) -> int:
        """Numbers of a row, with those that fill the last group of four of each lane."""
        return -(-self.width // (4 * self.lanes)) * 4 * self.lanes

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return -(-self.lanes * -(-self.width // self.share) // 32) * 32

    @property
    def each(self) -> int:
        """Neurons of a thread, V in the text."""
        return 1

    @property
    def rows(self) -> int:
        """Rows of the batch of a block."""
        return 1

    @property
    def weights(self) -> int:
        """Registers of a thread that hold weights."""
        return self.padded // self.lanes * self.share * self.gates

    @property
    def registers(self) -> int:
        """Registers that a thread has at most."""
        return min(MOST, REGISTERS // -(-self.threads // 128) // 8 * 8)

    @property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        numbers = (self.length * self.kept + PLACES * self.arriving) * self.threads
        return 4 * (2 * self.gives * self.padded + numbers)

    @property
    def text(self) -> str:
        """The type of a thread's neurons."""
        return f"Narrow<{', '.join(map(str, self))}>"


#: A layout of a kernel with feedback.
Layout = Union[Shape, Narrow]


def _fits(shape: Layout, room: int) -> bool:
    return shape.threads <= 1024 and shape.weights + room <= shape.registers


@lru_cache(maxsize=256)
def shapes_of(
    width: int, dtype: torch.dtype, multiprocessors: int = MULTIPROCESSORS, gates: int = 1
) -> Tuple[Layout, ...]:
    """The layouts of a width whose registers hold the weights, that with most blocks first; none where it is too wide.

    All with tensor cores give the same bits, so that the batch changes no bit of a row, but for small batches of narrow
    layers (:data:`ALONE`). ``multiprocessors``: how many the GPU has, which all blocks of a row need at once.
    ``gates``: inputs that the outputs come back to.
    """
    narrow = narrow_shapes(width, dtype, gates)
    if gates > 1:
        return (*narrow, *_shapes_of_gates(width, parts_of(dtype), gates))
    parts, split = parts_of(dtype), 1 if width <= NARROW else 2
    sizes = [c for c in CLUSTERS if c == 1 or (split > 1 and width >= c * SMALL)]
    fitting = [shape for shape in (Shape(width, c, split, 1, parts) for c in sizes) if _fits(shape, PLENTY)]
    if not fitting:
        return tuple(shapes_apart(width, parts, multiprocessors))
    return (*narrow, *[shape for shape in fitting if shape.order == fitting[0].order])


def narrow_shapes(width: int, dtype: torch.dtype, gates: int = 1) -> Tuple[Narrow, ...]:
    """The layout of a width of which a block has a row; none where that is too wide."""
    if dtype != torch.float32 or width > (WIDEST_GATES if gates > 1 else WIDEST):
        return ()
    lanes, share = (8, 4) if gates > 1 else (2, 1) if width <= 48 else (2, 2)
    return (Narrow(width, lanes, share, gates=gates),)


def _shapes_of_gates(width: int, parts: int, gates: int) -> Tuple[Shape, ...]:
    """The layouts of a width of several gates. A warp has one gate of 16 neurons, so that no warps share a sum: with
    two warps for each, LSTMs of 64 and 128 neurons took 1.05 of the time (H200).
    """
    sizes = [c for c in CLUSTERS if c == 1 or width >= 16 * c]
    fitting = [shape for shape in (Shape(width, c, 1, 1, parts, gates=gates) for c in sizes) if _fits(shape, PLENTY)]
    return tuple([shape for shape in fitting if shape.order == fitting[0].order])


def shapes_apart(width: int, parts: int, multiprocessors: int = MULTIPROCESSORS) -> List[Shape]:
    """The layouts of a width whose blocks are more than a cluster: as few as hold the weights, and rows for a batch."""
    # 8 warps, so that a thread may have most registers
    for groups, split in ((4, 2), (2, 4)):
        # each two of them are a cluster
        blocks = 2 * -(-width // (32 * groups))
        shapes = [Shape(width, blocks, split, tiles, parts) for tiles in TILES]
        if CLUSTERS[0] < blocks <= multiprocessors and _fits(shapes[0], PLENTY):
            return shapes
    return []


def by_time(shapes: Sequence[Layout], batch: int, multiprocessors: int) -> List[Layout]:
    """The layouts of a width, that with which all rows of a batch take the least time first: a block for each row if
    they are few, else many blocks for a cluster as long as all clusters run at once.
    """

    def time(shape: Layout) -> float:
        if isinstance(shape, Narrow):
            few = batch * shape.width * shape.gates <= ALONE * multiprocessors // MULTIPROCESSORS
            return 0.0 if few else math.inf
        if shape.apart:
            return -(-batch // (shape.rows * (multiprocessors // shape.cluster))) * (MEETING + shape.tiles)
        at_once = max(1, CO_RESIDENT[shape.cluster] * multiprocessors // MULTIPROCESSORS)
        registers = min(shape.registers, shape.weights + PLENTY)
        together = max(1, min(REGISTERS * 128 // (registers * shape.threads), MEMORY // shape.memory))
        load = -(-batch // (shape.rows * at_once))
        turns = -(-load // together)
        return turns * (1 + SHARED * (-(-load // turns) - 1)) / float(HALF ** math.log2(shape.cluster))

    return sorted(shapes, key=time)


@lru_cache(maxsize=256)
def kept_of(program: Program, spec: Spec) -> int:
    """Numbers of a neuron that backward keeps of a step at most, whatever gradients are asked for."""
    everything = replace(every_gradient(program, spec, True), learn=spec.learnt(program))
    return len(program.inputs) + len(smallest_cut(derivative(everything).roots))


def length_of(program: Program, spec: Spec) -> int:
    """Steps of a chunk: an even number, so that each step of any chunk has its place of two."""
    return max(2, min(LONGEST, KEPT // kept_of(program, spec) // 2 * 2))


def for_forward(program: Program, spec: Spec, shape: Layout) -> Layout:
    """A layout as forward has it: spikes are one part, and no step is kept."""
    arriving = len(program.inputs)
    if isinstance(shape, Narrow):
        return shape._replace(length=1, kept=0, arriving=arriving, gives=1)
    output = program.outputs[spec.feedback.output if spec.feedback is not None else 0]
    parts = 1 if output.op == "spike" else shape.weight_parts
    return shape._replace(value_parts=parts, length=1, kept=0, arriving=arriving, gives=1)


def for_backward(dtype: torch.dtype, shape: Layout) -> Layout:
    """A layout as backward has it: every gate gives a cotangent, which is any number."""
    if isinstance(shape, Narrow):
        return shape._replace(gives=shape.gates)
    return shape._replace(value_parts=parts_of(dtype), gives=shape.gates)


def most_of(program: Program, spec: Spec, shape: Layout) -> Layout:
    """A layout with the most that backward may keep in it, whatever gradients are asked for."""
    arriving = len(program.inputs) + len(program.outputs) + len(program.states)
    length, kept = length_of(program, spec), kept_of(program, spec)
    return shape._replace(length=length, kept=kept, arriving=arriving, gives=shape.gates)


@lru_cache(maxsize=256)
def takes(program: Program, spec: Spec, width: int, multiprocessors: int = MULTIPROCESSORS) -> bool:
    """True if there is a kernel for all steps of such a call: float32 arithmetic, weights that fit the registers of a
    GPU's blocks, and no more numbers to keep than fit shared memory.
    """
    if spec.compute != torch.float32 or program.normalised or program.seeds or width < 1:
        return False
    shapes = shapes_of(width, spec.dtype, multiprocessors, len(spec.drives))
    return any(most_of(program, spec, shape).memory <= MEMORY for shape in shapes)


def shapes(width: int, dtype: torch.dtype) -> List[Layout]:
    """All layouts that hold the weights, for measurements."""
    parts = parts_of(dtype)
    every: List[Layout] = [Narrow(width, lanes, share) for lanes, share in LANES]
    every += [Shape(width, c, s, n, parts) for c in (1, 2, 4, 8) for s in SPLITS for n in (1, 2)]
    return [shape for shape in every if _fits(shape, FEWEST)]
