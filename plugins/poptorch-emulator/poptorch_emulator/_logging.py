"""``poptorch.setLogLevel``, and the logger of the emulator."""

from __future__ import annotations

import logging
from typing import Union

#: PopTorch's names -> its numbers, and Python's.
_LEVELS = {
    "TRACE": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL),
}

logger = logging.getLogger("poptorch")


def setLogLevel(level: Union[str, int]) -> None:
    """Log from this level on: its name, or PopTorch's number of it."""
    if isinstance(level, int):
        names = [name for name, (number, _) in _LEVELS.items() if number == level]
        if not names:
            raise ValueError("Invalid log level integer")
        level = names[0]
    if level not in _LEVELS:
        *first, last = sorted(_LEVELS)
        raise ValueError(f"Unknown log level: {level}. Valid values are {', '.join(first)} and {last}")
    logger.setLevel(_LEVELS[level][1])
