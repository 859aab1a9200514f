"""The backend: kernels on one device, with a thread for each neuron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Union

import numpy
import pyopencl as cl
import torch
from torch import Tensor

from spikecore.backend import BackendError, Capabilities
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.c_backend import DialectBackend
from spikecore.kernels.c_writer import Kernel
from spikecore.kernels.writing import FILLED
from spikecore.lang.dialects import OPENCL
from spikecore_opencl import CAPABILITIES
from spikecore_opencl.device import Device, chosen

#: Threads of a work group, where a device has so many.
THREADS = 64


class OpenCLBackend(DialectBackend):
    """A thread for each neuron, through all its steps. float32, 16 bits in memory, float64 where a device has it."""

    name = "opencl"
    dialect = OPENCL
    capabilities = CAPABILITIES

    def capabilities_on(self, device_type: str) -> Capabilities:
        return replace(CAPABILITIES, float64=chosen().has_float64)

    def function(self, plan: Union[ForwardPlan, BackwardPlan], kernel: Kernel) -> Function:
        return Function(plan, kernel)

    def scratch(self, like: Tensor, count: int, dtype: torch.dtype) -> int:
        """Bytes that a launch allocates on the device."""
        return count * (4 if dtype == torch.float32 else 8)


class Function:
    """A compiled kernel and its launch."""

    def __init__(self, plan: Union[ForwardPlan, BackwardPlan], kernel: Kernel) -> None:
        self._arguments, self._device = kernel.arguments, chosen()
        self._kernel = self._device.kernel(kernel.name, kernel.text)
        self._real = numpy.float32 if plan.compute == torch.float32 else numpy.float64
        self._threads = min(THREADS, self._device.handle.max_work_group_size)

    def __call__(self, geometry: Geometry, values: List[Any]) -> None:
        """Fill the tensors that the kernel writes. The GIL is free while it waits."""
        device = self._device
        device.check()
        with device.lock:
            try:
                self._launch(device, geometry, values)
            except cl.Error as error:
                raise BackendError(
                    f"backend 'opencl' could not compute {geometry.steps} steps of {geometry.neurons} neurons on "
                    f"{device.title}, so choose smaller batches or backend='torch': {error}"
                ) from error

    def _launch(self, device: Device, geometry: Geometry, values: List[Any]) -> None:
        arguments: List[Any] = [numpy.int64(geometry.steps), numpy.int64(geometry.neurons)]
        filled = []
        for argument, value in zip(self._arguments, values):
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
