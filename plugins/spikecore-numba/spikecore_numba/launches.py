"""Launches: from the tensors of a call to kernels over blocks of neurons."""

from __future__ import annotations

import itertools
import struct
from functools import partial
from math import lcm
from operator import itemgetter
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS, Places
from spikecore_numba.backward import adds_groups
from spikecore_numba.compiler import Function, compiled
from spikecore_numba.loops import STEP_TOTALS, TOTALS
from spikecore_numba.pages import prefer_large_pages
from spikecore_numba.source import print_kernel
from spikecore_numba.threads import WORTHWHILE, Scratch, over_blocks
from spikecore_numba.writer import BLOCK, SHORTEST_PERIOD, Source

OUTPUTS, TRACE = FORWARD_GROUPS.index("outputs"), FORWARD_GROUPS.index("trace")
# which one it is of the groups of either direction
PARAMS = FORWARD_GROUPS.index("params")
INPUTS, GRAD_INPUTS = BACKWARD_GROUPS.index("inputs"), BACKWARD_GROUPS.index("grad_inputs")
#: Bytes of states that a backward kernel keeps at a time, to stay in a core's own cache.
HISTORY = 1 << 18
#: Neurons whose gradients of parameters are added up apart, about: blocks for many threads, and little memory. The same
#: for any number of threads, since the order of a sum decides its bits.
SPANNED = 1 << 14
#: The neurons for one of whose sums a step has, about, where gradients of inputs are added up.
SHARE = 16
#: Numbers of the vectors that a loop over neurons takes at once, at most.
VECTORS = 64
#: Such sums of all steps that stay in a core's own cache.
STEP_SUMS = 1 << 14
#: Neurons of a block at least, where steps are many.
NARROW = 128

Plan = Union[ForwardPlan, BackwardPlan]
_Pick = Callable[[Sequence[Any]], Sequence[Any]]
#: A launch by the addresses of its kernel's tensors, and all parameters.
_Run = Callable[[Iterable[int], Sequence[Any]], Sequence[Tensor]]

_scratch, _CPU = Scratch(), torch.device("cpu")
data_ptr = Tensor.data_ptr


class Dense:
    """A launch of contiguous tensors: of all but those that are parameters in a row, and the parameters."""

    def __init__(self, run: _Run, pointers: _Pick) -> None:
        self._run, self._pointers = run, pointers

    def __call__(self, tensors: Sequence[Tensor], params: Sequence[Any]) -> Sequence[Tensor]:
        """Launch on these tensors."""
        return self._run(map(data_ptr, self._pointers((*tensors, *params))), params)

    def steps(self, columns: Sequence[Any], params: Sequence[Any], count: int) -> Callable[[int], Sequence[Tensor]]:
        """Implementation of :func:`spikecore.kernels._call.dense_of`: no tensor is made for a step."""
        every = self._pointers((*columns, *[(value,) for value in params]))
        rows, run = [*zip(*[_addresses(column, count) for column in every])], self._run
        return lambda step: run(rows[step], params)


