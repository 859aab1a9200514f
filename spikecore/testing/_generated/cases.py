"""The cases of the generated tier: rows of a covering array, random programs, and any row by its text.

Ids: ``generated/pairs-000`` and ``generated/programs-00`` are of the seed of this release;
``generated/seed-7-pairs-000`` of seed 7; ``generated/T=17,dtype=float16,seed=4`` is a row.
"""

from __future__ import annotations

import os
import pkgutil
import re
from functools import lru_cache, partial
from typing import List, Optional, Tuple

import torch

from spikecore.backend import Unsupported
from spikecore.testing._case import Case, Collection, Undeclared
from spikecore.testing._compare import Mismatch
from spikecore.testing._context import Context
from spikecore.testing._generated import covering
from spikecore.testing._generated.check import PREFIX, compare_all, holds
from spikecore.testing._generated.row import Row, parse
from spikecore.testing.random_programs._case import DTYPES, draw
from spikecore.testing.random_programs._case import Case as Program
from spikecore.testing.random_programs._check import VARIABLE, first_seed, told

#: The seed of this release, whose rows are in ``rows.txt``, and how many random programs there are.
SEED, PROGRAMS = 1, 12
_ID = re.compile(r"generated/(?:seed-(\d+)-)?(pairs|programs)-(\d+)")


def seed_of_environment() -> int:
    """The seed that ``SPIKECORE_SEED`` asks for, or that of this release."""
    return first_seed() if os.environ.get(VARIABLE, "").strip() else SEED


@lru_cache(maxsize=8)
def rows(seed: int) -> Tuple[Row, ...]:
    """The covering array of a seed."""
    if seed == SEED:
        text = (pkgutil.get_data("spikecore.testing._generated", "rows.txt") or b"").decode("utf-8")
        return tuple(map(parse, text.split()))
    return tuple(covering.rows(seed))


def add_to(cases: Collection) -> None:
    """Add the cases of this release's seed, and the ways to others: by their ids, and of another seed."""
    for case in drawn(SEED):
        cases.put(case)
    cases.add_family(PREFIX, by_id, redrawn)


def redrawn(seed: Optional[int]) -> Optional[List[Case]]:
    """The cases of a seed, by default that of the environment; None for those of this release."""
    seed = seed_of_environment() if seed is None else seed
    return None if seed == SEED else drawn(seed)


def drawn(seed: int) -> List[Case]:
    """All cases of a seed."""
    before = "" if seed == SEED else f"seed-{seed}-"
    made = [_of_row(f"{PREFIX}{before}pairs-{k:03}", row, seed) for k, row in enumerate(rows(seed))]
    return made + [_of_program(f"{PREFIX}{before}programs-{k:02}", seed, k) for k in range(PROGRAMS)]


def by_id(id: str) -> Case:
    """The case of an id. Raises ``ValueError`` for one that there is not."""
    named = _ID.fullmatch(id)
    if named is None:
        return _of_row(id, parse(id[len(PREFIX) :]), None)
    seed, k = int(named[1] or SEED), int(named[3])
    if named[2] == "programs":
        return _of_program(id, seed, k)
    if k >= len(rows(seed)):
        raise ValueError(f"no case is called {id!r}: the array of seed {seed} has {len(rows(seed))} rows")
    return _of_row(id, rows(seed)[k], seed)


def _of_row(id: str, row: Row, seed: Optional[int]) -> Case:
    sentence = f"{row}: outputs, states and gradients are the oracle's"
    return Case(id, "generated", sentence, partial(_row, row=row, seed=seed), (row["dtype"], *row.needs))


def _row(context: Context, row: Row, seed: Optional[int]) -> None:
    if seed is not None:
        context.seed("generated", seed)
    context.check_exists(getattr(torch, row["param_dtype"]))
    holds(context, row)


def _of_program(id: str, seed: int, k: int) -> Case:
    sentence = f"random program {k} of seed {seed}: outputs, states and gradients are the oracle's"
    return Case(id, "generated", sentence, partial(_program, seed=seed, k=k), ("float32",), computes=False)


def _program(context: Context, seed: int, k: int) -> None:
    context.seed("generated", seed)
    program(context, seed * 1000 + k)


def program(context: Context, seed: int) -> None:
    """The random program of a seed gives the oracle's outputs, states and gradients.

    Which capabilities it takes is seen when it is drawn; what is undeclared must be refused.
    """
    case = draw(seed, tuple(name for name in DTYPES if context.declares(name)))
    lacks = [name for name in _needs(case) if not context.declares(name)]
    try:
        compare_all(case, context.name, str(context.device))
    except Unsupported as error:
        if lacks:
            raise Undeclared(lacks, error) from error
        raise
    except Mismatch as error:
        raise Mismatch(f"{error}{told(case, context.name, False)}") from error
    if lacks:
        raise Mismatch(
            f"{', '.join(lacks)} is not declared, and yet asking for it did not raise Unsupported\n"
            f"{told(case, context.name, False)}"
        )
    context.witness.verdict()


def _needs(case: Program) -> List[str]:
    tree, kinds = case.tree, [case.kinds[name] for name in case.tree.used_params]
    learn = bool(set(case.learn) & set(tree.used_params))
    inputs, state = case.wanted
    tensors = [len(case.params[name].shape) for name in tree.used_params if case.kinds[name] == "channel"]
    wants = {
        "gradients": inputs,
        "parameter_gradients": learn,
        "state_gradients": (state and case.state is not None) or (not case.short and (inputs or learn)),
        "channel_parameters": 1 in tensors,
        "full_parameters": "full" in kinds or any(dims > 1 for dims in tensors),
        "record": bool(case.record),
        "several_inputs": len(tree.inputs) > 1,
        "several_outputs": len(tree.outputs) > 1,
    }
    return [name for name, wanted in wants.items() if wanted]
