"""Graphcore IPUs through PopTorch: plain operations, the loss inside the model, ``poptorch.trainingModel``."""

from __future__ import annotations

from typing import List

import spikecore
from spikecore.backend import BackendInfo, Capabilities
from spikecore_ipu.blocks import pipeline
from spikecore_ipu.sdk import INSTALL_HINT, VARIABLE, emulated, poptorch, reason

__all__ = ["CAPABILITIES", "pipeline", "poptorch", "spikecore_backends"]

#: No float64 and bfloat16, which PopTorch narrows to float32; no second derivatives, since a surrogate is detached.
CAPABILITIES = Capabilities(
    float16=True,
    float32=True,
    gradients=True,
    parameter_gradients=True,
    state_gradients=True,
    channel_parameters=True,
    full_parameters=True,
    record=True,
    several_inputs=True,
    several_outputs=True,
)


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="ipu",
            factory="spikecore_ipu.backend:IpuBackend",
            # on the CPU the same operations run eagerly, so that a model can be debugged before it is compiled
            devices=("cpu", "ipu"),
            capabilities=CAPABILITIES,
            probe=reason,
            note=lambda: f"the emulator on the CPU, asked for by {VARIABLE}" if emulated() else "",
            install_hint=INSTALL_HINT,
        )
    ]
