"""Which PopTorch is in use: Graphcore's, or its emulator where ``SPIKECORE_IPU_EMULATOR=1`` asks for it.

Nothing else in this package imports either.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any, Optional

from spikecore.backend import BackendUnavailable

#: ``1`` asks for the emulator, ``0`` or nothing for the SDK.
VARIABLE = "SPIKECORE_IPU_EMULATOR"
#: What the emulator is imported as. It is a distribution of its own, which is on no package index.
EMULATOR = "poptorch_emulator"
INSTALL_HINT = (
    "the Poplar SDK brings poptorch; its emulator on the CPU is installed by `pip install ./plugins/poptorch-emulator` "
    f"in a checkout of spikecore, and used where {VARIABLE}=1"
)


def emulated() -> bool:
    """Whether the emulator was asked for."""
    return os.environ.get(VARIABLE, "").strip() == "1"


def reason() -> Optional[str]:
    """Why PopTorch cannot be used here; None if it can."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked not in ("", "0", "1"):
        return f"{VARIABLE}={asked} is neither 1, for the emulator, nor 0 or unset, for the SDK"
    if emulated():
        if importlib.util.find_spec(EMULATOR) is None:
            return f"{VARIABLE}=1 asks for the distribution poptorch-emulator, which is not installed"
        return None
    if importlib.util.find_spec("poptorch") is None:
        return "poptorch is not installed"
    try:
        importlib.import_module("poptorch")
    except (ImportError, AssertionError, OSError) as error:  # without the SDK's environment, or with another torch
        return f"poptorch cannot be imported: {str(error).strip()}"
    return None


def poptorch() -> Any:
    """The module ``poptorch``: Graphcore's, or the emulator if it was asked for.

    Raises :class:`~spikecore.BackendUnavailable` where there is neither.
    """
    why = reason()
    if why is not None:
        raise BackendUnavailable(f"{why} ({INSTALL_HINT})")
    return importlib.import_module(EMULATOR if emulated() else "poptorch")
