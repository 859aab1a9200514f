"""The backend: two launches, each of a kernel on one device, with a thread for each neuron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Union

import numpy
import pyopencl as cl
import torch
from torch import Tensor

from spikecore.backend import BackendError, Capabilities
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, KernelBackend
from spikecore.kernels.c_writer import printed
from spikecore.kernels.writing import FILLED
from spikecore.lang.dialects import OPENCL
from spikecore_opencl import CAPABILITIES
from spikecore_opencl.device import Device, chosen

#: Threads of a work group, where a device has so many.
THREADS = 64


class OpenCLBackend(KernelBackend):
    """A thread for each neuron, through all its steps. float32, 16 bits in memory, and float64 where a device has it.

    Forward writes nothing for backward, which computes the states of a neuron again.
    """

    name = "opencl"
    capabilities = CAPABILITIES
    reads_periods = True

    def capabilities_on(self, device_type: str) -> Capabilities:
        return replace(CAPABILITIES, float64=chosen().has_float64)

    def forward(self, plan: ForwardPlan) -> Function:
        return Function(plan)

    def backward(self, plan: BackwardPlan) -> Backward:
        return Backward(plan)

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        return printed(OPENCL, plan).text


class Backward:
    """The launch of a backward plan."""

    def __init__(self, plan: BackwardPlan) -> None:
        self._plan, self._function = plan, Function(plan)

    def __call__(self, geometry: Geometry, *groups: Any) -> List[Tensor]:
        """Fill the tensors that the kernel writes; gives the parameters' gradients, one number per neuron each."""
        plan = self._plan
        sums = [torch.empty(geometry.neurons, dtype=plan.compute) for _ in plan.learn]
        # the states of all neurons before each step, in memory of the device: so many bytes
        size = geometry.steps * geometry.neurons * (4 if plan.compute == torch.float32 else 8)
        self._function(geometry, *groups, sums, [size] * len(plan.recomputed_states))
        return sums


class Function:
    """A compiled kernel, and the launch of a forward plan."""

    def __init__(self, plan: Union[ForwardPlan, BackwardPlan]) -> None:
        self._printed = printed(OPENCL, plan)
        self._device: Device = chosen()
        self._kernel = self._device.kernel(self._printed.name, self._printed.text)
        self._real = numpy.float32 if plan.compute == torch.float32 else numpy.float64
        self._threads = min(THREADS, self._device.handle.max_work_group_size)

    def __call__(self, geometry: Geometry, *groups: Any) -> None:
        """Fill the tensors that the kernel writes. The GIL is free while it waits."""
        device = self._device
        device.check()
        with device.lock:
            try:
                self._launch(device, geometry, self._printed.values(geometry, groups))
            except cl.Error as error:
                raise BackendError(
                    f"backend 'opencl' could not compute {geometry.steps} steps of {geometry.neurons} neurons on "
                    f"{device.title}, so choose smaller batches or backend='torch': {error}"
                ) from error

    def _launch(self, device: Device, geometry: Geometry, values: List[Any]) -> None:
        arguments: List[Any] = [numpy.int64(geometry.steps), numpy.int64(geometry.neurons)]
        filled = []
        for argument, value in zip(self._printed.arguments, values):
            if argument.group == "history":
                arguments.append(device.scratch(value))
            elif argument.kind == "pointer":
                fills = argument.group in FILLED
                arguments.append(device.argument(value, fills))
                filled += [(arguments[-1], value)] if fills else []
            else:
                arguments.append(self._real(value) if argument.kind == "number" else numpy.int64(value))
        for index, value in enumerate(arguments):
            self._kernel.set_arg(index, value)
        count = -(-geometry.neurons // self._threads) * self._threads
        cl.enqueue_nd_range_kernel(device.queue, self._kernel, (count,), (self._threads,))
        for buffer, tensor in filled:
            device.read_back(buffer, tensor)
        device.queue.finish()
