"""The backend: kernels are functions of a shared library."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, List, Union

import torch
from torch import Tensor

from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.c_backend import DialectBackend
from spikecore.kernels.c_writer import Kernel
from spikecore.lang.dialects import C11
from spikecore_c import CAPABILITIES
from spikecore_c.building import built


class CBackend(DialectBackend):
    """Neurons one after the other on one thread, each through all its steps. float32 and float64."""

    name = "c"
    dialect = C11
    capabilities = CAPABILITIES
    sums_periods = True

    def function(self, plan: Union[ForwardPlan, BackwardPlan], kernel: Kernel) -> Callable[[Geometry, List[Any]], None]:
        real = ctypes.c_float if plan.compute == torch.float32 else ctypes.c_double
        kinds = {"number": real, "pointer": ctypes.c_void_p}
        types = [kinds.get(argument.kind, ctypes.c_int64) for argument in kernel.arguments]
        call = built(kernel.name, kernel.text)
        call.argtypes, call.restype = [ctypes.c_int64, ctypes.c_int64, *types], None

        def run(geometry: Geometry, values: List[Any]) -> None:
            """Without the GIL."""
            found = [value.data_ptr() if isinstance(value, Tensor) else value for value in values]
            call(geometry.steps, geometry.neurons, *found)

        return run
