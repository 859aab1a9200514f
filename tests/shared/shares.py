"""A part of the tests that are a matrix: of every combination of neuron, dtype and kind of parameter, on one backend.

``MATRIX_SHARE=3`` runs a third of the cases of each test marked ``matrix``; without the variable all run. Which third
follows from the case's id and the number that the mark gives, so it is the same in every run, and a case that is added
moves no other. Numba, cupy's kernels on the CPU and triton run another third of the conformance suite each, and the ipu
backend that of triton, whose interpreter leaves out generated programs. So each case runs on the reference and on one
of these. Two thirds of the time of these tests is compilation.

A conftest imports the hook by name.
"""

from __future__ import annotations

import os
import zlib
from typing import List

import pytest

VARIABLE = "MATRIX_SHARE"


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Deselects the cases of a matrix that are not of this run's share."""
    text = os.environ.get(VARIABLE, "1")
    if not text.isdigit() or int(text) < 1:
        raise pytest.UsageError(f"{VARIABLE}={text!r} must be a whole number from 1 on: 3 runs a third of each matrix")
    kept, left_out = [], []
    for item in items:
        (kept if _is_of_share(item, int(text)) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _is_of_share(item: pytest.Item, share: int) -> bool:
    mark = item.get_closest_marker("matrix")
    case = getattr(item, "callspec", None)
    if mark is None or case is None:
        return True
    turn: int = mark.kwargs.get("turn", 0)
    return zlib.crc32(case.id.encode()) % share == turn % share
