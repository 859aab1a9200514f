"""CPU kernels for spikecore in C11: each neuron's program printed as C, compiled by the machine's C compiler."""

from __future__ import annotations

import shutil
from typing import List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities
from spikecore.kernels.shared_library import compiler

__version__ = "0.1.0"

#: What a kernel backend has to leave out on purpose: 16-bit numbers, which C11 has not.
EXCEPT = ("float16", "bfloat16")
CAPABILITIES = Capabilities(**{name: name not in EXCEPT for name in Capabilities.__dataclass_fields__})


def _probe() -> Optional[str]:
    if shutil.which(compiler()):
        return None
    return f"the C compiler {compiler()!r} is not on the PATH; install one, or name it in the environment variable CC"


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The one backend of this package."""
    return [
        BackendInfo(
            name="c",
            factory="spikecore_c.backend:CBackend",
            devices=("cpu",),
            capabilities=CAPABILITIES,
            probe=_probe,
            install_hint="apt install gcc",
            api=(1, 6),
        )
    ]
