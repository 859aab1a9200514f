"""The backend ``metal``: kernels as Metal source for Apple's GPUs, which torch compiles and launches."""

from __future__ import annotations

from typing import Any, Callable, List, Union

import torch

from spikecore.backend import BackendError
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.c_backend import DialectBackend
from spikecore.kernels.c_writer import Kernel
from spikecore.lang.dialects import METAL
from spikecore_c import WITHOUT_FLOAT64


class MetalBackend(DialectBackend):
    """A thread for each neuron, through all its steps. float32, and 16 bits in memory."""

    name = "metal"
    dialect = METAL
    capabilities = WITHOUT_FLOAT64

    def compile_shader(self, text: str) -> Any:
        """The kernels of a text, by torch's loader."""
        return torch.mps.compile_shader(text)

    def function(self, plan: Union[ForwardPlan, BackwardPlan], kernel: Kernel) -> Callable[[Geometry, List[Any]], None]:
        pointers = [k for k, argument in enumerate(kernel.arguments) if argument.kind == "pointer"]
        numbers = [k for k, argument in enumerate(kernel.arguments) if argument.kind == "number"]
        integers = sorted({*range(len(kernel.arguments))} - {*pointers, *numbers})
        try:
            call = getattr(self.compile_shader(kernel.text), kernel.name)
        except RuntimeError as error:
            raise BackendError(f"backend 'metal' has no kernel {kernel.name}, so choose 'torch': {error}") from error

        def run(geometry: Geometry, values: List[Any]) -> None:
            sizes = [geometry.steps, geometry.neurons, *[values[k] for k in integers]]
            reals = [[float(values[k]) for k in numbers]] if numbers else []
            tensors = [values[k] for k in pointers]
            call(sizes, *reals, *([tensors] if kernel.together else tensors), threads=geometry.neurons)

        return run
