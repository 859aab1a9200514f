"""Launches: from the tensors of a call to kernels over blocks of neurons."""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS, Places
from spikecore_numba.backward import adds_groups
from spikecore_numba.compiler import Function, compiled
from spikecore_numba.loops import TOTALS
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
#: Neurons whose gradients of parameters are added up apart, about: blocks for many threads, and little memory. The same
#: for any number of threads, since the order of a sum decides its bits.
SPANNED = 1 << 14
#: Neurons of a block at least, where steps are many.
NARROW = 128

#: A launch of contiguous tensors: of all but those that are parameters in a row, and the parameters.
Dense = Callable[[Sequence[Tensor], Sequence[Any]], Optional[Sequence[Tensor]]]

_scratch = Scratch()


class Forward:
    """The launch of a forward plan."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.plan = plan
        self.kernel = Kernel(print_kernel(plan), plan.dtype, plan.compute, FORWARD_GROUPS)
        self._bytes = self.kernel.source.rows * bytes_of(plan.compute) * BLOCK

    def __call__(self, geometry: Geometry, *groups: Any) -> None:
        """Launch on these tensors."""
        kernel, scratch_bytes = self.kernel, self._bytes
        steps, neurons, _ = geometry
        width, work_size = blocks_of(self.plan, geometry, groups)
        before, after = kernel.values(geometry, groups)
        # only what the kernel is the first to write: memory that was written has its pages already
        if steps * neurons >= WORTHWHILE:
            prefer_large_pages((*groups[OUTPUTS], *groups[TRACE]))

        def work(begin: int, end: int) -> None:
            # held in a local variable until the kernel is done: see Scratch.memory
            scratch = _scratch.memory(scratch_bytes)
            kernel.run(begin, end, steps, neurons, width, scratch.data_ptr(), *before, *after)

        over_blocks(work, -(-neurons // width), work_size, groups)

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Dense:
        """The launch of contiguous tensors of these sizes, where one thread computes them: what does not depend on
        where they are is found now.
        """
        steps, neurons, _ = geometry
        if steps * neurons >= WORTHWHILE or self.plan.spec.feedback is not None:
            return _not_here
        width, size = widest(steps, neurons), self._bytes
        values, function, pack = self.kernel.dense_values(geometry, counts), self.kernel.function, self.kernel.pack
        sizes = (0, -(-neurons // width), steps, neurons, width)

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Sequence[Tensor]:
            scratch = _scratch.memory(size)
            before, after = values(tensors, params)
            function(pack(*sizes, scratch.data_ptr(), *before, *after))
            return ()

        return launch


class Backward:
    """The launch of a backward plan."""

    def __init__(self, plan: BackwardPlan) -> None:
        self.plan = plan
        self.kernel = Kernel(print_kernel(plan), plan.dtype, plan.compute, BACKWARD_GROUPS)
        self._kept, self._itemsize = self.kernel.source.histories, bytes_of(plan.compute)
        self._bytes, self._grouped = self.kernel.source.rows * self._itemsize * BLOCK, adds_groups(plan)
        #: Of each parameter whose gradient is found, which one it is, and its kind.
        self._learnt = [(plan.program.params.index(name), plan.kinds[name]) for name in plan.learn]
        self._totals = TOTALS.compiled(plan.compute, plan.compute) if self._learnt else None

    def __call__(self, geometry: Geometry, *groups: Any) -> List[Tensor]:
        """Launch on these tensors; gives the parameters' gradients."""
        kernel, scratch_bytes, itemsize, kept = self.kernel, self._bytes, self._itemsize, self._kept
        steps, neurons, _ = geometry
        span = self._span(geometry)
        sums = [groups[INPUTS][0].new_empty(span, dtype=self.plan.compute) for _ in self._learnt]
        before, after = kernel.values(geometry, (*groups, sums))
        width, work_size = blocks_of(self.plan, geometry, groups)
        if self._grouped:
            width = widest(steps, span)
        width, length, chunks = shape_of_history(width, steps, kept * itemsize, self.plan.spec.feedback is not None)
        each = (length + chunks) * width * itemsize
        if steps * neurons >= WORTHWHILE:
            prefer_large_pages(groups[GRAD_INPUTS])
        further = self._further(length, chunks, span)

        def work(begin: int, end: int) -> None:
            scratch = _scratch.memory(scratch_bytes + kept * each)
            address = scratch.data_ptr()
            # behind the rows, in one piece of memory that the thread keeps for its next kernel
            histories = [address + scratch_bytes + k * each for k in range(kept)]
            kernel.run(begin, end, steps, neurons, width, address, *further, *before, *histories, *after)

        over_blocks(work, -(-span // width), work_size, (groups, sums))
        # not by torch: of a few numbers its sum takes longer than a small layer, and on autograd's thread it asks for
        # threads of its own
        for k, (index, kind) in enumerate(self._learnt):
            if kind != "full":
                inner, channels = geometry.channels[index] if kind == "channel" else (span, 1)
                total = sums[k].new_empty(channels)
                self._add_up(span, inner, channels, sums[k].data_ptr(), total)
                sums[k] = total
        return sums

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Dense:
        """As that of :class:`Forward`."""
        steps, neurons, _ = geometry
        full = "full" in [kind for _, kind in self._learnt]
        if steps * neurons >= WORTHWHILE or self.plan.spec.feedback is not None or full:
            return _not_here
        span, itemsize, kept = self._span(geometry), self._itemsize, self._kept
        width, length, chunks = shape_of_history(widest(steps, span), steps, kept * itemsize)
        each, further, size = (length + chunks) * width * itemsize, self._further(length, chunks, span), self._bytes
        values, function, pack = self.kernel.dense_values(geometry, counts), self.kernel.function, self.kernel.pack
        sizes, learnt = (0, -(-span // width), steps, neurons, width), self._learnt
        # behind rows and histories, in one piece of memory
        ends = [size + k * each for k in range(kept + 1)]
        whole = ends[-1] + len(learnt) * span * itemsize

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Sequence[Tensor]:
            scratch = _scratch.memory(whole)
            address = scratch.data_ptr()
            sums = [address + ends[-1] + k * span * itemsize for k in range(len(learnt))]
            before, after = values(tensors, params, sums)
            histories = [address + end for end in ends[:-1]]
            function(pack(*sizes, address, *further, *before, *histories, *after))
            found = []
            for (index, kind), parts in zip(learnt, sums):
                inner, channels = geometry.channels[index] if kind == "channel" else (span, 1)
                total = torch.empty_like(params[index])
                self._add_up(span, inner, channels, parts, total)
                found.append(total)
            return found

        return launch

    def _span(self, geometry: Geometry) -> int:
        return span_of(self.plan, geometry) if self._grouped else geometry.neurons

    def _further(self, length: int, chunks: int, span: int) -> Tuple[int, ...]:
        """Sizes that only some kernels have."""
        # an adjoint of inputs and cotangents alone recomputes no state: its kernel has no chunks
        return (*((length, chunks) if self._kept else ()), *((span,) if self._grouped else ()))

    def _add_up(self, span: int, inner: int, channels: int, parts: int, total: Tensor) -> None:
        if self._totals is not None:
            self._totals.run(self._totals.pack(span, inner, channels, parts, total.data_ptr()))


def _not_here(tensors: Sequence[Tensor], params: Sequence[Any]) -> None:
    """Of tensors that are worth several threads."""


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

    def dense_values(self, geometry: Geometry, counts: Sequence[int]) -> Callable[..., Tuple[List[Any], List[int]]]:
        """What gives the same from contiguous tensors in a row, so many of each group, parameters, and the addresses of
        the sums that it fills.
        """
        starts: Dict[int, int] = {group: sum(counts[:group]) for group in range(len(counts))}
        constants = [geometry.channels[index][which] for index, which in self._channels]
        constants += [geometry.neurons] * len(self._strides)
        numbers = [index for _, index in self._numbers]
        # parameters and sums are not among the tensors
        sources = [
            (0 if group == PARAMS else 1 if group == len(counts) else 2, starts.get(group, 0), index)
            for group, index in self._pointers
        ]
        order = [(source, index if source < 2 else start + index) for source, start, index in sources]

        def values(
            tensors: Sequence[Tensor], params: Sequence[Any], sums: Sequence[int] = ()
        ) -> Tuple[List[Any], List[int]]:
            after = [
                tensors[index].data_ptr() if source == 2 else sums[index] if source else params[index].data_ptr()
                for source, index in order
            ]
            return [*constants, *[params[index] for index in numbers]], after

        return values

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


def span_of(plan: BackwardPlan, geometry: Geometry) -> int:
    """How far apart the neurons are whose gradients of parameters a block adds up: of the same channels."""
    # those that are learnt lie along one dimension
    period = 1
    for name in plan.learn:
        inner, channels = geometry.channels[plan.program.params.index(name)]
        period = max(period, inner * channels)
    return min(geometry.neurons, -(-SPANNED // period) * period)


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