def _addresses(column: Any, count: int) -> Sequence[int]:
    """The address of a column at each step."""
    if not isinstance(column, Tensor):
        return [*map(data_ptr, column)] * (count if len(column) == 1 else 1)
    first, apart = column.data_ptr(), column.stride(0) * column.element_size()
    return range(first, first + count * apart, apart) if apart and len(column) == count else [first] * count


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
        further, periods = period_of(self.plan, geometry), kernel.periods(geometry, self.plan, scratch_bytes)
        if self.plan.spec.feedback is not None:
            groups = with_rows(self.plan, groups)
        before, after = kernel.values(geometry, groups)
        # only what the kernel is the first to write: memory that was written has its pages already
        if steps * neurons >= WORTHWHILE:
            prefer_large_pages((*groups[OUTPUTS], *groups[TRACE]))

        def work(begin: int, end: int) -> None:
            # held in a local variable until the kernel is done: see Scratch.memory
            scratch = _scratch.memory(periods[-1])
            address = scratch.data_ptr()
            repeats = [address + at for at in periods[:-1]]
            kernel.run(begin, end, steps, neurons, width, address, *further, *before, *repeats, *after[len(repeats) :])

        over_blocks(work, blocks_within(neurons, width, row_of(self.plan, geometry)), work_size, groups)

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Optional[Dense]:
        """The launch of contiguous tensors of these sizes where one thread computes them, else None: what does not
        depend on where they are is prepared now.
        """
        steps, neurons = geometry[:2]
        if steps * neurons >= WORTHWHILE or self.plan.spec.feedback is not None:
            return None
        width = widest(steps, neurons, row_of(self.plan, geometry))
        function, pack = self.kernel.function, self.kernel.pack
        numbers, pointers, _ = self.kernel.dense(counts)
        sizes = (0, blocks_within(neurons, width, row_of(self.plan, geometry)), steps, neurons, width)
        constants = (*period_of(self.plan, geometry), *self.kernel.sizes(geometry, self.plan))
        *periods, size = self.kernel.periods(geometry, self.plan, self._bytes)

        def run(addresses: Iterable[int], params: Sequence[Any]) -> Sequence[Tensor]:
            scratch = _scratch.memory(size)
            address = scratch.data_ptr()
            if periods:
                addresses = [*[address + at for at in periods], *[*addresses][len(periods) :]]
            function(pack(*sizes, address, *constants, *numbers(params), *addresses))
            return ()

        return Dense(run, pointers)


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
        self._step_totals = STEP_TOTALS.compiled(plan.compute, plan.compute) if plan.summed else None

    def __call__(self, geometry: Geometry, *groups: Any) -> List[Tensor]:
        """Launch on these tensors; gives the parameters' gradients."""
        kernel, scratch_bytes, itemsize, kept = self.kernel, self._bytes, self._itemsize, self._kept
        steps, neurons = geometry[:2]
        span = self._span(geometry)
        like = groups[INPUTS][0]
        sums = [like.new_empty(span, dtype=self.plan.compute) for _ in self._learnt]
        sums += [like.new_empty((steps, span), dtype=self.plan.compute) for _ in self.plan.summed]
        before, after = kernel.values(geometry, (*groups, sums))
        width, work_size = blocks_of(self.plan, geometry, groups)
        if self._grouped:
            width = widest(steps, span, row_of(self.plan, geometry))
        width, length, chunks = shape_of_history(width, steps, kept * itemsize, self.plan.spec.feedback is not None)
        each = (length + chunks) * width * itemsize
        if steps * neurons >= WORTHWHILE:
            prefer_large_pages(groups[GRAD_INPUTS])
        further = (*self._further(length, chunks, span), *period_of(self.plan, geometry))
        periods = kernel.periods(geometry, self.plan, scratch_bytes + kept * each)

        def work(begin: int, end: int) -> None:
            scratch = _scratch.memory(periods[-1])
            address = scratch.data_ptr()
            # behind the rows, in one piece of memory that the thread keeps for its next kernel
            histories = [address + scratch_bytes + k * each for k in range(kept)]
            repeats = [address + at for at in periods[:-1]]
            places = (*before, *histories, *repeats, *after[len(repeats) :])
            kernel.run(begin, end, steps, neurons, width, address, *further, *places)

        over_blocks(work, blocks_within(span, width, row_of(self.plan, geometry)), work_size, (groups, sums))
        # not by torch: of a few numbers its sum takes longer than a small layer, and on autograd's thread it asks for
        # threads of its own
        for k, (index, kind) in enumerate(self._learnt):
            if kind != "full":
                inner, channels = self._channels(geometry, index, kind)
                total = sums[k].new_empty(channels)
                self._add_up(span, inner, channels, sums[k].data_ptr(), total)
                sums[k] = total
        for k, index in enumerate(self.plan.summed, len(self._learnt)):
            long = min(span, (*period_of(self.plan, geometry), SHORTEST_PERIOD)[0])
            sums[k] = self._add_up_steps(steps, span, long, geometry.periods[index], sums[k].data_ptr())
        return sums

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Optional[Dense]:
        """The same as of :class:`Forward`."""
        steps, neurons = geometry[:2]
        if steps * neurons >= WORTHWHILE or self.plan.spec.feedback is not None:
            return None
        span, itemsize, kept = self._span(geometry), self._itemsize, self._kept
        width = widest(steps, span, row_of(self.plan, geometry))
        width, length, chunks = shape_of_history(width, steps, kept * itemsize)
        each, size = (length + chunks) * width * itemsize, self._bytes
        function, pack = self.kernel.function, self.kernel.pack
        numbers, pointers, filled = self.kernel.dense(counts)
        # behind rows, histories and sums, in one piece of memory
        ends = [size + k * each for k in range(kept)]
        rows = [0, *[1] * len(self._learnt), *[steps] * len(self.plan.summed)]
        *periods, behind = self.kernel.periods(geometry, self.plan, size + kept * each)
        parts = [behind + n * span * itemsize for n in itertools.accumulate(rows)]
        sizes = (0, blocks_within(span, width, row_of(self.plan, geometry)), steps, neurons, width)
        strides = self.kernel.sizes(geometry, self.plan)
        full = [number for number, (_, kind) in enumerate(self._learnt) if kind == "full"]
        constants = (*self._further(length, chunks, span), *period_of(self.plan, geometry), *strides)
        long = min(span, (*period_of(self.plan, geometry), SHORTEST_PERIOD)[0])
        summed = [(geometry.periods[i], at) for i, at in zip(self.plan.summed, parts[len(self._learnt) :])]
        sums = [
            (number, *self._channels(geometry, index, kind), parts[number])
            for number, (index, kind) in enumerate(self._learnt)
            if number not in full
        ]
        whole = partial(torch.empty_strided, (span,), (1,), dtype=self.plan.compute, device=_CPU)
        makes = [((lambda _: whole()) if kind == "full" else torch.empty_like, index) for index, kind in self._learnt]

        def run(addresses: Iterable[int], params: Sequence[Any]) -> Sequence[Tensor]:
            scratch = _scratch.memory(parts[-1])
            address = scratch.data_ptr()
            histories = [address + end for end in ends]
            addresses, totals = [*addresses], [make(params[index]) for make, index in makes]
            addresses[: len(periods)] = [address + at for at in periods]
            for place, number in filled:
                # a number for each neuron is a sum already
                addresses.insert(place, totals[number].data_ptr() if number in full else address + parts[number])
            function(pack(*sizes, address, *constants, *numbers(params), *histories, *addresses))
            for number, inner, channels, at in sums:
                self._add_up(span, inner, channels, address + at, totals[number])
            for period, at in summed:
                totals.append(self._add_up_steps(steps, span, long, period, address + at))
            return totals

        return Dense(run, pointers)

    def _channels(self, geometry: Geometry, index: int, kind: str) -> Tuple[int, int]:
        return geometry.channels[index] if kind == "channel" else (self._span(geometry), 1)

    def _span(self, geometry: Geometry) -> int:
        return span_of(self.plan, geometry) if self._grouped else geometry.neurons

    def _further(self, length: int, chunks: int, span: int) -> Tuple[int, ...]:
        """Sizes that only some kernels have."""
        # an adjoint of inputs and cotangents alone recomputes no state: its kernel has no chunks
        return (*((length, chunks) if self._kept else ()), *((span,) if self._grouped else ()))

    def _add_up_steps(self, steps: int, span: int, long: int, period: int, parts: int) -> Tensor:
        """The sums ``[steps, period]`` of what groups of neurons left at each step."""
        loop = self._step_totals
        total = torch.empty_strided((steps, period), (period, 1), dtype=self.plan.compute, device=_CPU)
        if loop is not None:
            loop.run(loop.pack(steps, span, long, period, parts, total.data_ptr()))
        return total

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
        #: Inputs of a period come first, where they are if it is long enough.
        self._numbers, self._periods = places.of("number"), places.of("period")
        self._pointers = [*self._periods, *places.of("pointer")]

    def values(self, geometry: Geometry, groups: Sequence[Any]) -> Tuple[List[Any], List[int]]:
        """The values of its own arguments, in order: those before the histories, and those behind."""
        # in the order of kinds that the writer gives arguments (writer.ORDER)
        before = [geometry.channels[index][which] for index, which in self._channels]
        before += [groups[group][index].stride(0) for group, index in self._strides]
        before += [groups[group][index] for group, index in self._numbers]
        return before, [groups[group][index].data_ptr() for group, index in self._pointers]

    def periods(self, geometry: Geometry, plan: Plan, begin: int) -> List[int]:
        """Where short periods of inputs are repeated in scratch behind ``begin`` bytes; and last, the end of all."""
        period, numbers = period_of(plan, geometry) or (0, 0)
        each = -(-geometry.steps * period * bytes_of(plan.dtype) // 64) * 64
        return [begin + k * each for k in range(1 + len(self._periods) * (numbers < period))]

    def sizes(self, geometry: Geometry, plan: Plan) -> List[int]:
        """Layout of channel parameters, and strides of tensors that are contiguous, or side by side."""
        channels = [geometry.channels[index][which] for index, which in self._channels]
        apart, beside = {"": geometry.neurons, "period": geometry.period, "step": 1}, plan.side_by_side
        kinds = [plan.broadcast[k] if plan.broadcast and group == INPUTS else "" for group, k in self._strides]
        wider = [len(beside) if group == INPUTS and k in beside else 1 for group, k in self._strides]
        return [*channels, *[apart[kind] * times for kind, times in zip(kinds, wider)]]

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
    """A function that gives the items at these places, as :func:`operator.itemgetter` does for two or more."""
    return itemgetter(*indices) if len(indices) > 1 else lambda items: [items[index] for index in indices]


def bytes_of(dtype: torch.dtype) -> int:
    """Bytes of a number."""
    return torch.finfo(dtype).bits // 8


def widest(steps: int, neurons: int, row: int) -> int:
    """Neurons of a block at most: no more than there are, some blocks for every thread, and within a row blocks of
    about one size.
    """
    # threads take blocks as they come free, so more blocks than threads even out their speeds
    share = neurons if steps * neurons < WORTHWHILE else max(-(-neurons // (2 * torch.get_num_threads())), NARROW)
    # a multiple of the widest vector, 16 numbers of float32, so that the loop over a block's neurons leaves none over
    width = min(-(-share // 16) * 16, BLOCK)
    return width if not row else -(-row // -(-row // width) // 16) * 16


def row_of(plan: Plan, geometry: Geometry) -> int:
    """The neurons of a row of inputs that lie side by side, which no block crosses; 0 where none do."""
    return geometry.period if plan.side_by_side else 0


def blocks_within(neurons: int, width: int, row: int) -> int:
    """The number of blocks of so many neurons."""
    return neurons // row * -(-row // width) if row else -(-neurons // width)


def period_of(plan: Plan, geometry: Geometry) -> Tuple[int, ...]:
    """The kernel's arguments of the period, where inputs have one: a short one is repeated until it is long enough."""
    numbers = geometry.period
    if not numbers:
        return ()
    return numbers if plan.side_by_side else -(-SHORTEST_PERIOD // numbers) * numbers, numbers


def with_rows(plan: ForwardPlan, groups: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """The tensors of a forward launch with feedback, with what a neuron gives to each neuron in a row of the weight."""
    params = [*groups[PARAMS]]
    at = len(plan.program.params)
    params[at] = params[at].t().contiguous()
    return (*groups[:PARAMS], params, *groups[PARAMS + 1 :])


def blocks_of(plan: Plan, geometry: Geometry, groups: Sequence[Any]) -> Tuple[int, int]:
    """Neurons of a block at most, and how much work a launch is."""
    steps, neurons = geometry[:2]
    if plan.spec.feedback is None:
        return widest(steps, neurons, row_of(plan, geometry)), steps * neurons
    # a block is a row of the batch, whose neurons need one another; what comes back is a sum over all of them
    weight = groups[PARAMS][len(plan.program.params)]
    return weight.shape[0], steps * neurons * (1 + weight.shape[0] // 16)


def span_of(plan: BackwardPlan, geometry: Geometry) -> int:
    """Distance of the neurons whose gradients of parameters a block adds up: those of the same channels."""
    # whole vectors, where nothing else says how far apart
    period, wide = geometry.period or (VECTORS if plan.summed else 1), SPANNED
    for name in plan.learn:
        inner, channels = geometry.channels[plan.program.params.index(name)]
        period = lcm(period, max(1, inner * channels))
    if plan.summed:
        # a sum for each step: few enough to be small beside the neurons
        wide = min(wide, max(SHORTEST_PERIOD, geometry.neurons // SHARE, STEP_SUMS // geometry.steps))
    return min(geometry.neurons, -(-wide // period) * period)


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
