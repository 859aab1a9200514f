"""Expected failures: cases that are known to fail on a backend, why, and how.

Rules of this module:

- An excuse covers one kind of failure. A case that fails in another way under it is a failure like any other: a crash
  behind "rounds in another order" would otherwise never be seen.
- It imports nothing of the suite, so a backend's module can use it at no cost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple, Union

#: Names of a failure that is a difference, and of one that is a refusal within a declared capability. Any other name is
#: the class of an exception that the case ended with.
DIFFERENCE, REFUSAL = "Mismatch", "Unsupported"
#: Names that would cover every crash.
_TOO_WIDE = ("BaseException", "Exception", "object")


@dataclass(frozen=True)
class ExpectedFailure:
    """A case fails on this backend, for this reason and in this way::

        expected_failures = {
            "language/exp": ExpectedFailure("exp has 10 bits, mine#3", match="rounding"),
            "robust/threads": ExpectedFailure("one queue, mine#8", raises=("RuntimeError",), match="queue is busy"),
        }

    reason: why, in words, best with the number of an issue. raises: how the case fails: ``"Mismatch"`` for a
    difference, ``"Unsupported"`` for a refusal, else the class name of the exception. match: a regular expression that
    is found in the failure's text; required for exceptions. devices: where it fails, as device types (``"cuda"``),
    devices (``"cuda:1"``) or patterns of a device's name (``"*H100*"``); everywhere if empty.

    Raises ``TypeError`` or ``ValueError`` for an excuse that would cover anything.
    """

    reason: str
    raises: Tuple[str, ...] = (DIFFERENCE,)
    match: str = ""
    devices: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise ValueError(f"ExpectedFailure: reason must say why the case fails, got {self.reason!r}")
        for name in ("raises", "devices"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        wide = [name for name in self.raises if name in _TOO_WIDE]
        if not self.raises or wide:
            raise ValueError(
                f"ExpectedFailure: raises must name the failure, got {self.raises!r}: {DIFFERENCE!r} for a difference, "
                f"{REFUSAL!r} for a refusal, or the class of the exception"
            )
        crashes = [name for name in self.raises if name not in (DIFFERENCE, REFUSAL)]
        if crashes and not self.match:
            raise ValueError(
                f"ExpectedFailure: raises={self.raises!r} excuses a crash; give match, a pattern of its text, so that "
                "no other crash is excused"
            )
        try:
            re.compile(self.match)
        except re.error as error:
            raise ValueError(f"ExpectedFailure: match={self.match!r} is not a regular expression: {error}") from error

    def holds_on(self, device: str, name: str = "") -> bool:
        """True if it is meant for this torch device of the name ``name``."""
        own = (device, device.partition(":")[0])
        return not self.devices or any(one in own or fnmatchcase(name, one) for one in self.devices)

    def covers(self, failure: Failure) -> bool:
        """True if this failure is the expected one."""
        return failure.kind in self.raises and re.search(self.match, failure.text) is not None

    def __str__(self) -> str:
        how = " or ".join(self.raises) + (f" matching {self.match!r}" if self.match else "")
        return f"{how}; reason: {self.reason}"


#: An excuse as a backend may write it; a text is a reason, and excuses a difference or a refusal.
Excuse = Union[str, ExpectedFailure]


class Failure(NamedTuple):
    """Failure of a case: the name for ``raises``, and the text for ``match``."""

    kind: str
    text: str


def excuse_of(given: Excuse) -> ExpectedFailure:
    """The excuse in full. Raises ``ValueError`` for one without a reason."""
    return given if isinstance(given, ExpectedFailure) else ExpectedFailure(given, (DIFFERENCE, REFUSAL))


def excuse_for(id: str, excuses: Mapping[str, Excuse], device: str, name: str = "") -> Optional[ExpectedFailure]:
    """The excuse of a case on a device, None if it has none there, or one that is no excuse."""
    given = excuses.get(id)
    try:
        found = None if given is None else excuse_of(given)
    except ValueError:
        return None  # reported as stale
    return found if found is not None and found.holds_on(device, name) else None


def _names(argument: str, given: Union[str, Sequence[object]]) -> Tuple[str, ...]:
    names = [given] if isinstance(given, (str, type)) else list(given)
    words = tuple(name.__name__ if isinstance(name, type) else name for name in names)
    for word in words:
        if not isinstance(word, str) or not word:
            raise TypeError(f"ExpectedFailure: {argument} must be names, got {given!r}")
    return tuple(str(word) for word in words)
