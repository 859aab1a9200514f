"""The backend: two launches over generated kernels."""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import Bits, Whole
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
from spikecore_cupy import CAPABILITIES
from spikecore_cupy.chunks import chunk_length
from spikecore_cupy.device import Kernel, shared
from spikecore_cupy.lines import BLOCK
from spikecore_cupy.packing import Packer
from spikecore_cupy.parts import CHUNK, Form
from spikecore_cupy.source import print_kernel

#: Registers of a thread for values of all steps of a chunk, so that enough threads fit on a multiprocessor.
REGISTERS = 64
#: The same where there are several chunks, and the compiler is told how many blocks should fit.
CHUNK_REGISTERS = 72
#: Neurons that are computed side by side where threads add up what several of theirs give: enough for many waves of
#: blocks on any GPU, and so few that their sums are a small part of the memory that a call moves. The same on every
#: GPU, since the order of a sum decides its bits.
SPAN = 2**21

#: In a layer of so few neurons a thread takes up to so many groups, if it then has the whole sum of its channels: that
#: costs less than another launch to add them up.
SMALL, FEW = 4096, 8

Plan = Union[ForwardPlan, BackwardPlan]
#: For each parameter: neurons between neighbouring channels, channels.
Channels = Sequence[Tuple[int, int]]


class CupyBackend(KernelBackend):
    """Compiles every program for NVIDIA GPUs: one kernel forward, one backward, over all time steps."""

    name = "cupy"
    capabilities = CAPABILITIES
    chunk = CHUNK
    rows = True
    projects = True

    #: What compiles and launches a kernel.
    kernel: Callable[..., Any] = Kernel

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        return Launcher(self.kernel, plan, FORWARD_GROUPS, ())

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        learnt = [plan.kinds[name] for name in plan.learn]
        return Launcher(self.kernel, plan, BACKWARD_GROUPS, learnt)

    def text(self, plan: Plan) -> str:
        return print_kernel(plan, form_of(plan)).text

    def pack(self, numbers: Tensor, whole: Whole, like: Optional[Tensor] = None) -> Bits:
        return self._packer.pack(numbers, whole, like)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        return self._packer.unpack(bits, whole, count, dtype)

    @cached_property
    def _packer(self) -> Packer:
        return Packer(self.kernel)


