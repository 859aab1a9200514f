"""The backend: two launches, each of a kernel on one device, with a thread for each neuron."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Dict, List, Union

import numpy
import pyopencl as cl
import torch
from torch import Tensor

from spikecore.backend import BackendError, Capabilities
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, KernelBackend
from spikecore.kernels.c_writer import printed
from spikecore.kernels.writing import FILLED
from spikecore.lang.c import OPENCL
from spikecore_opencl import CAPABILITIES
from spikecore_opencl.device import Device, chosen

#: Threads of a work group: the first, or for calls of MANY steps of neurons the quickest of these.
THREADS = (64, 128, 256, 512)
MANY = 1 << 18
#: How often each is tried.
TRIALS = 2


class OpenCLBackend(KernelBackend):
    """A thread for each neuron, through all its steps. float32, 16 bits in memory, and float64 where a device has it.

    Forward writes nothing for backward, which computes the states of a neuron again.
    """

    name = "opencl"
    capabilities = CAPABILITIES
    shortest_period = 1

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
        self._threads: Dict[int, Threads] = {}

    def __call__(self, geometry: Geometry, *groups: Any) -> None:
        """Fill the tensors that the kernel writes. The GIL is free while it waits."""
        device = self._device
        device.check()
        steps = geometry.steps * geometry.neurons
        size = steps.bit_length() if steps >= MANY else 0
        threads = self._threads.get(size) or self._threads.setdefault(size, Threads(device, size > 0))
        with device.lock:
            try:
                self._launch(device, geometry, self._printed.values(geometry, groups), threads)
            except cl.Error as error:
                raise BackendError(
                    f"backend 'opencl' could not compute {geometry.steps} steps of {geometry.neurons} neurons on "
                    f"{device.title}, so choose smaller batches or backend='torch': {error}"
                ) from error

    def _launch(self, device: Device, geometry: Geometry, values: List[Any], threads: Threads) -> None:
        given: List[Any] = [numpy.int64(geometry.steps), numpy.int64(geometry.neurons)]
        filled = []
        for argument, value in zip(self._printed.arguments, values):
            if argument.group == "history":
                given.append(device.scratch(value))
            elif argument.kind == "pointer":
                fills = argument.group in FILLED
                given.append(device.given(value, fills))
                filled += [(given[-1], value)] if fills else []
            else:
                given.append(self._real(value) if argument.kind == "number" else numpy.int64(value))
        for index, value in enumerate(given):
            self._kernel.set_arg(index, value)
        with threads as group:
            count = -(-geometry.neurons // group) * group
            cl.enqueue_nd_range_kernel(device.queue, self._kernel, (count,), (group,))
            if threads.tries:
                device.queue.finish()
        for buffer, tensor in filled:
            device.taken(buffer, tensor)
        device.queue.finish()


class Threads:
    """Choice of the threads of a work group for calls of one size: each launch tries the next number, then the best.

    A context for a launch. Calls that are not ``large`` take the first one.
    """

    def __init__(self, device: Device, large: bool) -> None:
        numbers = [number for number in THREADS if number <= device.handle.max_work_group_size] or [1]
        self._trials = TRIALS * numbers if large else []
        self._best = (math.inf, numbers[0])
        self._began = 0.0

    @property
    def tries(self) -> bool:
        """True until each number was tried."""
        return bool(self._trials)

    def __enter__(self) -> int:
        self._began = time.perf_counter()
        return self._trials[-1] if self._trials else self._best[1]

    def __exit__(self, *error: Any) -> None:
        if self._trials:
            self._best = min(self._best, (time.perf_counter() - self._began, self._trials.pop()))
