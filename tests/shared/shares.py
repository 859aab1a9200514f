"""A part of the tests that are a matrix: of every combination of neuron, dtype and kind of parameter, on one backend.

``MATRIX_SHARE=3`` runs a third of the cases of each test marked ``matrix``. Which third follows from the commit, so
each third runs at some commit; pytest's header names it, as ``2/3``. ``MATRIX_SHARE=2/3`` runs it again, at any commit.
Without the variable all run. A case belongs to a share by its id, so a case that is added moves few others. What three
cases or more of a test have in common, such as a neuron or a dtype, is in one that runs.

``matrix(turn=1)`` runs the next share. Numba, cupy's kernels on the CPU and triton have one turn each, and the ipu
backend that of triton: a case of the suite runs on one of these. ``matrix(tier="core")`` always runs that tier.

A conftest imports the hooks by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

import pytest

VARIABLE = "MATRIX_SHARE"


@lru_cache(maxsize=None)
def of_commit() -> int:
    """A number that follows from the commit; 0 where there is none, as in a source distribution."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    return int(said, 16) if said.strip() else 0


def chosen() -> Tuple[int, int]:
    """Which share of how many runs, counted from 0."""
    text = os.environ.get(VARIABLE, "1")
    found = re.fullmatch(r"(?:([1-9]\d*)/)?([1-9]\d*)", text)
    if not found or int(found[1] or 1) > int(found[2]):
        raise pytest.UsageError(f"{VARIABLE}={text!r} must be 3, for a third of a matrix, or 2/3, for its second third")
    count = int(found[2])
    return (int(found[1]) - 1 if found[1] else of_commit() % count), count


def pytest_report_header() -> Optional[str]:
    """Which share runs."""
    share, count = chosen()
    return None if count == 1 else f"of each test marked matrix runs share {share + 1}/{count} ({VARIABLE})"


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Deselects the cases of a matrix that are not of this run's share."""
    share, count = chosen()
    tests: Dict[str, List[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("matrix") and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = [item for cases in tests.values() for item in _left_out(cases, share, count)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in gone]


def _left_out(cases: List[pytest.Item], share: int, count: int) -> List[pytest.Item]:
    """The cases of one test that are not of the share."""
    times = Counter(word for item in cases for word in _words(item))
    out = [item for item in cases if not _is_of_share(item, share, count)]
    gone = {id(item) for item in out}
    missing = {word for word in times if times[word] >= count}
    for item in cases:
        missing -= set() if id(item) in gone else _words(item)
    rest = []
    for item in out:
        if missing & _words(item):
            missing -= _words(item)
        else:
            rest.append(item)
    return rest


def _is_of_share(item: Any, share: int, count: int) -> bool:
    mark = item.get_closest_marker("matrix").kwargs
    if "tier" in mark and item.callspec.params["case"].tier == mark["tier"]:
        return True
    return zlib.crc32(item.callspec.id.encode()) % count == (mark.get("turn", 0) + share) % count


def _words(item: Any) -> Set[str]:
    """Parts of an id: the names of a neuron, a reset, a dtype, a family of cases."""
    return set(re.split(r"[-/ ]", item.callspec.id))
