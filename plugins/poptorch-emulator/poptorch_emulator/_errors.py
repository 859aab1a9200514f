"""The exceptions of PopTorch, and its log.

The text is PopTorch's. What it raises from Python reads ``'poptorch_py_error': ...``, from C++
``'poptorch_cpp_error': ...``, and what PopART throws arrives as ``'popart_exception': ...``. PopTorch may add a file
and a line of its sources in front; the emulator does not. Its assertions stay ``AssertionError``, and some arguments
are ``ValueError`` or ``AttributeError``: ``Error`` is raised where PopTorch raises ``poptorch.Error``, and for what
only the emulator refuses.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Union


class Error(Exception):
    """``poptorch.Error``."""

    #: Who raised it: ``poptorch_py_error``, ``poptorch_cpp_error``, or what PopART and Poplar call theirs.
    type: str = ""
    #: The text without the type in front.
    message: str = ""
    #: In PopTorch, file and line of its sources; empty here.
    location: str = ""


class RecoverableError(Error):
    """An error of the device from which a program can recover; ``recovery_action`` says how."""

    recovery_action: str = ""


class UnrecoverableError(Error):
    """The device or the system is at fault."""


def _error(kind: str, message: str) -> Error:
    error = Error(f"'{kind}': {message}")
    error.type = kind
    error.message = message
    return error


#: An error of PopTorch's Python part, or of the emulator's own.
py_error = partial(_error, "poptorch_py_error")
#: An error of PopTorch's C++ part.
cpp_error = partial(_error, "poptorch_cpp_error")
#: An error of PopART, the compiler below PopTorch.
popart_error = partial(_error, "popart_exception")


def not_modelled(what: str, way_out: str = "") -> Error:
    """An error of the emulator's own: PopTorch has ``what``, and ignoring it here would change numbers."""
    return py_error(f"{what} is not modelled by the emulator" + (f": {way_out}" if way_out else ""))


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
