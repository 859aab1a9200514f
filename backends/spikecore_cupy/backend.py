"""The backend: two launches over generated kernels."""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import Bits, Spec, Whole
from spikecore.kernels import (
    BackwardLaunch,
    BackwardPlan,
    ForwardLaunch,
    ForwardPlan,
    Geometry,
    KernelBackend,
    RowGeometry,
)
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS, Places
from spikecore.lang import Program
from spikecore_cupy import CAPABILITIES
from spikecore_cupy.chunks import chunk_length, longest
from spikecore_cupy.derivative import normalises
from spikecore_cupy.device import Kernel, shared
from spikecore_cupy.divisors import divisors, is_power_of_two
from spikecore_cupy.feedback_launcher import FeedbackLauncher, print_feedback, shape_for
from spikecore_cupy.feedback_shape import length_of, takes
from spikecore_cupy.forms import form_of
from spikecore_cupy.packing import Packer
from spikecore_cupy.source import print_kernel
from spikecore_cupy.statistics import Statistics
from spikecore_cupy.sums import Totals, arrangement

#: Neurons that are computed side by side where threads add up what several of theirs give: enough for many waves of
#: blocks on any GPU, and so few that their sums are a small part of the memory that a call moves. The same on every
#: GPU, since the order of a sum decides its bits.
SPAN = 2**21

#: In a layer of so few neurons a thread takes up to so many groups, if it then has the whole sum of its channels: that
#: costs less than another launch to add them up.
SMALL, FEW = 4096, 8

#: Neurons of a row in the text of a kernel with feedback that people are shown.
SHOWN = 128

Plan = Union[ForwardPlan, BackwardPlan]
#: For each parameter: neurons between neighbouring channels, channels.
Channels = Sequence[Tuple[int, int]]


