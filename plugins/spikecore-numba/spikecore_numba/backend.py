"""The backend: two launches over compiled kernels."""

from __future__ import annotations

import struct
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import Bits, Spec, Whole
from spikecore.kernels import BackwardLaunch, BackwardPlan, ForwardLaunch, ForwardPlan, Geometry, KernelBackend
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS, Places
from spikecore.lang import Program
from spikecore_numba import CAPABILITIES
from spikecore_numba.compiler import Function, compiled
from spikecore_numba.normalising import Correction, Statistics
from spikecore_numba.packing import Packer
from spikecore_numba.pages import prefer_large_pages
from spikecore_numba.source import print_kernel
from spikecore_numba.threads import WORTHWHILE, Scratch, over_blocks
from spikecore_numba.writer import BLOCK, Source

OUTPUTS, TRACE = FORWARD_GROUPS.index("outputs"), FORWARD_GROUPS.index("trace")
# which one it is of the groups of either direction
PARAMS = FORWARD_GROUPS.index("params")
INPUTS, GRAD_INPUTS = BACKWARD_GROUPS.index("inputs"), BACKWARD_GROUPS.index("grad_inputs")
#: Bytes of states that a backward kernel keeps at a time, to stay in a core's own cache.
HISTORY = 1 << 18
#: Neurons that are fed back within a kernel, at most.
WIDEST_FEEDBACK = BLOCK
#: Neurons of a block at least, where steps are many.
NARROW = 128

_scratch = Scratch()
_packer = Packer()


