"""The backend ``metal``: kernels as Metal source for Apple's GPUs, which torch compiles and launches."""

from __future__ import annotations

from typing import Any, Callable, List, Union

import torch

from spikecore.backend import BackendError, Unsupported
from spikecore.kernels import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.c_backend import DialectBackend
from spikecore.kernels.c_writer import Kernel
from spikecore.lang.dialects import METAL
from spikecore.testing import ExpectedFailure
from spikecore_c import WITHOUT_FLOAT64

#: Arguments that a kernel of Metal can have in memory.
MOST = 31


class MetalBackend(DialectBackend):
    """A thread for each neuron, through all its steps. float32, and 16 bits in memory."""

    name = "metal"
    dialect = METAL
    capabilities = WITHOUT_FLOAT64
    #: Cases with more tensors than a kernel can have.
    expected_failures = dict.fromkeys(
        ("language/many", "language/names", "language/words"),
        ExpectedFailure("a kernel of Metal has 31 arguments at most", match=f"Metal has at most {MOST}"),
    )

    def compile_shader(self, text: str) -> Any:
        """The kernels of a text, by torch's loader."""
        return torch.mps.compile_shader(text)

    def function(self, plan: Union[ForwardPlan, BackwardPlan], kernel: Kernel) -> Callable[[Geometry, List[Any]], None]:
        pointers = [k for k, argument in enumerate(kernel.arguments) if argument.kind == "pointer"]
        numbers = [k for k, argument in enumerate(kernel.arguments) if argument.kind == "number"]
        integers = sorted({*range(len(kernel.arguments))} - {*pointers, *numbers})
        count = len(pointers) + 2
        if count > MOST:
            raise Unsupported(
                f"backend 'metal' has no kernel {kernel.name}: it would have {count} arguments, and Metal has at most "
                f"{MOST}; learn or record less, or choose backend='torch'"
            )
        try:
            call = getattr(self.compile_shader(kernel.text), kernel.name)
        except RuntimeError as error:
            raise BackendError(f"backend 'metal' has no kernel {kernel.name}, so choose 'torch': {error}") from error

        def run(geometry: Geometry, values: List[Any]) -> None:
            sizes = [geometry.steps, geometry.neurons, *[values[k] for k in integers]]
            reals = [[float(values[k]) for k in numbers]] if numbers else []
            call(sizes, *reals, *[values[k] for k in pointers], threads=geometry.neurons)

        return run
