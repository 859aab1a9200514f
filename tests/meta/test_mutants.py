"""Deliberately wrong backends: a user's program shows the fault of each, and the suite finds it.

The mutants are in the package ``mutants``, one file for each class of faults.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
import torch

from spikecore.testing import CASES, DEFAULT_TIERS, check_backend
from spikecore.testing._loopback import Loopback, installed

sys.path.insert(0, str(Path(__file__).parent))
from mutants import KINDS, MUTANTS
from mutants.tape import Taped

#: Relative and absolute: what differs by less is the same to a user who does not look at bits.
NEAR = (2e-4, 1e-5)


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """What a mutant changes for the whole process is changed back."""
    threads, errors, dtype = torch.get_num_threads(), np.geterr(), torch.get_default_dtype()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  # the one that all share
    yield
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    np.seterr(**errors)
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002  # the same
    random.setstate(states[2])


def same(a: Any, b: Any) -> bool:
    """Whether two results of a program are the same to a user: numbers in tensors nearly, all else exactly."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        exact = not a.is_floating_point()
        return torch.equal(a, b) if exact else torch.allclose(a.double(), b.double(), *NEAR, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return bool(a == b) or (a != a and b != b)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.kind}-{m.name}")
def test_user_sees_the_fault(mutant: Any) -> None:
    """A program gives torch's result on the sound original, and another result, or none, on the mutant."""
    right = mutant.shows("torch")
    with installed(mutant.control) as name:
        assert same(mutant.shows(name), right), f"the program of {mutant.name} differs on the sound {name} itself"
    with installed(mutant.backend) as name:
        try:
            wrong = mutant.shows(name)
        except Exception:
            assert mutant.raises, f"the fault of {mutant.name} is no exception, and its program raised one"
            return
    assert not mutant.raises, f"the program of {mutant.name} raised nothing"
    assert not same(wrong, right), f"no user sees that in {mutant.name}: {mutant.what}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.kind}-{m.name}")
def test_suite_catches_it(mutant: Any) -> None:
    """Of each id or pattern that is there for this fault a case fails, and the messages say what must be said."""
    with installed(mutant.backend) as name:
        results = {pattern: check_backend(name, cases=[pattern]) for pattern in mutant.caught_by}
    every = [result for found in results.values() for result in found]
    wrong = ("failed", "error") if mutant.raises else ("failed",)
    for pattern, found in results.items():
        assert any(result.outcome in wrong for result in found), (
            f"{mutant.what} is not caught by {pattern}: {[(r.id, r.outcome, r.message) for r in found][:3]}"
        )
    for words in mutant.says:
        assert any(words in result.message for result in every), "\n\n".join(result.message for result in every)


def test_there_are_enough_mutants() -> None:
    """120 at least, each with a name of its own, of at least 12 classes; a class without a mutant is none."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) >= 120
    assert len(set(names)) == len(names)
    assert len(KINDS) >= 12
    assert {mutant.kind for mutant in MUTANTS} == set(KINDS)
    assert all(CASES.select(ids=mutant.caught_by) for mutant in MUTANTS)


#: Patterns of every case that catches a mutant.
CATCHING = sorted({pattern for mutant in MUTANTS for pattern in mutant.caught_by})


def test_the_taped_control_passes() -> None:
    """What some mutants are made from is sound: it passes every case that catches one, through the way of a plugin."""
    with installed(Taped) as name:
        results = check_backend(name, cases=CATCHING)
    assert not [f"{result.id}: {result.message}" for result in results if result.outcome != "passed"]


def test_the_control_passes_everything() -> None:
    """The backend that most mutants are made from passes every case that catches one, and every other one but those of
    the generated tier, which are many.
    """
    catching = {case.id for case in CASES.select(ids=CATCHING)}
    with installed(Loopback) as name:
        results = check_backend(name, tiers=[tier for tier in DEFAULT_TIERS if tier != "generated"])
        left = sorted(catching - {result.id for result in results})
        results += check_backend(name, cases=left) if left else []
    assert not [f"{result.id}: {result.message}" for result in results if not result.ok]
    strict = [result for result in results if result.tier != "compile" or result.id in catching]
    assert {result.outcome for result in strict} == {"passed"}