class NumbaBackend(KernelBackend):
    """Compiles every program for the CPU.

    Forward writes nothing for backward, which recomputes the states block by block.
    """

    name = "numba"
    capabilities = CAPABILITIES

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        kernel = Kernel(print_kernel(plan), plan.dtype, plan.compute, FORWARD_GROUPS)
        scratch_bytes = kernel.source.rows * bytes_of(plan.compute) * BLOCK

        def launch(geometry: Geometry, *groups: Any) -> None:
            steps, neurons, _ = geometry
            width, work_size = blocks_of(plan, geometry, groups)
            before, after = kernel.values(geometry, groups)
            # only what the kernel is the first to write: memory that was written has its pages already
            if steps * neurons >= WORTHWHILE:
                prefer_large_pages((*groups[OUTPUTS], *groups[TRACE]))

            def work(begin: int, end: int) -> None:
                # held in a local variable until the kernel is done: see Scratch.memory
                scratch = _scratch.memory(scratch_bytes)
                kernel.run(begin, end, steps, neurons, width, scratch.data_ptr(), *before, *after)

            over_blocks(work, -(-neurons // width), work_size, groups)

        return launch

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        kernel = Kernel(print_kernel(plan), plan.dtype, plan.compute, BACKWARD_GROUPS)
        itemsize, kept = bytes_of(plan.compute), kernel.source.histories
        scratch_bytes = kernel.source.rows * itemsize * BLOCK

        def launch(geometry: Geometry, *groups: Any) -> List[Tensor]:
            steps, neurons, _ = geometry
            sums = [groups[INPUTS][0].new_empty(neurons, dtype=plan.compute) for _ in plan.learn]
            before, after = kernel.values(geometry, (*groups, sums))
            width, work_size = blocks_of(plan, geometry, groups)
            fixed = plan.spec.feedback is not None
            width, length, chunks = shape_of_history(width, steps, kept * itemsize, fixed)
            each = (length + chunks) * width * itemsize
            if steps * neurons >= WORTHWHILE:
                prefer_large_pages(groups[GRAD_INPUTS])

            # an adjoint of inputs and cotangents alone recomputes no state: its kernel has no chunks
            chunking = (length, chunks) if kept else ()

            def work(begin: int, end: int) -> None:
                scratch = _scratch.memory(scratch_bytes + kept * each)
                address = scratch.data_ptr()
                # behind the rows, in one piece of memory that the thread keeps for its next kernel
                histories = [address + scratch_bytes + k * each for k in range(kept)]
                kernel.run(begin, end, steps, neurons, width, address, *chunking, *before, *histories, *after)

            over_blocks(work, -(-neurons // width), work_size, (groups, sums))
            return sums

        return launch

    def statistics(self, spec: Spec) -> Statistics:
        return Statistics(spec)

    def correction(self, spec: Spec) -> Optional[Correction]:
        return Correction(spec) if spec.dtype == spec.compute else None

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """In the dtypes of arithmetic, where a row of the batch fits a block."""
        return spec.dtype == spec.compute and width <= WIDEST_FEEDBACK

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        return print_kernel(plan).text

    def pack(self, numbers: Tensor, whole: Whole, like: Optional[Tensor] = None) -> Bits:
        return _packer.pack(numbers, whole, like)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        return _packer.unpack(bits, whole, count, dtype)


class Kernel:
    """A compiled kernel, and how its arguments are found among the tensors of a launch."""

    def __init__(self, source: Source, dtype: torch.dtype, compute: torch.dtype, groups: Sequence[str]) -> None:
        self.source = source
        self.function: Function = compiled(source, dtype, compute)
        # 8 bytes for every argument, so that the entry point finds each by its number; it narrows real numbers itself
        kinds = ["d" if argument.kind == "number" else "q" for argument in source.arguments]
        self.pack = struct.Struct("q" * len(source.head) + "".join(kinds)).pack
        places = Places(source.arguments, groups)
        self._channels, self._strides = places.channels(), places.of("stride")
        self._numbers, self._pointers = places.of("number"), places.of("pointer")

    def values(self, geometry: Geometry, groups: Sequence[Any]) -> Tuple[List[Any], List[int]]:
        """The values of its own arguments, in order: those before the histories, and those behind."""
        # in the order of kinds that the writer gives arguments (writer.ORDER)
        before = [geometry.channels[index][which] for index, which in self._channels]
        before += [groups[group][index].stride(0) for group, index in self._strides]
        before += [groups[group][index] for group, index in self._numbers]
        return before, [groups[group][index].data_ptr() for group, index in self._pointers]

    def run(self, *arguments: Any) -> None:
        """Run it, without the GIL."""
        self.function(self.pack(*arguments))


def bytes_of(dtype: torch.dtype) -> int:
    """Bytes of a number."""
    return torch.finfo(dtype).bits // 8


def widest(steps: int, neurons: int) -> int:
    """Neurons of a block at most: no more than there are, and some blocks for every thread."""
    # threads take blocks as they come free, so more blocks than threads even out their speeds
    share = neurons if steps * neurons < WORTHWHILE else max(-(-neurons // (2 * torch.get_num_threads())), NARROW)
    # a multiple of the widest vector, 16 numbers of float32, so that the loop over a block's neurons leaves none over
    return min(-(-share // 16) * 16, BLOCK)


def blocks_of(plan: Union[ForwardPlan, BackwardPlan], geometry: Geometry, groups: Sequence[Any]) -> Tuple[int, int]:
    """Neurons of a block at most, and how much work a launch is."""
    steps, neurons, _ = geometry
    if plan.spec.feedback is None:
        return widest(steps, neurons), steps * neurons
    # a block is a row of the batch, whose neurons need one another; what comes back is a sum over all of them
    weight = groups[PARAMS][len(plan.program.params)]
    return weight.shape[0], steps * neurons * (1 + weight.shape[0] // 16)


def shape_of_history(width: int, steps: int, state_bytes: int, fixed: bool = False) -> Tuple[int, int, int]:
    """Neurons of a block, steps of a chunk and number of chunks, for states of so many bytes per neuron and step.

    ``fixed``: so many neurons, not fewer.
    """
    if not state_bytes:
        return width, steps, 1
    while not fixed and width > NARROW and width * steps * state_bytes > HISTORY:
        width //= 2
    length = steps
    if width * steps * state_bytes > 4 * HISTORY:
        # a history has a row for each step of a chunk and for each chunk: fewest where both are the root of the steps
        length = max(HISTORY // (width * state_bytes), int(steps**0.5))
    return width, length, -(-steps // length)
