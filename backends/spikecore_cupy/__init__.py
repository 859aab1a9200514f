"""CUDA kernels generated from a neuron's program, compiled by NVRTC and launched through CuPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities

if TYPE_CHECKING:
    from spikecore_cupy.custom import ElementwiseKernel, ScanKernel

__all__ = ["CAPABILITIES", "ElementwiseKernel", "ScanKernel", "spikecore_backends"]

CAPABILITIES = Capabilities(
    float16=True,
    bfloat16=True,
    float32=True,
    float64=True,
    gradients=True,
    parameter_gradients=True,
    state_gradients=True,
    channel_parameters=True,
    full_parameters=True,
    record=True,
    several_inputs=True,
    several_outputs=True,
    normalisation=True,
    normalised_shortcut=True,
    recurrent=True,
    feedback_options=True,
    feedback_gates=True,
    torch_compile=True,
)


def _probe() -> Optional[str]:
    from spikecore_cupy.device import reason

    return reason()


def __getattr__(name: str) -> Any:
    if name in ("ElementwiseKernel", "ScanKernel"):  # imported when asked for, so that listing backends stays cheap
        from spikecore_cupy import custom

        return getattr(custom, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="cupy",
            factory="spikecore_cupy.backend:CupyBackend",
            devices=("cuda",),
            capabilities=CAPABILITIES,
            probe=_probe,
            install_hint="pip install 'spikecore[cuda13]' or 'spikecore[cuda12]', as torch.version.cuda says",
        )
    ]
