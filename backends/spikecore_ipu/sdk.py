"""Which PopTorch there is: Graphcore's, or the emulator where ``SPIKECORE_IPU_EMULATOR=1`` asks for it.

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


def emulated() -> bool:
    """Whether the emulator was asked for."""
    return os.environ.get(VARIABLE, "").strip() == "1"


def reason() -> Optional[str]:
    """Why PopTorch cannot be used here; None if it can."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked not in ("", "0", "1"):
        return f"{VARIABLE}={asked} is neither 1, for the emulator, nor 0 or unset, for the SDK"
    if emulated():
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
        raise BackendUnavailable(f"{why}; install the Poplar SDK, or set {VARIABLE}=1 for the emulator on the CPU")
    return importlib.import_module("spikecore_ipu.emulator" if emulated() else "poptorch")
