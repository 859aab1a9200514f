"""The tiers ``generated`` and ``random``: calls and programs that nobody wrote.

``generated/<text>`` is the call of that text (:class:`~spikecore.testing._config.Config`); those of this release are in
``generated.txt``, and of another seed Hypothesis draws as many. ``generated/programs`` are drawn neurons, always the
same ones; ``random/programs`` are those of a seed that no run had before, which the report names, and
``random/seed-41`` those of seed 41. With ``fixed-`` before the last word, they are neurons in fixed point.
"""

from __future__ import annotations

import os
import pkgutil
import re
from dataclasses import replace
from functools import lru_cache, partial
from typing import List, Optional, Tuple

import torch

from spikecore.backend import Unsupported
from spikecore.dtypes import DTYPES
from spikecore.testing._case import Case, Collection
from spikecore.testing._config import NEURONS, Config, simplest
from spikecore.testing._config_check import check
from spikecore.testing._context import Context
from spikecore.testing.random_programs import VARIABLE, check_programs, first_seed, kind_of

#: The seed of this release, and how many programs each of the two cases of programs draws.
SEED, PROGRAMS = 1, 12
_GENERATED, _RANDOM = "generated/", "random/"
#: Neurons of drawn calls, each with a reset, and the shapes of those.
_NEURONS = (("lif", "soft"), ("lif-nodecay", "hard"), ("alif", "hard"), ("turn", "none"), ("swap", "none"),
            ("probe", "soft"), ("eif", "soft"), ("gated", "hard"))  # fmt: skip
_SHAPES = ((2, 3, 5), (1, 7), (15, 7), (16, 3, 5), (17, 2, 3, 7), (33, 7), (64, 3, 5), (2, 1), (3, 0),
           (2, 3, 2, 1, 2, 3), (1, 65539), (2, 3, 21851), (4,))  # fmt: skip
#: One first seed for all cases of a process.
_new = lru_cache(maxsize=None)(first_seed)


def add_to(cases: Collection) -> None:
    """Add the cases of this release, and the ways to others: by their ids, and of another seed."""
    for case in (*_calls(_frozen()), *_programs(_GENERATED, None), *_programs(_RANDOM, None)):
        cases.put(case)
    cases.add_family(_GENERATED, _by_text, _redrawn)
    cases.add_family(_RANDOM, _by_seed, lambda seed: None if seed is None else _programs(_RANDOM, seed))


def _frozen() -> Tuple[Config, ...]:
    text = (pkgutil.get_data("spikecore.testing._cases", "generated.txt") or b"").decode("utf-8")
    return tuple(map(Config.parse, text.split()))


@lru_cache(maxsize=8)
def _drawn(seed: int) -> Tuple[Config, ...]:
    from spikecore.testing.drawing import configs, drawn

    neurons = [(NEURONS[name], reset) for name, reset in _NEURONS]
    return tuple(drawn(configs(lambda name: True, tuple(DTYPES), neurons, _SHAPES), len(_frozen()), seed))


def _redrawn(seed: Optional[int]) -> Optional[List[Case]]:
    """The cases of a seed, by default that of the environment; None for those of this release."""
    if seed is None and os.environ.get(VARIABLE, "").strip():
        seed = first_seed()
    return None if seed in (None, SEED) else [*_calls(_drawn(seed), seed), *_programs(_GENERATED, seed)]


def _calls(configs: Tuple[Config, ...], seed: int = SEED) -> List[Case]:
    return [_of_config(config, seed) for config in configs]


def _of_config(config: Config, seed: Optional[int]) -> Case:
    sentence = f"{config}: outputs, states and gradients are the oracle's"
    needs = (config.dtype, *config.needs)
    return Case(f"{_GENERATED}{config}", "generated", sentence, partial(_call, config=config, seed=seed), needs)


def _by_text(id: str) -> Case:
    """The case of an id. Raises ``ValueError`` for one that there is not."""
    for fixed in (False, True):
        if id == _id(_GENERATED, None, fixed):
            return _of_programs(_GENERATED, None, fixed)
    return replace(_of_config(Config.parse(id[len(_GENERATED) :]), None), id=id)


def _call(context: Context, config: Config, seed: Optional[int]) -> None:
    """A configuration. What it raises tells of the simplest one that fails in the same way."""
    if seed is not None:
        context.seed("generated", seed)
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


def _programs(prefix: str, seed: Optional[int]) -> List[Case]:
    return [_of_programs(prefix, seed, fixed) for fixed in (False, True)]


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
    context.seed(prefix[:-1], SEED if seed is None else seed)
    case = _id(prefix if seed is None else _RANDOM, seed, fixed)
    again = f"these programs alone: spikecore conformance {context.name} --case {case}"
    check_programs(context, PROGRAMS, seed, again, fixed=fixed)
