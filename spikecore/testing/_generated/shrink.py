"""From a row that fails to the simplest one that fails in the same way, and what it takes: factor by factor."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Callable, Dict, List, Optional, Tuple

from spikecore.testing._generated.factors import FACTORS
from spikecore.testing._generated.row import Row

#: Seconds of computing that one row, and all rows of a process, may take.
SECONDS, ALTOGETHER = 10.0, 60.0
#: The factors that cost most first.
ORDER = ("size", "T", *(name for name in FACTORS if name not in ("size", "T")))

#: How a row fails: the kind of its failure, and what was raised; None if it does not.
Failure = Callable[[Row], Optional[Tuple[str, Exception]]]

#: Seconds that shrinking took so far.
_spent: List[float] = []


@dataclass
class Shrunk:
    """The simplest row that was found."""

    row: Row
    #: What it raised; None if it is the row that was given.
    error: Optional[Exception] = None
    #: Factor -> the simpler levels with which the row does not fail so.
    right: Dict[str, List[str]] = field(default_factory=dict)
    tried: int = 0
    #: Whether time was left to the end.
    done: bool = True

    def __str__(self) -> str:
        takes = [
            f"{name}={self.row[name]}" + (f" (not with {', '.join(self.right[name])})" if self.right.get(name) else "")
            for name in FACTORS
            if self.row[name] != FACTORS[name][0]
        ]
        ends = "" if self.done else "; time ended before every factor was tried"
        what = f"it takes {', '.join(takes)}" if takes else "it takes nothing: the simplest row fails"
        return f"{what}\n  row: {self.row} ({self.tried} simpler rows were tried{ends})"


def shrunk(row: Row, failure: Failure, kind: str) -> Shrunk:
    """Move factor by factor to the simplest level with which the row still fails with a failure of this kind."""
    started = time.process_time()
    found = Shrunk(row)
    failure = lru_cache(maxsize=None)(failure)
    until = started + min(SECONDS, ALTOGETHER - sum(_spent))
    moved = True
    while moved and found.done:
        moved = sum(_simpler(found, name, failure, kind, until) for name in ORDER) > 0
    _spent.append(time.process_time() - started)
    return found


def _simpler(found: Shrunk, name: str, failure: Failure, kind: str, until: float) -> bool:
    """Whether a simpler level of one factor fails, too; then ``found`` has it."""
    right: List[str] = []
    for level in FACTORS[name][: FACTORS[name].index(found.row[name])]:
        other = found.row.having(name, level)
        if other.conflict():
            continue
        if time.process_time() > until:
            found.done = False
            return False
        found.tried += 1
        failed = failure(other)
        if failed is not None and failed[0] == kind:
            found.row, found.error = other, failed[1]
            found.right[name] = right
            return True
        right.append(level)
    found.right[name] = right
    return False
