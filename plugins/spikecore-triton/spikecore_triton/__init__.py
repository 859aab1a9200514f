"""GPU kernels for spikecore: each neuron's program printed as Triton, compiled by Triton, cached on disk."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities

__version__ = "0.1.0"

#: The oldest Triton that can divide without flushing subnormal numbers.
OLDEST_TRITON = (3, 6)
#: The names under which Triton is distributed.
_DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows")
#: The lowest compute capability of an NVIDIA GPU that Triton supports.
OLDEST_GPU = (8, 0)

#: Whether Triton interprets kernels on the CPU instead of compiling them; it is for tests, and must be asked for.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

CAPABILITIES = Capabilities(
    float16=True,
    # Triton's interpreter does not round to bfloat16 as a GPU does
    bfloat16=not INTERPRETED,
    float32=True,
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
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    version = _version()
    if version and tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRITON:
        return f"triton {version} is too old, {'.'.join(map(str, OLDEST_TRITON))} is the oldest that works"
    return None if INTERPRETED else _of_device()


def _version() -> str:
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""


def _of_device() -> Optional[str]:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA and without ROCm"
    if not torch.cuda.is_available():
        return "torch finds no GPU that it could use"
    if torch.version.hip is None and torch.cuda.get_device_capability() < OLDEST_GPU:
        has, wants = (".".join(map(str, pair)) for pair in (torch.cuda.get_device_capability(), OLDEST_GPU))
        return f"the GPU has compute capability {has}, {wants} is the lowest that Triton supports"
    return None


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="triton",
            factory="spikecore_triton.backend:TritonBackend",
            # ROCm's torch calls its devices "cuda", too
            devices=("cpu",) if INTERPRETED else ("cuda",),
            capabilities=CAPABILITIES,
            probe=_probe,
            install_hint="pip install 'triton>=3.6', and a torch that finds the GPU",
            note=lambda: "Triton's interpreter on the CPU, asked for by TRITON_INTERPRET" if INTERPRETED else "",
        )
    ]
