"""A case: one thing that must hold, with a name that never changes.

Rules of this module:

- An id is ``family/what-exactly`` and part of the contract: lists of expected failures are written with it. It is not
  renamed or reused, and new core cases come with minor releases only.
- ``needs`` are names of capabilities. On a backend that does not declare one of them, the same case asserts that asking
  raises ``Unsupported``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from spikecore.backend import Capabilities

if TYPE_CHECKING:
    from spikecore.testing.context import Context

#: Groups of cases, in the order they run. Every backend passes ``core``; ``product`` runs only when asked for, since a
#: backend that compiles would compile for every combination of neuron, reset, detach and surrogate. ``own`` has the
#: cases that a plugin adds for its backend (:mod:`spikecore.testing.own`).
TIERS = (
    "core",
    "dtypes",
    "parameters",
    "state",
    "language",
    "edges",
    "layouts",
    "sequences",
    "ownership",
    "robust",
    "compile",
    "own",
    "product",
)
#: The tiers of a run that names none.
DEFAULT_TIERS = TIERS[:-1]

Run = Callable[["Context"], None]


@dataclass(frozen=True)
class Case:
    """One thing that must hold. ``run`` raises where it does not."""

    id: str
    tier: str
    #: The sentence that holds.
    holds: str
    run: Run
    needs: Tuple[str, ...] = ("float32",)
    #: What an undeclared capability must lead to; ``"nothing"`` where PyTorch leaves no place to refuse.
    undeclared: str = "Unsupported"
    #: Whether it computes on the backend, which then must be seen to run.
    computes: bool = True


class Collection:
    """Cases by id, in the order they were made."""

    def __init__(self) -> None:
        self._cases: Dict[str, Case] = {}

    def add(
        self,
        id: str,
        tier: str,
        holds: str,
        run: Run,
        needs: Sequence[str] = (),
        *,
        dtype: str = "float32",
        undeclared: str = "Unsupported",
        computes: bool = True,
    ) -> None:
        """Add a case.

        id: ``family/what-exactly``. tier: one of :data:`TIERS`. holds: the sentence that holds, for people. run: called
        with a :class:`~spikecore.testing.context.Context`; raises where it does not hold, best
        :class:`~spikecore.testing.compare.Mismatch`. needs: names of capabilities, beside ``dtype``. undeclared: what
        asking for one that is not declared must raise. computes: whether a runner of the backend must be seen to run.

        Raises ``ValueError`` for an id that is taken, and for a tier or a capability that there is not.
        """
        if id in self._cases or tier not in TIERS:
            raise ValueError(f"case {id!r} of tier {tier!r}: the id is taken, or there is no such tier")
        unknown = [name for name in (dtype, *needs) if name not in Capabilities.__dataclass_fields__]
        if unknown:
            raise ValueError(f"case {id!r} needs {', '.join(map(repr, unknown))}, which is no capability")
        self._cases[id] = Case(id, tier, holds, run, (dtype, *needs), undeclared, computes)

    def with_those_of(self, other: Iterable[Case]) -> Collection:
        """A new collection with these cases and others, whose ids are new."""
        both = Collection()
        both._cases = {**self._cases, **{case.id: case for case in other}}
        return both

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())

    def __len__(self) -> int:
        return len(self._cases)

    def select(self, tiers: Optional[Sequence[str]] = None, ids: Optional[Sequence[str]] = None) -> List[Case]:
        """Cases of these tiers, or with these ids or patterns (``"bits/*"``); by default those of the default tiers.

        Ids are taken in the order in which they are given, since a failure may depend on the case before.
        """
        for tier in tiers or ():
            if tier not in TIERS:
                raise ValueError(f"tier {tier!r} must be one of {', '.join(TIERS)}")
        every = sorted(self._cases.values(), key=lambda case: TIERS.index(case.tier))
        if ids is None:
            return [case for case in every if case.tier in (tiers or DEFAULT_TIERS)]
        for pattern in ids:
            if not any(fnmatchcase(case.id, pattern) for case in every):
                raise ValueError(f"no case is called {pattern!r}{self.near(pattern)}")
        chosen = {case.id: case for pattern in ids for case in every if fnmatchcase(case.id, pattern)}
        return [case for case in chosen.values() if tiers is None or case.tier in tiers]

    def get(self, id: str) -> Optional[Case]:
        """The case of this id, or None."""
        return self._cases.get(id)

    def near(self, id: str) -> str:
        """A guess at what a wrong id was meant to be, for an error."""
        close = difflib.get_close_matches(id, self._cases, n=1)
        return f"; did you mean {close[0]!r}?" if close else ""
