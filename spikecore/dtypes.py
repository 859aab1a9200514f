"""The dtypes that inputs and outputs may have: the one table, which every other list of dtypes is held against.

To add one, add its row here. ``tests/null/test_dtypes.py`` then names each place that lacks one: the
capability, the types of each target, tolerances, the levels of generated cases, the documentation.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional, Tuple

import torch

from spikecore.context import EAGER, world


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """dtype of state and arithmetic: float64 for float64, float32 for every other floating-point dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Dtype(NamedTuple):
    """Facts about one dtype, for every target."""

    #: Its name in torch, which is that of its capability, too.
    name: str
    dtype: torch.dtype
    #: Its name in NumPy, None where NumPy has none.
    numpy: Optional[str]

    @property
    def compute(self) -> torch.dtype:
        """dtype of state and arithmetic."""
        return compute_dtype(self.dtype)

    @property
    def is_narrow(self) -> bool:
        """True if values are rounded where they are stored: they have fewer digits than arithmetic."""
        return self.dtype != self.compute


TABLE: Tuple[Dtype, ...] = (
    Dtype("float16", torch.float16, "float16"),
    Dtype("bfloat16", torch.bfloat16, None),
    Dtype("float32", torch.float32, "float32"),
    Dtype("float64", torch.float64, "float64"),
)

#: Name -> torch's dtype, in the order of the table, and the reverse.
DTYPES: Mapping[str, torch.dtype] = {row.name: row.dtype for row in TABLE}
NAMES: Dict[torch.dtype, str] = {row.dtype: row.name for row in TABLE}
#: Those that are stored with fewer digits than arithmetic has, and those that are stored as they are computed.
NARROW: Mapping[str, torch.dtype] = {row.name: row.dtype for row in TABLE if row.is_narrow}
WIDE: Mapping[str, torch.dtype] = {row.name: row.dtype for row in TABLE if not row.is_narrow}

#: Device type -> whether its tensors may be float64; of other device types one is tried.
_FLOAT64: Dict[str, bool] = {"cpu": True, "cuda": True, "meta": True, "ipu": False, "mps": False}


def has_float64(device_type: str) -> bool:
    """True if torch computes in float64 on this type of device: Apple's GPUs, and some of Intel's, have none.

    What it is on a type that is not in a table here is tried once, with four operations. Where a graph of operations is
    recorded none can be tried, and it is taken to be there until one was.
    """
    known = _FLOAT64.get(device_type)
    if known is None:
        if world() is not EAGER:
            return True
        known = _FLOAT64[device_type] = _tried(device_type)
    return known


def _tried(device_type: str) -> bool:
    try:
        value = torch.full((2,), 2.0, dtype=torch.float64, device=device_type)
        return float((value * value).sqrt().sum()) == 4.0
    except (RuntimeError, TypeError, AssertionError):
        return False
