"""Spiking neurons in JAX: a backend of spikecore for PyTorch tensors, and neurons as pure functions of JAX arrays."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any, List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities

__version__ = "0.1.0"

#: The oldest JAX that takes options of XLA for one function.
OLDEST_JAX = (0, 6)

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


def __getattr__(name: str) -> Any:
    # JAX takes half a second to import, which listing backends shall not cost
    if name in ("Function", "function"):
        from spikecore_jax import pure

        return getattr(pure, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _probe() -> Optional[str]:
    if importlib.util.find_spec("jax") is None:
        return "jax is not installed"
    version = importlib.metadata.version("jax")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_JAX:
        return f"jax {version} is too old, {'.'.join(map(str, OLDEST_JAX))} is the oldest that works"
    return None


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="jax",
            factory="spikecore_jax.backend:JaxBackend",
            devices=("cpu", "cuda"),
            capabilities=CAPABILITIES,
            probe=_probe,
            install_hint="pip install 'jax>=0.6', or for a GPU 'jax[cuda13]'",
            api=(1, 5),
        )
    ]
