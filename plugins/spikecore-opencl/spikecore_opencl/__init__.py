"""Kernels for spikecore in OpenCL C: each neuron's program printed, and compiled by the driver of a CPU or GPU."""

from __future__ import annotations

import importlib.util
from typing import List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities

__version__ = "0.1.0"

#: float64 is a device's own matter: ``OpenCLBackend.capabilities_on``.
CAPABILITIES = Capabilities(**dict.fromkeys(Capabilities.__dataclass_fields__, True))


def _probe() -> Optional[str]:
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl is not installed"
    from spikecore_opencl.device import reason

    return reason()


def _note() -> str:
    from spikecore_opencl.device import chosen

    return chosen().title


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="opencl",
            factory="spikecore_opencl.backend:OpenCLBackend",
            devices=("cpu",),
            capabilities=CAPABILITIES,
            probe=_probe,
            install_hint="pip install pyopencl pocl-binary-distribution, or install the OpenCL driver of your GPU",
            api=(1, 6),
            note=_note,
        )
    ]
