"""The two floors: torch 2.0.1 for what computes, on Python 3.8; 2.6 for what compiles, captures, registers or packs.

Below the second floor torch lacks one part or another of what these need, so each raises, by name, before it begins.
"""

from __future__ import annotations

import torch

from spikecore._base.errors import Unsupported

#: The oldest torch for what compiles, captures, registers or packs.
SECOND_FLOOR = (2, 6)
#: Whether this torch is new enough for that.
COMPILES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= SECOND_FLOOR


def require_compiler(what: str) -> None:
    """Raise :class:`spikecore.backend.Unsupported` for a torch below the second floor; ``what`` begins the text."""
    if not COMPILES:
        needed = ".".join(map(str, SECOND_FLOOR))
        raise Unsupported(f"{what} needs torch {needed} or newer; this is {torch.__version__}")
