"""Whether autocast is on, and its dtype, in every supported version of torch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, Dict, Optional

import torch

try:
    torch.is_autocast_enabled("cpu")
except TypeError:
    # Before torch 2.4 each type of device has a function of its own. Found out here and not in a call, because the
    # torch.compile of torch 2.0 cannot trace a call that raises TypeError.
    _OF_DEVICE: Dict[str, Callable[[], bool]] = {
        "cpu": torch.is_autocast_cpu_enabled,
        "cuda": torch.is_autocast_enabled,
    }
    _DTYPES: Dict[str, Callable[[], torch.dtype]] = {
        "cpu": torch.get_autocast_cpu_dtype,
        "cuda": torch.get_autocast_gpu_dtype,
    }
else:
    _OF_DEVICE, _DTYPES = {}, {}


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    if _OF_DEVICE:
        return device in _OF_DEVICE and _OF_DEVICE[device]()
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # autocast does not support this type of device
        return False


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The dtype in which autocast computes products now; None where it is off."""
    if not is_autocast(device):
        return None
    return _DTYPES[device]() if _DTYPES else torch.get_autocast_dtype(device)


def no_autocast(device: str) -> Any:
    """A context in which products have the dtypes of their factors."""
    return torch.autocast(device, enabled=False) if is_autocast(device) else nullcontext()
