"""The reference backend: programs interpreted with PyTorch operations, on any device, under autograd."""

from __future__ import annotations

from typing import List, Optional

import spikecore
from spikecore.backend import ANY_DEVICE, COMPILES, BackendInfo, Capabilities

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
    # before, Dynamo could not look through a neuron without a graph break
    torch_compile=COMPILES,
)


def _probe() -> Optional[str]:
    return None  # spikecore itself needs torch, so it is here


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="torch",
            factory="spikecore_torch.backend:TorchBackend",
            devices=(ANY_DEVICE,),
            # PopTorch drops the backward of an autograd.Function, which the spike is here, without a word
            never=("ipu",),
            capabilities=CAPABILITIES,
            probe=_probe,
        )
    ]