class CupyBackend(KernelBackend):
    """Compiles every program for NVIDIA GPUs: one kernel forward, one backward, over all time steps."""

    name = "cupy"
    capabilities = CAPABILITIES
    rows = True
    projects = True

    #: What compiles and launches a kernel.
    kernel: Callable[..., Any] = Kernel

    #: What compiles and launches a kernel with feedback.
    feedback_kernel: Callable[..., Any] = Kernel

    def chunk_of(self, program: Program, spec: Spec) -> int:
        return longest(program, spec) if spec.feedback is None else length_of(program, spec)

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """Where a cluster of multiprocessors holds the weights in its registers: with float32 up to 512 neurons, with
        16 bits more.
        """
        return takes(program, spec, width) and self.feedback_kernel.multiplies()  # type: ignore[attr-defined]  # a class

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        if plan.spec.feedback is not None:
            return FeedbackLauncher(self.feedback_kernel, plan, FORWARD_GROUPS, ())
        return Launcher(self.kernel, plan, FORWARD_GROUPS, ())

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        learnt = [plan.kinds[name] for name in plan.learn]
        if plan.spec.feedback is not None:
            return FeedbackLauncher(self.feedback_kernel, plan, BACKWARD_GROUPS, learnt)
        return Launcher(self.kernel, plan, BACKWARD_GROUPS, learnt)

    def statistics(self, spec: Spec) -> Statistics:
        return Statistics(self.kernel, spec)

    def text(self, plan: Plan) -> str:
        if plan.spec.feedback is not None:
            # the width of a row is known when a launch has its weight
            return print_feedback(plan, shape_for(plan, SHOWN))[0].text
        return print_kernel(plan, form_of(plan)).text

    def pack(self, numbers: Tensor, whole: Whole, like: Optional[Tensor] = None) -> Bits:
        return self._packer.pack(numbers, whole, like)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        return self._packer.unpack(bits, whole, count, dtype)

    @cached_property
    def _packer(self) -> Packer:
        return Packer(self.kernel)


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
    ) -> None:
        self.kernel, self.plan, self.groups, self.learnt = kernel, plan, groups, learnt
        self._form, self._align = form_of(plan)._replace(rows=rows), torch.finfo(plan.compute).bits // 8
        self._of_rows: Optional[Launcher] = None
        source = print_kernel(plan, self._form)
        self.fixed, self.compute, self._longest = source.fixed, plan.compute, longest(plan.program, plan.spec)
        #: Which parameters these are.
        self._learnt_at = [plan.program.params.index(name) for name in getattr(plan, "learn", ())]
        places = Places(source.arguments, groups)
        self._pointers, self._strides, self._rows = (places.of(kind) for kind in ("pointer", "stride", "row"))
        self._channels = places.channels()
        #: Parameters per channel that a thread reads, or whose gradients it adds up: its groups have the same channels.
        summed = [index for index, kind in zip(self._learnt_at, learnt) if kind == "channel"]
        self._per_channel = sorted({*summed, *(index for index, _ in self._channels)})
        self._grouped = any(argument.kind == "span" for argument in source.arguments)
        self._sums, self._numbers = ([index for _, index in places.of(kind)] for kind in ("sum", "number"))
        self._params = groups.index("params")
        self._kernels: Dict[Tuple[int, int, bool, bool], Any] = {}
        #: Parameters that are products with reciprocals, where they are powers of two.
        self._divisors = [plan.program.params.index(str(node.attr)) for node in divisors(plan)]
        #: Threads of a block at most; a kernel on a CPU has one.
        self._threads = min(self._form.threads, kernel.block)  # type: ignore[attr-defined]  # a class of kernels
        #: What adds up the sums of blocks, where blocks add up channels.
        self._totals = Totals(kernel, plan.compute) if normalises(plan) and {*learnt} == {"channel"} else None

    def __call__(self, geometry: Geometry, *groups: Any) -> Sequence[Tensor]:
        """Launch on these tensors; gives the parameters' gradients in parts."""
        steps, neurons, channels = geometry
        columns = apart = 0
        if isinstance(geometry, RowGeometry):
            if not self._form.rows:
                # a text of its own: where steps are dense, the division by a row's length would cost time
                if self._of_rows is None:
                    self._of_rows = Launcher(self.kernel, self.plan, self.groups, self.learnt, rows=True)
                return self._of_rows(geometry, *groups)
            columns, apart = geometry.rows
        # a power of two divides every one of some numbers where it divides their bits together
        addresses, stride_bits = 0, neurons | columns
        pointers, strides = [], []
        for group, index in self._pointers:
            pointer = groups[group][index].data_ptr()
            addresses |= pointer
            pointers.append(pointer)
        for group, index in self._strides:
            stride = groups[group][index].stride(0)
            stride_bits |= stride
            strides.append(stride)
        # none where steps are dense
        for group, index in self._rows:
            stride = groups[group][index].stride(apart)
            stride_bits |= stride
            strides.append(stride)
        width = self._form.width
        if stride_bits % width or addresses % (width * self._align):
            width = self._fitting(stride_bits, addresses)
        # every number of steps has chunks of one of four lengths, in some plans of eight: no more kernels than that
        length = 0 if self.fixed else chunk_length(steps, self._longest)
        x, params = groups[0][0], groups[self._params]
        powers = bool(self._divisors) and all(is_power_of_two(params[index]) for index in self._divisors)
        arranged = None
        if self._totals is not None:
            arranged = arrangement(width, *channels[self._learnt_at[0]], self._threads)
        key = (width, length, powers, arranged is not None)
        kernel = self._kernels.get(key) or self._compiled(*key)
        threads = self._threads if arranged is None else arranged.block
        span = self._span(neurons, channels, width * threads) if self._grouped else neurons
        # rounded up: the last block has threads without neurons
        blocks = -(-span // (threads * width))
        sums: Sequence[Tensor] = ()
        if arranged is not None:
            sums = x.new_empty((len(self.learnt), blocks * arranged.numbers), dtype=self.compute)
        elif self.learnt:
            # sums of blocks or of threads, added up afterwards in a fixed order: the same bits at every run
            counts = [blocks if kind == "scalar" else span for kind in self.learnt]
            sums = [x.new_empty(count, dtype=self.compute) for count in counts]
        pointers += [sums[index].data_ptr() for index in self._sums]
        if self._channels:
            strides += [channels[index][which] for index, which in self._channels]
        if self._grouped:
            strides.append(span)
        if columns:
            strides.append(columns)
        if arranged is not None:
            strides += [arranged.lanes, arranged.period]
        numbers = [params[index] for index in self._numbers]
        sizes = (neurons,) if self.fixed else (neurons, steps)
        kernel(blocks, x.get_device(), (*sizes, *pointers, *strides, *numbers), threads)
        if arranged is None:
            return sums
        return self._totals(sums, channels[self._learnt_at[0]][1], arranged.inner)  # type: ignore[misc, arg-type]  # one

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Callable[[Sequence[Tensor], Sequence[Any]], Any]:
        """The launch of dense tensors: all that does not depend on where they are is found now."""
        steps, neurons, channels = geometry
        width, numbers, learnt = self._form.width, self._numbers, self.learnt
        # among all tensors in a row; those that are parameters count from the end
        starts = [sum(counts[:k]) for k in range(len(counts))]
        order = [-1 - index if group == self._params else starts[group] + index for group, index in self._pointers]
        # of dense tensors every stride is the neurons of a step
        constants = [neurons] * len(self._strides) + [channels[index][which] for index, which in self._channels]
        while neurons % width:
            width //= 2
        arranged = None
        if self._totals is not None:
            arranged = arrangement(width, *channels[self._learnt_at[0]], self._threads)
        threads = self._threads if arranged is None else arranged.block
        span = self._span(neurons, channels, width * threads) if self._grouped else neurons
        if self._grouped:
            constants.append(span)
        blocks = -(-span // (threads * width))
        kept = 0 if arranged is None else blocks * arranged.numbers
        if arranged is not None:
            constants += [arranged.lanes, arranged.period]
        length = 0 if self.fixed else chunk_length(steps, self._longest)
        # a network has layers of many sizes, which have few widths and lengths: the text is printed once for each
        by_powers: List[Any] = [None, None]
        sizes, unaligned = (neurons,) if self.fixed else (neurons, steps), width * self._align - 1
        word = torch.finfo(self.compute).bits // 8

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Optional[Sequence[Tensor]]:
            addresses, pointers = 0, []
            for index in order:
                pointer = (tensors[index] if index >= 0 else params[-1 - index]).data_ptr()
                addresses |= pointer
                pointers.append(pointer)
            if addresses & unaligned:
                return None
            x = tensors[0]
            powers = bool(self._divisors) and all(is_power_of_two(params[index]) for index in self._divisors)
            kernel = by_powers[powers]
            if kernel is None:
                key = (width, length, powers, arranged is not None)
                kernel = by_powers[powers] = self._kernels.get(key) or self._compiled(*key)
            sums: Sequence[Tensor] = ()
            parts = None
            if arranged is not None:
                parts = x.new_empty((len(learnt), kept), dtype=self.compute)
                pointers += [parts.data_ptr() + index * kept * word for index in self._sums]
            elif learnt:
                # the sum of one block is the gradient: in the shape of its parameter
                sums = [
                    torch.empty_like(params[index])
                    if kind == "scalar" and blocks == 1
                    else x.new_empty(blocks if kind == "scalar" else span, dtype=self.compute)
                    for kind, index in zip(learnt, self._learnt_at)
                ]
                pointers += [sums[index].data_ptr() for index in self._sums]
            arguments = (*sizes, *pointers, *constants, *[params[index] for index in numbers])
            kernel(blocks, x.get_device(), arguments, threads)
            if parts is None or self._totals is None:
                return sums
            return self._totals(parts, channels[self._learnt_at[0]][1], arranged.inner)  # type: ignore[union-attr]  # there are parts

        return launch

    def _fitting(self, stride_bits: int, addresses: int) -> int:
        """The widest vector access, in neurons, that size, strides and alignment of these tensors allow."""
        width = self._form.width
        while width > 1 and (stride_bits % width or addresses % (width * self._align)):
            width //= 2
        return width

    def _span(self, neurons: int, channels: Channels, whole: int) -> int:
        """How far apart the groups of a thread are: in the same channels, and about :data:`SPAN` neurons, or as many as
        the form's blocks of ``whole`` neurons have.
        """
        unit = self._form.width
        for index in self._per_channel:
            inner, count = channels[index]
            unit *= inner * count // gcd(unit, inner * count)
        if self._form.grid:
            return min(neurons, max(1, self._form.grid * whole // unit) * unit)
        units = -(-neurons // unit)
        if neurons <= SMALL and units <= FEW and all(channels[index] == (1, unit) for index in self._per_channel):
            return unit
        rounds = -(-units // max(1, SPAN // unit))
        # all threads get as many groups, but for the last
        return min(neurons, -(-units // rounds) * unit)

    def _compiled(self, width: int, length: int, powers: bool, sums: bool) -> Any:
        # printed when they first come: an odd size has a narrower kernel, and few lengths of chunks ever come
        form = self._form._replace(width=width, length=length, powers=powers, sums=sums)
        source = print_kernel(self.plan, form)
        kernel = shared(self.kernel, source.name, source.text, source.types)
        self._kernels[width, length, powers, sums] = kernel
        return kernel
