"""The tier ``random``: programs that no run had before, of a seed that the report names.

Ids: ``random/0`` to ``random/11`` are of the run's first seed and those after it; ``random/seed-41`` is the program of
seed 41, in every run. The first seed is that of ``SPIKECORE_SEED``, else a new one in each process.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache, partial
from typing import List, Optional

from spikecore.testing._case import Case, Collection
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._generated.cases import program
from spikecore.testing.random_programs._check import VARIABLE, first_seed

PREFIX = "random/"
#: Programs of a run.
COUNT = 12
_ID = re.compile(r"random/(?:seed-)?(\d+)")
#: One first seed for all cases of a process.
_new = lru_cache(maxsize=None)(first_seed)


def add_to(cases: Collection) -> None:
    """Add the programs of the run, and the way to that of any seed."""
    for case in drawn(None):
        cases.put(case)
    cases.add_family(PREFIX, by_id, lambda seed: None if seed is None else drawn(seed))


def drawn(first: Optional[int]) -> List[Case]:
    """The programs of a run, from a seed on; None for the run's own."""
    return [_case(f"{PREFIX}{k}", f"program {k} of the run", first, k) for k in range(COUNT)]


def by_id(id: str) -> Case:
    """The program of an id. Raises ``ValueError`` for one that there is not."""
    named = _ID.fullmatch(id)
    if named is None or not id.startswith(f"{PREFIX}seed-"):
        raise ValueError(f"no case is called {id!r}: there are random/0 to random/{COUNT - 1}, and random/seed-N")
    return _case(id, f"program of seed {named[1]}", int(named[1]), 0)


def _case(id: str, what: str, first: Optional[int], k: int) -> Case:
    sentence = f"random {what}: outputs, states and gradients are the oracle's"
    return Case(id, "random", sentence, partial(_holds, first=first, k=k), ("float32",), computes=False)


def _holds(context: Context, first: Optional[int], k: int) -> None:
    if first is None:
        first = first_seed() if os.environ.get(VARIABLE, "").strip() else _new()
    context.seed("random", first)
    try:
        program(context, first + k)
    except Mismatch as error:
        again = f"spikecore conformance {context.name} --case {PREFIX}seed-{first + k}"
        raise Mismatch(f"{error}\n  this program alone: {again}") from error
