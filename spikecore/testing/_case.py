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
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from spikecore.backend import Capabilities

if TYPE_CHECKING:
    from spikecore.testing._context import Context

#: Groups of cases, in the order they run. Every backend passes ``core``. ``own`` has the cases that a plugin adds for
#: its backend (:mod:`spikecore.testing._cases`).
TIERS = (
    "core",
    "dtypes",
    "parameters",
    "state",
    "language",
    "edges",
    "fixed",
    "layouts",
    "sequences",
    "ownership",
    "robust",
    "compile",
    "generated",
    "random",
    "own",
)

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
    #: Required outcome of an undeclared capability; ``"nothing"`` if PyTorch leaves no place to refuse.
    undeclared: str = "Unsupported"
    #: True if it computes on the backend, which then must be seen to run.
    computes: bool = True


class Undeclared(Exception):
    """Raised by a case that draws what it does: this takes capabilities that are not declared, and was refused."""

    def __init__(self, lacks: Sequence[str], refusal: object) -> None:
        super().__init__(str(refusal))
        self.lacks = tuple(lacks)


class Collection:
    """Cases by id, in the order they were made."""

    def __init__(self) -> None:
        self._cases: Dict[str, Case] = {}
        self._families: Dict[str, Callable[[str], Case]] = {}

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
        with a :class:`~spikecore.testing._context.Context`; raises where it does not hold, best
        :class:`~spikecore.testing.compare.Mismatch`. needs: names of capabilities, beside ``dtype``. undeclared: what
        asking for one that is not declared must raise. computes: whether a runner of the backend must be seen to run.

        Raises ``ValueError`` for an id that is taken, and for a tier or a capability that there is not.
        """
        self.put(Case(id, tier, holds, run, (dtype, *needs), undeclared, computes))

    def case(self, id: str, tier: str, holds: str, *needs: str, **options: Any) -> Callable[[Any], Any]:
        """A decorator that adds a function as a case; one function may be several. Options beside those of
        :meth:`add` are arguments of the function.
        """
        more = {name: options.pop(name) for name in ("dtype", "undeclared", "computes") if name in options}

        def add(run: Any) -> Any:
            self.add(id, tier, holds, partial(run, **options) if options else run, needs, **more)
            return run

        return add

    def family(self, prefix: str, tier: str = "", **same: Any) -> Callable[..., Callable[[Any], Any]]:
        """The decorator :meth:`case` for ids that begin with ``prefix/``, of one tier, by default of that name."""

        def case(name: str, holds: str, *needs: str, **more: Any) -> Callable[[Any], Any]:
            return self.case(f"{prefix}/{name}", tier or prefix, holds, *needs, **{**same, **more})

        return case

    def put(self, case: Case) -> None:
        """Add a case that is made, as :meth:`add` does."""
        if case.id in self._cases or case.tier not in TIERS:
            raise ValueError(f"case {case.id!r} of tier {case.tier!r}: the id is taken, or there is no such tier")
        unknown = [name for name in case.needs if name not in Capabilities.__dataclass_fields__]
        if unknown:
            raise ValueError(f"case {case.id!r} needs {', '.join(map(repr, unknown))}, which is no capability")
        self._cases[case.id] = case

    def add_family(self, prefix: str, make: Callable[[str], Case]) -> None:
        """Add cases whose ids begin with ``prefix``. make: the case of an id; raises ``ValueError`` for none."""
        self._families[prefix] = make

    def with_those_of(self, other: Iterable[Case]) -> Collection:
        """A new collection with these cases and others, whose ids are new."""
        both = Collection()
        both._cases = {**self._cases, **{case.id: case for case in other}}
        both._families = dict(self._families)
        return both

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())

    def __len__(self) -> int:
        return len(self._cases)

    def select(self, tiers: Optional[Sequence[str]] = None, ids: Optional[Sequence[str]] = None) -> List[Case]:
        """Cases of these tiers, or with these ids or patterns (``"bits/*"``); by default all.

        Ids match without regard to case. They are taken in the order in which they are given, since a failure may
        depend on the case before.
        """
        for tier in tiers or ():
            if tier not in TIERS:
                raise ValueError(f"tier {tier!r} must be one of {', '.join(TIERS)}")
        every = sorted(self, key=lambda case: TIERS.index(case.tier))
        if ids is None:
            return [case for case in every if case.tier in (tiers or TIERS)]
        chosen: Dict[str, Case] = {}
        for pattern in ids:
            matching = _matching(every, pattern)
            if not matching:
                made = self.made(pattern)
                if made is None:
                    raise ValueError(f"no case is called {pattern!r}{self.near(pattern)}")
                matching = [made]
            chosen.update((case.id, case) for case in matching)
        return [case for case in chosen.values() if tiers is None or case.tier in tiers]

    def get(self, id: str) -> Optional[Case]:
        """The case of this id, or None."""
        if id in self._cases:
            return self._cases[id]
        try:
            return self.made(id)
        except ValueError:
            return None

    def made(self, id: str) -> Optional[Case]:
        """The case of this id in a family, None if it belongs to none. Raises ``ValueError`` if its family has none."""
        for prefix, make in self._families.items():
            if id.startswith(prefix):
                return make(id)
        return None

    def near(self, id: str) -> str:
        """The ids that are like a wrong one, for an error."""
        close = " or ".join(map(repr, difflib.get_close_matches(id.lower(), self._cases)))
        return f"; did you mean {close}?" if close else "; spikecore conformance --list prints all"


def _matching(cases: Iterable[Case], pattern: str) -> List[Case]:
    return [case for case in cases if fnmatchcase(case.id.lower(), pattern.lower())]
