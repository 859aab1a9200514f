"""The backend: two launches, each a call of a function of a shared library."""

from __future__ import annotations

import ctypes
from typing import Any, List, Union

import torch
from torch import Tensor

from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry, KernelBackend
from spikecore.kernels.c_writer import printed
from spikecore.lang.dialects import C11
from spikecore_c import CAPABILITIES
from spikecore_c.building import built

#: Numbers of a step that the gradient of an input that broadcasts is added to, at least: a few long sums lose digits.
SPAN = 256


class CBackend(KernelBackend):
    """Neurons one after the other on one thread, each through all its steps. float32 and float64.

    Forward writes nothing for backward, which computes the states of a neuron again.
    """

    name = "c"
    capabilities = CAPABILITIES
    reads_periods = True
    sums_periods = True

    def forward(self, plan: ForwardPlan) -> Forward:
        return Forward(plan)

    def backward(self, plan: BackwardPlan) -> Backward:
        return Backward(plan)

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        return printed(C11, plan).text


class Forward:
    """The launch of a forward plan."""

    def __init__(self, plan: ForwardPlan) -> None:
        self._function = Function(plan)

    def __call__(self, geometry: Geometry, *groups: Any) -> None:
        """Fill the tensors that the kernel writes."""
        self._function(geometry, groups)


class Backward:
    """The launch of a backward plan."""

    def __init__(self, plan: BackwardPlan) -> None:
        self._plan, self._function = plan, Function(plan)

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
    """The compiled kernel of a plan."""

    def __init__(self, plan: Union[ForwardPlan, BackwardPlan]) -> None:
        self._kernel = kernel = printed(C11, plan)
        real = ctypes.c_float if plan.compute == torch.float32 else ctypes.c_double
        kinds = {"number": real, "pointer": ctypes.c_void_p}
        arguments = [kinds.get(argument.kind, ctypes.c_int64) for argument in kernel.arguments]
        self._call = built(kernel.name, kernel.text)
        self._call.argtypes, self._call.restype = [ctypes.c_int64, ctypes.c_int64, *arguments], None

    def __call__(self, geometry: Geometry, groups: Any, span: int = 0) -> None:
        """Run it on these tensors. The GIL is free meanwhile."""
        values = self._kernel.values(geometry, groups, span)
        self._call(
            geometry.steps,
            geometry.neurons,
            *[value.data_ptr() if isinstance(value, Tensor) else value for value in values],
        )
