"""What surrounds a call in its thread: autocast, and regions of activation checkpointing."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import Any, Iterator, Optional

import torch

#: Before torch 2.4 each type of device has functions of its own. This is not found out in a call, because the
#: torch.compile of torch 2.0 cannot trace a call that raises TypeError.
_BEFORE_2_4 = not hasattr(torch, "get_autocast_dtype")
#: Whether a region of activation checkpointing runs for the first time, or again in backward.
FIRST, AGAIN = "first", "again"


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    if _BEFORE_2_4:
        return torch.is_autocast_cpu_enabled() if device == "cpu" else device == "cuda" and torch.is_autocast_enabled()
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # autocast does not support this type of device
        return False


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The dtype in which autocast computes products now; None where it is off."""
    if not is_autocast(device):
        return None
    if _BEFORE_2_4:
        return torch.get_autocast_cpu_dtype() if device == "cpu" else torch.get_autocast_gpu_dtype()
    return torch.get_autocast_dtype(device)


def no_autocast(device: str) -> Any:
    """A context in which products have the dtypes of their factors."""
    return torch.autocast(device, enabled=False) if is_autocast(device) else nullcontext()


class _Region(threading.local):
    run = ""


_region = _Region()


def region() -> str:
    """``FIRST`` or ``AGAIN`` within a region of activation checkpointing, else ""."""
    return _region.run


@contextmanager
def running(run: str) -> Iterator[None]:
    """The block is a region's first run, or the one in backward; all regions within one that runs again do so, too."""
    before = _region.run
    _region.run = AGAIN if before == AGAIN else run
    try:
        yield
    finally:
        _region.run = before
