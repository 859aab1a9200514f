"""From the text of a kernel to a function of a shared library."""

from __future__ import annotations

import ctypes
from typing import Any

from spikecore.backend import BackendError
from spikecore.kernels import KERNELS, Lock, Recent
from spikecore.kernels.shared_library import library

_lock = Lock()
_libraries: Recent[str, ctypes.CDLL] = Recent(KERNELS)


def built(name: str, text: str) -> Any:
    """The function of this name of a text: from memory, from disk, or compiled now."""
    with _lock:
        made = _libraries.get(text) or _libraries.put(text, _library(name, text))
        # of its own: what a function takes belongs to its object
        return made[name]


def _library(name: str, text: str) -> ctypes.CDLL:
    try:
        return library(name, {f"{name}.c": text})
    except RuntimeError as error:
        raise BackendError(f"backend 'c' has no kernel {name}, so choose backend='torch': {error}") from error
