"""Launches of generated kernels: which kernel takes a call, and its arguments."""

from __future__ import annotations

from functools import cached_property, reduce
from math import inf
from operator import itemgetter, or_
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import BackendError
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.writing import Places
from spikecore_cupy.chunks import chunk_length
from spikecore_cupy.derivative import divisors, is_power_of_two, normalises
from spikecore_cupy.device import shared
from spikecore_cupy.feedback import FeedbackBackwardWriter, FeedbackForwardWriter
from spikecore_cupy.feedback_narrow import NarrowBackwardWriter, NarrowForwardWriter
from spikecore_cupy.feedback_shape import (
    MEMORY,
    MULTIPROCESSORS,
    Layout,
    Narrow,
    by_time,
    length_of,
    shapes_of,
)
from spikecore_cupy.forms import Size, beside_of, form_of, in_chunks, longest, sizes_of, span_of
from spikecore_cupy.source import print_kernel
from spikecore_cupy.sums import Arrangement, Totals, arrangement, tiling
from spikecore_cupy.text import Form, Source

#: Layers of so many neurons have kernels of their own where steps begin beside a sector; launches of fewer are short.
BESIDE = 2**16
#: Threads that a launch should have before one takes more than 4 bytes of a step, and half as many before it takes
#: more than one number.
MANY = 2**16
#: In 16-bit backward kernels layers of any size multiply by reciprocals over up to SHORT steps; over more steps, layers
#: of at most FEW neurons.
SHORT, FEW = 10, 2**17
#: Neurons at most of a thread of a backward kernel that fetches ahead.
PAIR = 2
#: Steps at least of chunks of which what backward keeps lies in shared memory; shorter ones are faster in registers.
ASIDE = 11
#: Fewer neurons than these have places in the steps of a chunk that are counted with 32 bits.
_FEWER = 2**27

