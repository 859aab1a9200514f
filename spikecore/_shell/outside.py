"""Where the user's own code is, for warnings that show its line."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Optional


def outside() -> int:
    """The ``stacklevel`` with which the caller's warning shows the nearest line that is not torch's or spikecore's."""
    frame: Optional[FrameType] = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "spikecore"):
        frame, level = frame.f_back, level + 1
    return level
