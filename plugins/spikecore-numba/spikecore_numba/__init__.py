"""CPU kernels for spikecore: each neuron's program printed as Python, compiled by Numba, cached on disk."""

from __future__ import annotations

import importlib.metadata
from typing import List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities

__version__ = "0.1.0"

#: The oldest Numba whose compiled functions have the form that :mod:`spikecore_numba.compiler` takes.
OLDEST_NUMBA = (0, 62)

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
    try:
        version = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return "numba is not installed"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_NUMBA:
        return f"numba {version} is too old, {'.'.join(map(str, OLDEST_NUMBA))} is the oldest that works"
    return None


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="numba",
            factory="spikecore_numba.backend:NumbaBackend",
            devices=("cpu",),
            capabilities=CAPABILITIES,
            probe=_probe,
            install_hint="pip install 'numba>=0.62'",
        )
    ]
