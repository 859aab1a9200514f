"""The backend: two launches, each a call of a function of a shared library."""

from __future__ import annotations

import ctypes
from typing import Any, List, Union

import torch
from torch import Tensor

from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, KernelBackend
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS
from spikecore_c import CAPABILITIES
from spikecore_c.building import built
from spikecore_c.writer import BackwardWriter, ForwardWriter, Kernel

#: Numbers of a step that the gradient of an input that broadcasts is added to, at least: a few long sums lose digits.
SPAN = 256


class CBackend(KernelBackend):
    """Neurons one after the other on one thread, each through all its steps. float32 and float64.

    Forward writes nothing for backward, which computes the states of a neuron again.
    """

    name = "c"
    capabilities = CAPABILITIES
    shortest_period = 1
    sums_periods = True

    def forward(self, plan: ForwardPlan) -> Forward:
        return Forward(plan)

    def backward(self, plan: BackwardPlan) -> Backward:
        return Backward(plan)

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        writer: Any = ForwardWriter if isinstance(plan, ForwardPlan) else BackwardWriter
        return str(writer(plan).kernel().text)


class Forward:
    """The launch of a forward plan."""

    def __init__(self, plan: ForwardPlan) -> None:
        self._function = Function(ForwardWriter(plan).kernel(), plan.compute, FORWARD_GROUPS)

    def __call__(self, geometry: Geometry, *groups: Any) -> None:
        """Fill the tensors that the kernel writes."""
        self._function(geometry, groups)


class Backward:
    """The launch of a backward plan."""

    def __init__(self, plan: BackwardPlan) -> None:
        self._plan, self._function = plan, Function(BackwardWriter(plan).kernel(), plan.compute, BACKWARD_GROUPS)

    def __call__(self, geometry: Geometry, *groups: Any) -> List[Tensor]:
        """Fill the tensors that the kernel writes; gives the parameters' gradients, one number per neuron each."""
        plan = self._plan
        sums = [torch.empty(geometry.neurons, dtype=plan.compute) for _ in plan.learn]
        period = max(geometry.period, 1)
        span = min(geometry.neurons, -(-SPAN // period) * period)
        sums += [torch.zeros(geometry.steps, span, dtype=plan.compute) for _ in plan.summed]
        # the states of one neuron before each step
        history = [torch.empty(geometry.steps, dtype=plan.compute) for _ in plan.recomputed_states]
        self._function(geometry, (*groups, sums, history), span)
        return sums


class Function:
    """A compiled kernel, and where among the groups of tensors of a launch each of its arguments is."""

    def __init__(self, kernel: Kernel, compute: torch.dtype, groups: Any) -> None:
        real = ctypes.c_float if compute == torch.float32 else ctypes.c_double
        kinds = {"number": real, "pointer": ctypes.c_void_p}
        arguments = [kinds.get(argument.kind, ctypes.c_int64) for argument in kernel.arguments]
        self._call = built(kernel.name, kernel.text)
        self._call.argtypes, self._call.restype = [ctypes.c_int64, ctypes.c_int64, *arguments], None
        order = {name: place for place, name in enumerate((*groups, "history", ""))}
        self._places = [(a.kind, order[a.group], a.number) for a in kernel.arguments]

    def __call__(self, geometry: Geometry, groups: Any, span: int = 0) -> None:
        """Run it on these tensors. The GIL is free meanwhile."""
        sizes = {"period": geometry.period, "span": span}
        values: List[Any] = []
        for kind, group, number in self._places:
            if kind == "pointer":
                values.append(groups[group][number].data_ptr())
            elif kind == "stride":
                values.append(groups[group][number].stride(0))
            elif kind == "number":
                values.append(groups[group][number])
            elif kind in sizes:
                values.append(sizes[kind])
            else:
                values.append(geometry.channels[number][kind == "channels"])
        self._call(geometry.steps, geometry.neurons, *values)
