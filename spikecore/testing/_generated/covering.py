"""A covering array: rows in which every pair of levels that can be together is together at least once.

Greedy, and the same for the same seed in every version of Python: only ``random()`` is drawn from. Each row begins with
a pair that is still missing and is filled, factor by factor, with the level that brings most missing pairs. Of several
candidates the one with most wins, less a price where it asks for a runner that no row before it has: a backend that
compiles pays for each. Half of the candidates therefore begin with the runner of an earlier row.

A level is a number, and a set of levels the bits of one: all factors together have about a hundred levels.
"""

from __future__ import annotations

import random
from typing import Dict, List, Set, Tuple

from spikecore.backend import MAX_STATIC_STEPS
from spikecore.testing._generated.factors import FACTORS, agree
from spikecore.testing._generated.row import Row

#: Rows that are tried for each that is taken, and what a new runner costs, in pairs.
CANDIDATES, PRICE = 24, 5
#: What a compiled runner depends on, beside the number of steps.
COMPILED = ("dtype", "program", "detach", "kind", "learn", "call")

Level = Tuple[str, str]
LEVELS: Tuple[Level, ...] = tuple((name, level) for name, levels in FACTORS.items() for level in levels)
_NUMBER: Dict[Level, int] = {level: k for k, level in enumerate(LEVELS)}
#: Factor -> its levels.
_OF: Dict[str, int] = {name: sum(1 << _NUMBER[name, level] for level in FACTORS[name]) for name in FACTORS}
#: Level -> those of other factors that can be with it.
_WITH: List[int] = [
    sum(1 << k for k, other in enumerate(LEVELS) if other[0] != one[0] and agree(*one, *other)) for one in LEVELS
]


def _bits(mask: int) -> List[int]:
    found = []
    while mask:
        last = mask & -mask
        found.append(last.bit_length() - 1)
        mask ^= last
    return found


def _both(chosen: int) -> int:
    """All levels that can be with every chosen one."""
    possible = -1
    for k in _bits(chosen):
        possible &= _WITH[k]
    return possible


def _can_be(chosen: int) -> bool:
    """Whether there is a whole row with these levels: of what is left, the factor with the fewest choices first."""
    possible = _both(chosen)
    choices = [mask & possible for mask in _OF.values() if not mask & chosen]
    if not choices:
        return True
    fewest = min(choices, key=lambda mask: bin(mask).count("1"))
    return any(_can_be(chosen | 1 << k) for k in _bits(fewest))


def _feasible() -> List[int]:
    """Level -> the levels that some row has beside it."""
    found = [0] * len(LEVELS)
    for one in range(len(LEVELS)):
        for other in _bits(_WITH[one] & ((1 << one) - 1)):
            if _can_be(1 << one | 1 << other):
                found[one] |= 1 << other
                found[other] |= 1 << one
    return found


def feasible() -> Set[Tuple[Level, Level]]:
    """Every pair of levels that some row has, in the order of the factors."""
    return {(LEVELS[one], LEVELS[k]) for one, mask in enumerate(_feasible()) for k in _bits(mask) if k > one}


def signature(row: Row) -> Tuple[str, ...]:
    """What tells the compiled runners of rows apart."""
    steps = row["T"] if int(row["T"]) <= MAX_STATIC_STEPS else "more"
    kind = "full" if row["kind"] == "spread" else row["kind"]
    return (steps, kind, *(row[name] for name in COMPILED if name != "kind"))


def rows(seed: int) -> List[Row]:
    """A covering array."""
    rng = random.Random(seed)
    missing = _feasible()
    runners: Dict[Tuple[str, ...], int] = {}
    made: List[Row] = []
    while any(missing):
        started = [_started(rng, missing, list(runners.values()) if k % 2 else []) for k in range(CANDIDATES)]
        best, most = 0, -(1 << 30)
        for start in started:
            chosen = _filled(rng, start, missing)
            if not chosen:
                continue
            found = sum(bin(missing[k] & chosen).count("1") for k in _bits(chosen)) // 2
            worth = found - (0 if signature(_row(chosen)) in runners else PRICE)
            if found and worth > most:
                best, most = chosen, worth
        if not best:  # no candidate became a whole row; the next ones begin elsewhere
            continue
        for k in _bits(best):
            missing[k] &= ~best
        made.append(Row(_row(best).levels, 1 + int(rng.random() * 1_000_000)))
        runners.setdefault(signature(made[-1]), _compiled(best))
    return made


def _row(chosen: int) -> Row:
    return Row(tuple(LEVELS[k][1] for k in _bits(chosen)))


def _compiled(chosen: int) -> int:
    """The levels of a row that its runner depends on."""
    return sum(1 << k for k in _bits(chosen) if LEVELS[k][0] in (*COMPILED, "T"))


def _started(rng: random.Random, missing: List[int], runners: List[int]) -> int:
    """A pair that is missing; with the levels of an earlier runner where one goes with it."""
    some = [k for k, mask in enumerate(missing) if mask]
    one = some[int(rng.random() * len(some))]
    others = _bits(missing[one])
    chosen = 1 << one | 1 << others[int(rng.random() * len(others))]
    for _ in range(len(runners) and 8):
        both = chosen | runners[int(rng.random() * len(runners))]
        if all(not both & ~(1 << k) & ~_WITH[k] for k in _bits(both)) and _can_be(both):
            return both
    return chosen


def _filled(rng: random.Random, chosen: int, missing: List[int]) -> int:
    """A whole row from a part of one; 0 where a choice has left nothing for another factor."""
    possible = _both(chosen)
    while True:
        left = [mask & possible for mask in _OF.values() if not mask & chosen]
        if not left:
            return chosen
        if not all(left):
            return 0
        forced = [mask for mask in left if not mask & (mask - 1)]
        mask = forced[0] if forced else left[int(rng.random() * len(left))]
        _, _, best = max((bin(missing[k] & chosen).count("1"), rng.random(), k) for k in _bits(mask))
        chosen |= 1 << best
        possible &= _WITH[best]
