"""Kernels for spikecore in dialects of C: C11, compiled by the machine's compiler, and Metal for Apple's GPUs."""

from __future__ import annotations

import shutil
from typing import List, Optional

import spikecore
from spikecore.backend import BackendInfo, Capabilities
from spikecore.kernels.shared_library import compiler

__version__ = "0.1.0"


def _all_but(*names: str) -> Capabilities:
    return Capabilities(**{name: name not in names for name in Capabilities.__dataclass_fields__})


#: C11 has no 16-bit numbers, and Apple's GPUs have no float64.
CAPABILITIES, WITHOUT_FLOAT64 = _all_but("float16", "bfloat16"), _all_but("float64")


def _of_c() -> Optional[str]:
    if shutil.which(compiler()):
        return None
    return f"the C compiler {compiler()!r} is not on the PATH; install one, or name it in the environment variable CC"


def _of_metal() -> Optional[str]:
    import torch

    if not hasattr(torch.mps, "compile_shader"):
        return f"torch {torch.__version__} has no torch.mps.compile_shader, which is there from 2.7 on"
    return None if torch.backends.mps.is_available() else "torch finds no GPU of Apple"


@spikecore.backend.hookimpl
def spikecore_backends() -> List[BackendInfo]:
    """The two backends of this package."""
    return [
        BackendInfo(
            name="c",
            factory="spikecore_c.backend:CBackend",
            devices=("cpu",),
            capabilities=CAPABILITIES,
            probe=_of_c,
            install_hint="apt install gcc",
            api=(1, 6),
        ),
        BackendInfo(
            name="metal",
            factory="spikecore_c.metal:MetalBackend",
            devices=("mps",),
            capabilities=WITHOUT_FLOAT64,
            probe=_of_metal,
            install_hint="a Mac with a GPU of Apple, and torch 2.7 or newer",
            api=(1, 6),
        ),
    ]