def widest(plan: Plan) -> int:
    """Neighbouring neurons of a thread, where memory allows: 8 bytes of inputs, and fewer for a backward kernel that
    would need more than :data:`REGISTERS` for what it keeps of every step, but two at least.
    """
    bits = torch.finfo(plan.dtype).bits
    width = max(1, 64 // bits)
    if isinstance(plan, BackwardPlan):
        most = REGISTERS if plan.spec.steps else CHUNK_REGISTERS
        while width > 2 and width * _kept(plan) > most:
            width //= 2
    return width


def form_of(plan: Plan) -> Form:
    """The form of a plan's kernel where the number of steps, sizes and layouts of tensors allow any."""
    width, blocks = widest(plan), 0
    if isinstance(plan, BackwardPlan) and not plan.spec.steps and not plan.learn and plan.compute == torch.float32:
        # what is kept, and what a step needs beside it; measured with one and with two states, not with fewer blocks
        blocks = min(6, int(65536 // (BLOCK * (24 + width * _kept(plan)))))
    return Form(width, blocks=blocks if blocks >= 5 else 0)


def _kept(plan: BackwardPlan) -> float:
    """Registers for what a backward kernel keeps of every step of a chunk, of one neuron."""
    bits, word = torch.finfo(plan.dtype).bits, torch.finfo(plan.compute).bits
    # 16-bit cotangents lie two to a register
    return (plan.spec.steps or CHUNK) * (len(plan.cut) + sum(plan.outputs) * bits / word)


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
        self.fixed, self.compute = source.fixed, plan.compute
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
        self._kernels: Dict[Tuple[int, int], Any] = {}

    def __call__(self, geometry: Geometry, *groups: Any) -> List[Tensor]:
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
        # every number of steps has chunks of one of four lengths: no more than four kernels
        length = 0 if self.fixed else chunk_length(steps)
        kernel = self._kernels.get((width, length)) or self._compiled(width, length)
        span = self._span(neurons, channels) if self._grouped else neurons
        # rounded up: the last block has threads without neurons
        blocks = -(-span // (kernel.block * width))
        x, params = groups[0][0], groups[self._params]
        sums = []
        if self.learnt:
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
        numbers = [params[index] for index in self._numbers]
        sizes = (neurons,) if self.fixed else (neurons, steps)
        kernel(blocks, x.get_device(), (*sizes, *pointers, *strides, *numbers))
        return sums

    def dense(self, geometry: Geometry, counts: Sequence[int]) -> Callable[[Sequence[Tensor], Sequence[Any]], Any]:
        """The launch of contiguous tensors: all that does not depend on where they are is found now."""
        steps, neurons, channels = geometry
        width, numbers, learnt = self._form.width, self._numbers, self.learnt
        # among all tensors in a row; those that are parameters count from the end
        starts = [sum(counts[:k]) for k in range(len(counts))]
        order = [-1 - index if group == self._params else starts[group] + index for group, index in self._pointers]
        # of dense tensors every stride is the neurons of a step
        constants = [neurons] * len(self._strides) + [channels[index][which] for index, which in self._channels]
        span = self._span(neurons, channels) if self._grouped else neurons
        if self._grouped:
            constants.append(span)
        length = 0 if self.fixed else chunk_length(steps)
        while neurons % width:
            width //= 2
        kernel = self._kernels.get((width, length)) or self._compiled(width, length)
        blocks = -(-span // (kernel.block * width))
        sizes, unaligned = (neurons,) if self.fixed else (neurons, steps), width * self._align - 1

        def launch(tensors: Sequence[Tensor], params: Sequence[Any]) -> Optional[Sequence[Tensor]]:
            addresses, pointers = 0, []
            for index in order:
                pointer = (tensors[index] if index >= 0 else params[-1 - index]).data_ptr()
                addresses |= pointer
                pointers.append(pointer)
            if addresses & unaligned:
                return None
            x = tensors[0]
            sums: Sequence[Tensor] = ()
            if learnt:
                # the sum of one block is the gradient: in the shape of its parameter
                sums = [
                    torch.empty_like(params[index])
                    if kind == "scalar" and blocks == 1
                    else x.new_empty(blocks if kind == "scalar" else span, dtype=self.compute)
                    for kind, index in zip(learnt, self._learnt_at)
                ]
                pointers += [sums[index].data_ptr() for index in self._sums]
            kernel(blocks, x.get_device(), (*sizes, *pointers, *constants, *[params[index] for index in numbers]))
            return sums

        return launch

    def _fitting(self, stride_bits: int, addresses: int) -> int:
        """The widest vector access, in neurons, that size, strides and alignment of these tensors allow."""
        width = self._form.width
        while width > 1 and (stride_bits % width or addresses % (width * self._align)):
            width //= 2
        return width

    def _span(self, neurons: int, channels: Channels) -> int:
        """How far apart the groups of a thread are: about :data:`SPAN` neurons, and in the same channels."""
        unit = self._form.width
        for index in self._per_channel:
            inner, count = channels[index]
            unit *= inner * count // gcd(unit, inner * count)
        units = -(-neurons // unit)
        if neurons <= SMALL and units <= FEW and all(channels[index] == (1, unit) for index in self._per_channel):
            return unit
        rounds = -(-units // max(1, SPAN // unit))
        # all threads get as many groups, but for the last
        return min(neurons, -(-units // rounds) * unit)

    def _compiled(self, width: int, length: int) -> Any:
        # printed when they first come: an odd size has a narrower kernel, and few lengths of chunks ever come
        form = self._form._replace(width=width, length=length)
        source = print_kernel(self.plan, form)
        kernel = self._kernels[width, length] = shared(self.kernel, source.name, source.text, source.types)
        return kernel
