"""Launches: from the tensors of a call to kernels over blocks of neurons."""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

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
Dense = Callable[[Sequence[Tensor], Sequence[Any]], Sequence[Tensor]]
_Pick = Callable[[Sequence[Any]], Sequence[Any]]

_scratch = Scratch()
data_ptr = Tensor.data_ptr


class Forward:
    """The launch of a forward plan."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.plan = plan
        self.kernel = Kernel(print_kernel(plan), plan.dtype, plan.compute, FORWARD_GROUPS)
        self._bytes = self.kernel.source.rows * bytes_of(plan.compute) * BLOCK

    def __call__(self, geometry: Geometry, *groups: Any) -> None:
        """Launch on these tensors."""
        kernel, scratch_bytes = self.kernel, self._bytes
        steps, neurons = geometry[:2]
        width, work_size = blocks_of(self.plan, geometry, groups)
        if self.plan.spec.feedback is not None:
            groups = with_rows(self.plan, groups)
        before, after = kernel.values(geometry, groups)
        # only what the kernel is the first to write: memory that was written has its pages already
        if steps * neurons >= WORTHWHILE:
            prefer_large_pages((*groups[OUTPUTS], *groups[TRACE]))

        def work(begin: int, end: int) -> None:
            # held in a local variable until the kernel is done: see Scratch.memory
            scratch = _scratch.memory(scratch_bytes)
            kernel.run(begin, end, steps, neurons, width, scratch.data_ptr(), *before, *after)

        over_blocks(work, -(-neurons // width), work_size, groups)

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Optional[Dense]:
        """The launch of contiguous tensors of these sizes where one thread computes them, else None: what does not
        depend on where they are is prepared now.
        """
        steps, neurons = geometry[:2]
        if steps * neurons >= WORTHWHILE or self.plan.spec.feedback is not None:
            return None
        width, size, function, pack = widest(steps, neurons), self._bytes, self.kernel.function, self.kernel.pack
        numbers, pointers, _ = self.kernel.dense(counts)
        sizes = (0, -(-neurons // width), steps, neurons, width)
        constants = self.kernel.sizes(geometry)

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Sequence[Tensor]:
            scratch = _scratch.memory(size)
            addresses = map(data_ptr, pointers((*tensors, *params)))
            function(pack(*sizes, scratch.data_ptr(), *constants, *numbers(params), *addresses))
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
        steps, neurons = geometry[:2]
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
                inner, channels = self._channels(geometry, index, kind)
                total = sums[k].new_empty(channels)
                self._add_up(span, inner, channels, sums[k].data_ptr(), total)
                sums[k] = total
        return sums

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Optional[Dense]:
        """As that of :class:`Forward`."""
        steps, neurons = geometry[:2]
        full = "full" in [kind for _, kind in self._learnt]
        if steps * neurons >= WORTHWHILE or self.plan.spec.feedback is not None or full:
            return None
        span, itemsize, kept = self._span(geometry), self._itemsize, self._kept
        width, length, chunks = shape_of_history(widest(steps, span), steps, kept * itemsize)
        each, size = (length + chunks) * width * itemsize, self._bytes
        function, pack = self.kernel.function, self.kernel.pack
        numbers, pointers, filled = self.kernel.dense(counts)
        # behind rows and histories, in one piece of memory
        ends = [size + k * each for k in range(kept)]
        parts = [size + kept * each + k * span * itemsize for k in range(len(self._learnt) + 1)]
        sizes = (0, -(-span // width), steps, neurons, width)
        constants = (*self._further(length, chunks, span), *self.kernel.sizes(geometry))
        sums = [(index, *self._channels(geometry, index, kind), at) for (index, kind), at in zip(self._learnt, parts)]

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Sequence[Tensor]:
            scratch = _scratch.memory(parts[-1])
            address = scratch.data_ptr()
            histories = [address + end for end in ends]
            addresses = [*map(data_ptr, pointers((*tensors, *params)))]
            for place, number in filled:
                addresses.insert(place, address + parts[number])
            function(pack(*sizes, address, *constants, *numbers(params), *histories, *addresses))
            totals = []
            for index, inner, channels, at in sums:
                total = torch.empty_like(params[index])
                self._add_up(span, inner, channels, address + at, total)
                totals.append(total)
            return totals

        return launch

    def _channels(self, geometry: Geometry, index: int, kind: str) -> Tuple[int, int]:
        return geometry.channels[index] if kind == "channel" else (self._span(geometry), 1)

    def _span(self, geometry: Geometry) -> int:
        return span_of(self.plan, geometry) if self._grouped else geometry.neurons

    def _further(self, length: int, chunks: int, span: int) -> Tuple[int, ...]:
        """Sizes that only some kernels have."""
        # an adjoint of inputs and cotangents alone recomputes no state: its kernel has no chunks
        return (*((length, chunks) if self._kept else ()), *((span,) if self._grouped else ()))

    def _add_up(self, span: int, inner: int, channels: int, parts: int, total: Tensor) -> None:
        if self._totals is not None:
            self._totals.run(self._totals.pack(span, inner, channels, parts, total.data_ptr()))


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

    def sizes(self, geometry: Geometry) -> List[int]:
        """How channel parameters lie, and the strides of contiguous tensors."""
        channels = [geometry.channels[index][which] for index, which in self._channels]
        return [*channels, *[geometry.neurons] * len(self._strides)]

    def dense(self, counts: Sequence[int]) -> Tuple[_Pick, _Pick, List[Tuple[int, int]]]:
        """For tensors in a row, so many of each group: what picks the numbers among the parameters, what picks its
        pointers among tensors and parameters, and where among the pointers which sum of a parameter stands.
        """
        starts = [sum(counts[:group]) for group in range(len(counts))]
        starts[PARAMS] = sum(counts)
        pointers = [starts[group] + index for group, index in self._pointers if group < len(counts)]
        sums = [(place, index) for place, (group, index) in enumerate(self._pointers) if group == len(counts)]
        return _picker([index for _, index in self._numbers]), _picker(pointers), sums

    def run(self, *arguments: Any) -> None:
        """Run it, without the GIL."""
        self.function(self.pack(*arguments))


def _picker(indices: Sequence[int]) -> _Pick:
    """What gives the items at these places, as :func:`operator.itemgetter` does for two or more."""
    return itemgetter(*indices) if len(indices) > 1 else lambda items: [items[index] for index in indices]


def bytes_of(dtype: torch.dtype) -> int:
    """Bytes of a number."""
    return torch.finfo(dtype).bits // 8


def widest(steps: int, neurons: int) -> int:
    """Neurons of a block at most: no more than there are, and some blocks for every thread."""
    # threads take blocks as they come free, so more blocks than threads even out their speeds
    share = neurons if steps * neurons < WORTHWHILE else max(-(-neurons // (2 * torch.get_num_threads())), NARROW)
    # a multiple of the widest vector, 16 numbers of float32, so that the loop over a block's neurons leaves none over
    return min(-(-share // 16) * 16, BLOCK)


def with_rows(plan: ForwardPlan, groups: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """The tensors of a forward launch with feedback, with what a neuron gives to each neuron in a row of the weight."""
    params = [*groups[PARAMS]]
    at = len(plan.program.params)
    params[at] = params[at].t().contiguous()
    return (*groups[:PARAMS], params, *groups[PARAMS + 1 :])


def blocks_of(plan: Union[ForwardPlan, BackwardPlan], geometry: Geometry, groups: Sequence[Any]) -> Tuple[int, int]:
    """Neurons of a block at most, and how much work a launch is."""
    steps, neurons = geometry[:2]
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