data_ptr = Tensor.data_ptr
Plan = Union[ForwardPlan, BackwardPlan]
#: For each parameter: neurons between neighbouring channels, channels.
Channels = Sequence[Tuple[int, int]]


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that gives what a sequence has at these places."""
    return itemgetter(*places) if len(places) > 1 else lambda values: [values[place] for place in places]


class Launcher:
    """The kernels of a plan, one for each width, and how their arguments are found among the tensors of a launch.

    ``learnt`` are the kinds of the parameters whose gradients it returns. With ``rows``,
    those of tensors lie apart.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        plan: Plan,
        groups: Sequence[str],
        learnt: Sequence[str],
        rows: bool = False,
        beside: Optional[Form] = None,
    ) -> None:
        self.kernel, self.plan, self.groups, self.learnt = kernel, plan, groups, learnt
        self._form = (beside or form_of(plan))._replace(rows=rows)
        self._align = torch.finfo(plan.compute).bits // 8
        self._bytes = torch.finfo(plan.dtype).bits // 8
        self._of_rows: Optional[Launcher] = None
        source = print_kernel(plan, self._form)
        self.fixed, self.compute, self._longest = source.fixed, plan.compute, longest(plan.program, plan.spec)
        #: Which parameters these are.
        self._learnt_at = [plan.program.params.index(name) for name in getattr(plan, "learn", ())]
        places = Places(source.arguments, groups)
        self._pointers, self._strides, self._rows = (places.of(kind) for kind in ("pointer", "stride", "row"))
        #: Inputs with one number a step, wherever it lies.
        self._uniform = places.of("uniform")
        #: The kind of each input whose gradient a block adds up.
        self._added = [plan.broadcast[index] for index in getattr(plan, "summed", ())]
        self._channels = places.channels()
        #: Parameters per channel that a thread reads, or whose gradients it adds up: its groups have the same channels.
        summed = [index for index, kind in zip(self._learnt_at, learnt) if kind == "channel"]
        self._per_channel = sorted({*summed, *(index for index, _ in self._channels)})
        self._grouped = any(argument.kind == "span" for argument in source.arguments)
        #: True if the text reads a tensor whose steps lie in rows: it may not read those that do.
        self._in_rows = any(argument.kind == "columns" for argument in source.arguments)
        self._sums, self._numbers = ([index for _, index in places.of(kind)] for kind in ("sum", "number"))
        #: For steps that begin beside a sector of memory; None where there is no other form for them, or this is it.
        self._beside = None if beside or rows or learnt or self._grouped else beside_of(plan)
        self._unit = self._beside.unit if self._beside else 1
        self._params = groups.index("params")
        self._kernels: Dict[Tuple[int, int, bool, bool, Size], Any] = {}
        #: Parameters that are products with reciprocals, where they are powers of two.
        self._divisors = [plan.program.params.index(str(node.attr)) for node in divisors(plan)]
        #: Choices for so many neurons.
        self._size = sizes_of(plan, self._form)
        #: The largest number of neurons for which steps multiply by reciprocals.
        self._most = self._multiplied()
        #: Threads of a block at most; a kernel on a CPU has one.
        self._threads = self._form.threads if kernel.block > 1 else 1  # type: ignore[attr-defined]  # a class
        #: Kernel that adds up the sums of blocks, if blocks add up channels.
        self._totals = Totals(kernel, plan.compute) if {*learnt} == {"channel"} and not self._added else None

    def __call__(self, geometry: Geometry, *groups: Any) -> Sequence[Tensor]:
        """Launch on these tensors; gives the parameters' gradients in parts."""
        steps, neurons, channels, (columns, apart), period = geometry[:5]
        if columns and not self._form.rows:
            # a text of its own: where steps are dense, the division by a row's length would cost time
            if self._of_rows is None:
                self._of_rows = Launcher(self.kernel, self.plan, self.groups, self.learnt, rows=True)
            return self._of_rows(geometry, *groups)
        # a power of two divides every one of some numbers where it divides their bits together
        addresses, stride_bits = 0, neurons | columns | period
        pointers, strides = [], []
        for group, index in self._pointers:
            pointer = groups[group][index].data_ptr()
            addresses |= pointer
            pointers.append(pointer)
        for group, index in self._strides:
            stride = groups[group][index].stride(0)
            stride_bits |= stride
            strides.append(stride)
        for group, index in self._uniform:
            pointers.append(groups[group][index].data_ptr())
            strides.append(groups[group][index].stride(0))
        # none where steps are dense
        for group, index in self._rows:
            stride = groups[group][index].stride(apart)
            stride_bits |= stride
            strides.append(stride)
        # of dense tensors every stride is the neurons of a step
        if neurons % self._unit and not addresses % 32 and strides == [neurons] * len(strides):
            beside = self._large_beside(neurons)
            if beside is not None:
                return beside(geometry, *groups)
        x, params = groups[0][0], groups[self._params]
        # every number of steps has chunks of one of four lengths, in some plans of eight: no more kernels than that
        length = 0 if self.fixed else chunk_length(steps, self._longest)
        size, width = self._size(neurons, length < ASIDE), self._form.width
        powers = self._multiplies(neurons, params, size)
        if size.aside and self._divisors and not powers:
            size = self._size(neurons, True)
        if not self._form.staged:
            width = self._narrowed(neurons, width, size)
            if stride_bits % width or addresses % (width * self._align):
                width = self._fitting(width, stride_bits, addresses)
        arranged, threads, span, blocks = self._arranged(width, neurons, channels, size)
        blocks, parts, of_inputs = self._tiled(width, neurons, period, blocks)
        key = (width, length, powers, arranged is not None, size)
        kernel = self._kernels.get(key) or self._compiled(*key)
        sums: Sequence[Tensor] = ()
        if arranged is not None:
            sums = x.new_empty((len(self.learnt), blocks * arranged.numbers), dtype=self.compute)
        else:
            # sums of blocks or of threads, added up afterwards in a fixed order: the same bits at every run
            counts = [blocks if kind == "scalar" else span for kind in self.learnt]
            sums = [x.new_empty(count, dtype=self.compute) for count in counts]
            sums += [x.new_empty((steps, count), dtype=self.compute) for count in parts]
        pointers += [sums[index].data_ptr() for index in self._sums]
        if self._channels:
            strides += [channels[index][which] for index, which in self._channels]
        if self._grouped:
            strides.append(span)
        if self._in_rows:
            strides.append(columns)
        if arranged is not None:
            strides += [arranged.lanes, arranged.period]
        strides += of_inputs
        numbers = [params[index] for index in self._numbers]
        sizes = (neurons,) if self.fixed else (neurons, steps)
        kernel(blocks, x.get_device(), (*sizes, *pointers, *strides, *numbers), threads)
        if arranged is None:
            return sums
        return self._totals(sums, channels[self._learnt_at[0]][1], arranged.inner)  # type: ignore[misc, arg-type]  # one

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Callable[[Sequence[Tensor], Sequence[Any]], Any]:
        """The launch of dense tensors: all that does not depend on where they are is found now."""
        steps, neurons, channels, _, period = geometry[:5]
        beside = self._large_beside(neurons) if neurons % self._unit else None
        if beside is not None:
            return beside.dense(geometry, counts)
        width, numbers, learnt = self._form.width, self._numbers, self.learnt
        length = 0 if self.fixed else chunk_length(steps, self._longest)
        size = self._size(neurons, length < ASIDE)
        # among all tensors in a row, the parameters behind them
        starts = [sum(counts[:k]) for k in range(len(counts))]
        starts[self._params] = sum(counts)
        pick = _picker([starts[group] + index for group, index in (*self._pointers, *self._uniform)])
        aligned, picked_numbers = len(self._pointers), _picker(numbers)
        # of dense tensors every stride is the neurons of a step, or the numbers of a period
        constants = [
            period if self.plan.broadcast and self.groups[group] == "inputs" and self.plan.broadcast[index] else neurons
            for group, index in self._strides
        ]
        constants += [1] * len(self._uniform) + [channels[index][which] for index, which in self._channels]
        if not self._form.staged:
            width = self._narrowed(neurons, width, size)
            while (neurons | period) % width:
                width //= 2
        arranged, threads, span, blocks = self._arranged(width, neurons, channels, size)
        blocks, added, of_inputs = self._tiled(width, neurons, period, blocks)
        if self._grouped:
            constants.append(span)
        count = 0 if arranged is None else blocks * arranged.numbers
        if arranged is not None:
            constants += [arranged.lanes, arranged.period]
        constants += of_inputs
        # a network has layers of many sizes, which have few widths and lengths: the text is printed once for each
        by_powers: List[Any] = [None, None]
        sizes = (neurons,) if self.fixed else (neurons, steps)
        unaligned = 31 if self._form.staged else width * self._align - 1
        word = torch.finfo(self.compute).bits // 8

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Optional[Sequence[Tensor]]:
            pointers = [*map(data_ptr, pick((*tensors, *params)))]
            if reduce(or_, pointers[:aligned], 0) & unaligned:
                return None
            x, powers = tensors[0], self._multiplies(neurons, params, size)
            if size.aside and self._divisors and not powers:
                return None
            kernel = by_powers[powers]
            if kernel is None:
                key = (width, length, powers, arranged is not None, size)
                kernel = by_powers[powers] = self._kernels.get(key) or self._compiled(*key)
            sums: Sequence[Tensor] = ()
            parts = None
            if arranged is not None:
                parts = x.new_empty((len(learnt), count), dtype=self.compute)
                pointers += [parts.data_ptr() + index * count * word for index in self._sums]
            elif learnt or added:
                # the sum of one block is the gradient: in the shape of its parameter
                sums = [
                    torch.empty_like(params[index])
                    if kind == "scalar" and blocks == 1
                    else x.new_empty(blocks if kind == "scalar" else span, dtype=self.compute)
                    for kind, index in zip(learnt, self._learnt_at)
                ]
                sums += [x.new_empty((steps, each), dtype=self.compute) for each in added]
                pointers += [sums[index].data_ptr() for index in self._sums]
            kernel(blocks, x.get_device(), (*sizes, *pointers, *constants, *picked_numbers(params)), threads)
            if parts is None or self._totals is None:
                return sums
            return self._totals(parts, channels[self._learnt_at[0]][1], arranged.inner)  # type: ignore[union-attr]  # there are parts

        return launch

    def _arranged(
        self, width: int, neurons: int, channels: Channels, size: Size
    ) -> Tuple[Optional[Arrangement], int, int, int]:
        """For so many neurons: how sums per channel are arranged, threads of a block, how far apart the groups of a
        thread are, and blocks. The last block may have threads without neurons.
        """
        arranged = None
        if self._totals is not None:
            arrangements = {channels[index] for index in self._learnt_at}
            (inner, count) = channels[self._learnt_at[0]]
            # a thread that has the whole sum of its channels leaves nothing to add up
            if len(arrangements) == 1 and (self._form.grid or (inner, count) != (1, self._span(neurons, channels, 1))):
                arranged = arrangement(width, inner, count, self._threads)
        # a kernel on a CPU has one thread
        threads = min(self._threads, size.threads) if arranged is None else arranged.block
        span = self._span(neurons, channels, width * threads)
        return arranged, threads, span, -(-span // (threads * width))

    def _tiled(self, width: int, neurons: int, period: int, blocks: int) -> Tuple[int, List[int], List[int]]:
        """Of inputs that broadcast: the blocks of a launch; the numbers of a step that they leave of each gradient that
        they add up; the sizes that the text takes.
        """
        sizes = [period] if period else []
        if not self._added:
            return blocks, [], sizes
        tiles = tiling(width, neurons, period, self._threads, self._bytes)
        parts = [tiles.numbers[kind] for kind in self._added]
        return tiles.blocks, parts, [*sizes, *parts, tiles.tile]

    def _large_beside(self, neurons: int) -> Optional[Launcher]:
        """Launcher of large layers whose steps begin beside a sector; None for other layers."""
        return self._of_beside if self._beside and BESIDE <= neurons < _FEWER else None

    @cached_property
    def _of_beside(self) -> Launcher:
        form = self._beside.form if self._beside else None
        return Launcher(self.kernel, self.plan, self.groups, self.learnt, beside=form)

    def _multiplied(self) -> float:
        """Of how many neurons at most the steps may multiply by reciprocals (:mod:`spikecore_cupy.derivative`).

        Backward in 16 bits of few, unless there are few steps, or what is kept lies in shared memory: without the
        branches of divisions the compiler computes all steps of a thread side by side, and takes so many registers that
        too few threads run at once. In float32 memory is waited for.
        """
        plan = self.plan
        if not self._divisors:
            return 0
        if isinstance(plan, ForwardPlan) or plan.dtype == plan.compute or normalises(plan):
            return inf
        return inf if 0 < (plan.spec.steps or 0) <= SHORT else FEW

    def _multiplies(self, neurons: int, params: Sequence[Any], size: Size) -> bool:
        """True if the kernel for so many neurons multiplies by reciprocals of these parameters."""
        few = neurons <= self._most or (self._most == FEW and size.aside)
        return few and all(is_power_of_two(params[index]) for index in self._divisors)

    def _narrowed(self, neurons: int, width: int, size: Size) -> int:
        """The width for so many neurons: narrower where few threads would not hide each other's waits."""
        # a kernel on a CPU waits for nothing
        if self._form.grid or self._threads == 1:
            return width
        if size.aside:
            return width
        if size.ahead:
            plan = self.plan
            if isinstance(plan, ForwardPlan) or (self._bytes > 2 and (len(plan.program.states) > 1 or plan.learn)):
                # nor does a kernel that fetches ahead, unless it would leave multiprocessors idle
                return min(width, 2) if neurons < 2 * MANY else width
            # LIF, 250 steps in bfloat16 on an H100: 0.91 of a copy's speed, with four neurons 0.86
            width = min(width, PAIR)
        while width > 1 and neurons < width * (MANY if width * self._bytes > 4 else MANY // 2):
            width //= 2
        return width

    def _fitting(self, width: int, stride_bits: int, addresses: int) -> int:
        """The widest vector access, at most this wide, that size, strides and alignment of these tensors allow."""
        while width > 1 and (stride_bits % width or addresses % (width * self._align)):
            width //= 2
        return width

    def _span(self, neurons: int, channels: Channels, whole: int) -> int:
        """Distance of the groups of a thread; all neurons if it has one group."""
        if not self._grouped:
            return neurons
        return span_of(self._form, neurons, [channels[index] for index in self._per_channel], whole)

    def _compiled(self, width: int, length: int, powers: bool, sums: bool, size: Size) -> Any:
        # printed when they first come: an odd size has a narrower kernel, and few lengths of chunks ever come
        form = self._form._replace(width=width, powers=powers, sums=sums, **size._asdict())
        form = in_chunks(self.plan, form, length) if length else form._replace(length=length)
        source = print_kernel(self.plan, form)
        kernel = shared(self.kernel, source.name, source.text, source.types)
        self._kernels[width, length, powers, sums, size] = kernel
        return kernel


def shapes_for(plan: Plan, width: int, multiprocessors: int = MULTIPROCESSORS) -> Sequence[Layout]:
    """Possible layouts of the kernels of a plan for rows of so many neurons, the layout with most blocks first."""
    shapes = shapes_of(width, plan.dtype, multiprocessors, len(plan.spec.drives))
    if not shapes:
        raise BackendError(
            f"a feedback of {width} neurons does not fit the registers of this GPU; choose backend='torch'"
        )
    length = length_of(plan.program, plan.spec)
    return [shape._replace(length=length) for shape in shapes]


def print_feedback(plan: Plan, shape: Layout, powers: bool = False) -> Tuple[Source, Layout]:
    """The kernel of a plan with feedback, and its shape with what depends on the plan. ``powers``: as in a ``Form``."""
    if isinstance(plan, ForwardPlan):
        forward = NarrowForwardWriter if isinstance(shape, Narrow) else FeedbackForwardWriter
        writer: Union[FeedbackForwardWriter, FeedbackBackwardWriter] = forward(plan, shape, powers)
    else:
        backward = NarrowBackwardWriter if isinstance(shape, Narrow) else FeedbackBackwardWriter
        writer = backward(plan, shape, powers)
    return writer.source(), writer.shape


class FeedbackLauncher:
    """The kernels of a plan with feedback, one for each shape."""

    def __init__(self, kernel: Callable[..., Any], plan: Plan, groups: Sequence[str], learnt: Sequence[str]) -> None:
        self.kernel, self.plan, self.groups, self.learnt = kernel, plan, groups, learnt
        self._params = groups.index("params")
        self._kernels: Dict[Tuple[Layout, bool], _Printed] = {}
        #: For rows of so many neurons, a batch, multiprocessors, and divisors that are powers of two.
        self._chosen: Dict[Tuple[int, int, int, bool], _Printed] = {}
        self._divisors = [plan.program.params.index(str(node.attr)) for node in divisors(plan)]

    def __call__(self, geometry: Geometry, *groups: Any) -> Sequence[Tensor]:
        """Launch on these tensors; gives the parameters' gradients in parts."""
        steps, neurons, channels = geometry[:3]
        params, x = groups[self._params], groups[0][0]
        width, device = params[len(self.plan.program.params)].shape[1], x.get_device()
        powers = bool(self._divisors) and all(is_power_of_two(params[index]) for index in self._divisors)
        printed = self._printed(width, neurons // width, device, powers)
        shape = printed.shape
        blocks = -(-(neurons // width) // shape.rows) * shape.cluster
        pointers = [groups[group][index].data_ptr() for group, index in printed.pointers]
        sums: Sequence[Tensor] = ()
        if printed.sums:
            # what is for the bias comes last, and is not there in every layout
            counts = [blocks if kind == "scalar" else neurons for kind in self.learnt[: len(printed.sums)]]
            sums = [x.new_empty(count, dtype=self.plan.compute) for count in counts]
        pointers += [sums[index].data_ptr() for _, index in printed.sums]
        if shape.apart:
            exchange = x.new_zeros(32 + blocks // shape.cluster * shape.exchange, dtype=torch.int32)
            pointers.append(exchange.data_ptr())
        strides = [groups[group][index].stride(0) for group, index in printed.strides]
        strides += [channels[index][which] for index, which in printed.channels]
        numbers = [params[index] for _, index in printed.numbers]
        printed.kernel(blocks, device, (neurons, steps, *pointers, *strides, *numbers), shape.threads)
        return sums

    def _printed(self, width: int, batch: int, device: int, powers: bool) -> _Printed:
        multiprocessors = self.kernel.multiprocessors(device)  # type: ignore[attr-defined]  # a class of kernels
        key = (width, batch, multiprocessors, powers)
        printed = self._chosen.get(key)
        if printed is None:
            shapes = by_time(shapes_for(self.plan, width, multiprocessors), batch, multiprocessors)
            # what is kept of a step is known when the text is printed
            found = (self._of(shape, powers) for shape in shapes)
            printed = self._chosen[key] = next(each for each in found if each.shape.memory <= MEMORY)
        return printed

    def _of(self, shape: Layout, powers: bool) -> _Printed:
        printed = self._kernels.get((shape, powers))
        if printed is None:
            printed = self._kernels[shape, powers] = _Printed(self.kernel, self.plan, shape, self.groups, powers)
        return printed


class _Printed:
    """A kernel, its shape, and where its arguments are."""

    def __init__(
        self, kernel: Callable[..., Any], plan: Plan, shape: Layout, groups: Sequence[str], powers: bool
    ) -> None:
        source, self.shape = print_feedback(plan, shape, powers)
        places = Places(source.arguments, groups)
        self.pointers, self.sums = places.of("pointer"), places.of("sum")
        self.strides, self.numbers, self.channels = places.of("stride"), places.of("number"), places.channels()
        self._made = kernel, source

    @cached_property
    def kernel(self) -> Any:
        """Compiled when it is first launched."""
        made, source = self._made
        return shared(made, source.name, source.text, source.types, self.shape.memory)
