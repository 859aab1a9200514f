"""A part of the tests that are a matrix: of every combination of neuron, dtype and kind of parameter, on one backend.

``MATRIX_SHARE=3`` runs a third of the cases of each test marked ``matrix``; without the variable all run. Which third
follows from the case's id and the number that the mark gives, so it is the same in every run, and a case that is added
moves few others. What three cases or more of a test have in common, such as a neuron or a dtype, is in one that runs.

Numba, cupy's kernels on the CPU and triton run another third of the conformance suite each, and the ipu backend that of
triton, whose interpreter leaves out generated programs. So each case of the suite runs on the reference and on one of
these. Two thirds of the time of these tests is compilation.

A conftest imports the hook by name.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from typing import Any, Dict, List, Set

import pytest

VARIABLE = "MATRIX_SHARE"


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Deselects the cases of a matrix that are not of this run's share."""
    text = os.environ.get(VARIABLE, "1")
    if not text.isdigit() or int(text) < 1:
        raise pytest.UsageError(f"{VARIABLE}={text!r} must be a whole number from 1 on: 3 runs a third of each matrix")
    tests: Dict[str, List[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("matrix") and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = [item for cases in tests.values() for item in _left_out(cases, int(text))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in gone]


def _left_out(cases: List[pytest.Item], share: int) -> List[pytest.Item]:
    """The cases of one test that are not of the share."""
    often = Counter(word for item in cases for word in _words(item))
    out = [item for item in cases if not _is_of_share(item, share)]
    gone = {id(item) for item in out}
    missing = {word for word, times in often.items() if times >= share}
    for item in cases:
        missing -= set() if id(item) in gone else _words(item)
    rest = []
    for item in out:
        if missing & _words(item):
            missing -= _words(item)
        else:
            rest.append(item)
    return rest


def _is_of_share(item: Any, share: int) -> bool:
    turn: int = item.get_closest_marker("matrix").kwargs.get("turn", 0)
    return zlib.crc32(item.callspec.id.encode()) % share == turn % share


def _words(item: Any) -> Set[str]:
    """What an id is made of: the names of a neuron, a reset, a dtype, a family of cases."""
    return set(re.split(r"[-/ ]", item.callspec.id))
