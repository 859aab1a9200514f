"""The backend: two launches over generated kernels."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Union

import torch
from torch import Tensor

from spikecore.kernels import BackwardLaunch, BackwardPlan, ForwardLaunch, ForwardPlan, Geometry, KernelBackend
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS, Places
from spikecore_cupy import CAPABILITIES
from spikecore_cupy.device import Kernel, shared
from spikecore_cupy.source import print_kernel
from spikecore_cupy.writer import CHUNK

#: Registers of a thread for values of all steps of a chunk, so that enough threads fit on a multiprocessor.
REGISTERS = 64

Plan = Union[ForwardPlan, BackwardPlan]


class CupyBackend(KernelBackend):
    """Compiles every program for NVIDIA GPUs: one kernel forward, one backward, over all time steps."""

    name = "cupy"
    capabilities = CAPABILITIES
    chunk = CHUNK

    #: What compiles and launches a kernel.
    kernel: Callable[..., Any] = Kernel

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        return Launcher(self.kernel, plan, FORWARD_GROUPS, ()).launch

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        learnt = [plan.kinds[name] for name in plan.learn]
        return Launcher(self.kernel, plan, BACKWARD_GROUPS, learnt).launch

    def text(self, plan: Plan) -> str:
        return print_kernel(plan, widest(plan)).text


def widest(plan: Plan) -> int:
    """Neighbouring neurons of a thread, where memory allows: 8 bytes of inputs, and fewer for a backward kernel that
    would need more than :data:`REGISTERS` for what it keeps of every step, but two at least.
    """
    bits, word = torch.finfo(plan.dtype).bits, torch.finfo(plan.compute).bits
    width = max(1, 64 // bits)
    if isinstance(plan, BackwardPlan):
        # 16-bit cotangents lie two to a register
        kept = (plan.spec.steps or CHUNK) * (len(plan.cut) + sum(plan.outputs) * bits / word)
        while width > 2 and width * kept > REGISTERS:
            width //= 2
    return width


class Launcher:
    """The kernels of a plan, one for each width, and how their arguments are found among the tensors of a launch.

    ``learnt`` are the kinds of the parameters whose gradients it returns.
    """

    def __init__(self, kernel: Callable[..., Any], plan: Plan, groups: Sequence[str], learnt: Sequence[str]) -> None:
        self.kernel, self.plan, self.learnt = kernel, plan, learnt
        self._widest, self._align = widest(plan), torch.finfo(plan.compute).bits // 8
        source = self._source = print_kernel(plan, self._widest)
        self.fixed, self.compute = source.fixed, plan.compute
        places = Places(source.arguments, groups)
        self._pointers, self._strides, self._channels = places.of("pointer"), places.of("stride"), places.channels()
        self._sums, self._numbers = ([index for _, index in places.of(kind)] for kind in ("sum", "number"))
        self._params = groups.index("params")
        self._kernels: Dict[int, Any] = {}

    def launch(self, geometry: Geometry, *groups: Any) -> List[Tensor]:
        """Launch on these tensors; gives the parameters' gradients in parts."""
        steps, neurons, channels = geometry
        pointers = [groups[group][index].data_ptr() for group, index in self._pointers]
        strides = [groups[group][index].stride(0) for group, index in self._strides]
        width = self._fitting(neurons, pointers, strides)
        kernel = self._kernels.get(width) or self._compiled(width)
        # rounded up: the last block has threads without neurons
        blocks = -(-neurons // (kernel.block * width))
        x, params = groups[0][0], groups[self._params]
        sums = []
        if self.learnt:
            # a scalar's gradient is one sum per block, added up afterwards in a fixed order: the same bits at every run
            counts = [blocks if kind == "scalar" else neurons for kind in self.learnt]
            sums = [x.new_empty(count, dtype=self.compute) for count in counts]
            pointers += [sums[index].data_ptr() for index in self._sums]
        if self._channels:
            strides += [channels[index][which] for index, which in self._channels]
        numbers = [params[index] for index in self._numbers]
        sizes = (neurons,) if self.fixed else (neurons, steps)
        kernel(blocks, x.get_device(), (*sizes, *pointers, *strides, *numbers))
        return sums

    def _fitting(self, neurons: int, pointers: Sequence[int], strides: Sequence[int]) -> int:
        """The widest vector access, in neurons, that size, alignment and strides of these tensors allow."""
        # a power of two divides every one of some numbers where it divides their bits together
        addresses, stride_bits = 0, neurons
        for pointer in pointers:
            addresses |= pointer
        for stride in strides:
            stride_bits |= stride
        width = self._widest
        while width > 1 and (stride_bits % width or addresses % (width * self._align)):
            width //= 2
        return width

    def _compiled(self, width: int) -> Any:
        # unaligned or odd sizes are rare: their narrower kernel is printed when one first comes
        source = self._source if width == self._widest else print_kernel(self.plan, width)
        kernel = self._kernels[width] = shared(self.kernel, source.name, source.text, source.types)
        return kernel
