"""The tiers ``generated`` and ``random``: calls and programs that nobody wrote.

``generated/<text>`` is the call of that text (:class:`~spikecore.testing._config.Config`); those of the suite are in
``generated.txt``. ``generated/programs`` are drawn neurons, always the same ones; ``random/programs`` are those of a
seed that no run had before, which the report names, or of ``SPIKECORE_SEED``, and ``random/seed-41`` those of seed 41.
With ``fixed-`` before the last word, they are neurons in fixed point.
"""

from __future__ import annotations

import os
import pkgutil
import re
from dataclasses import replace
from functools import lru_cache, partial
from typing import Optional

import torch

from spikecore.backend import Unsupported
from spikecore.testing._case import Case, Collection
from spikecore.testing._config import Config, simplest
from spikecore.testing._config_check import check
from spikecore.testing._context import Context
from spikecore.testing.random_programs import VARIABLE, check_programs, first_seed, kind_of

#: Programs that each of the cases of programs draws.
PROGRAMS = 12
_GENERATED, _RANDOM = "generated/", "random/"
#: One first seed for all cases of a process.
_new = lru_cache(maxsize=None)(first_seed)


def add_to(cases: Collection) -> None:
    """Add the cases of the suite, and the way to others by their ids."""
    text = (pkgutil.get_data("spikecore.testing._cases", "generated.txt") or b"").decode("utf-8")
    for case in map(_of_config, map(Config.parse, text.split())):
        cases.put(case)
    for prefix in (_GENERATED, _RANDOM):
        for fixed in (False, True):
            cases.put(_of_programs(prefix, None, fixed))
    cases.add_family(_GENERATED, _by_text)
    cases.add_family(_RANDOM, _by_seed)


def _of_config(config: Config) -> Case:
    sentence = f"{config}: outputs, states and gradients are the oracle's"
    needs = (config.dtype, *config.needs)
    return Case(f"{_GENERATED}{config}", "generated", sentence, partial(_call, config=config), needs)


def _by_text(id: str) -> Case:
    """The case of an id. Raises ``ValueError`` for one that there is not."""
    return replace(_of_config(Config.parse(id[len(_GENERATED) :])), id=id)


def _call(context: Context, config: Config) -> None:
    """A configuration. What it raises tells of the simplest one that fails in the same way."""
    if config.param_dtype:
        context.check_exists(getattr(torch, config.param_dtype))
    errors = {}

    def fails(other: Config) -> bool:
        try:
            check(context, other)
        except Exception as error:
            errors[str(other)] = error
            return kind_of(error) == kind_of(errors[str(config)])
        return False

    try:
        check(context, config)
    except Unsupported:
        raise
    except Exception as error:
        errors[str(config)] = error
        last = errors[str(simplest(config, fails))]
        simple = next(text for text, one in errors.items() if one is last)
        text = f"{last}\n  the simplest call that fails so: {simple}\n"
        text += f"  it alone: spikecore conformance {context.name} --case {_GENERATED}{simple}"
        if len(last.args) == 1 and isinstance(last.args[0], str):
            last.args = (text,)
        raise last from error


def _of_programs(prefix: str, seed: Optional[int], fixed: bool) -> Case:
    sentence = (
        f"{PROGRAMS} programs{' in fixed point' if fixed else ''}: outputs, states and gradients are the oracle's"
    )
    run = partial(_program, prefix=prefix, seed=seed, fixed=fixed)
    return Case(_id(prefix, seed, fixed), prefix[:-1], sentence, run, ("float32",))


def _id(prefix: str, seed: Optional[int], fixed: bool) -> str:
    return f"{prefix}{'fixed-' if fixed else ''}{'programs' if seed is None else f'seed-{seed}'}"


def _by_seed(id: str) -> Case:
    """The programs of an id. Raises ``ValueError`` for one that there is not."""
    named = re.fullmatch(rf"{_RANDOM}(fixed-)?seed-(\d+)", id)
    if named is None:
        raise ValueError(
            f"no case is called {id!r}: there is {_RANDOM}programs, {_RANDOM}seed-N, and the same with fixed-"
        )
    return _of_programs(_RANDOM, int(named[2]), bool(named[1]))


def _program(context: Context, prefix: str, seed: Optional[int], fixed: bool) -> None:
    if seed is None and prefix == _RANDOM:
        seed = first_seed() if os.environ.get(VARIABLE, "").strip() else _new()
    if seed is not None:
        context.seed(prefix[:-1], seed)
    case = _id(prefix if seed is None else _RANDOM, seed, fixed)
    again = f"these programs alone: spikecore conformance {context.name} --case {case}"
    check_programs(context, PROGRAMS, seed, again, fixed=fixed)
