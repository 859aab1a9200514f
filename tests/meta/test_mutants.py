"""Backends that are wrong on purpose: the case that ``mutants.txt`` names passes on the plain loop, not on them."""

from __future__ import annotations

import random
import re
import threading
import time
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple, Type

import numpy as np
import pytest
import torch

import plain_loop
from spikecore.backend import Backend, Unsupported
from spikecore.testing import CASES, Result, check_backend, installed
from spikecore_torch.backend import TorchBackend

SOURCE = Path(plain_loop.__file__).read_text()


#: (whole line of the loop, lines in its place)
Change = Tuple[str, List[str]]


class Mutant(NamedTuple):
    """A row of the table."""

    kind: str
    case: str
    fault: str
    changes: List[Change]
    #: What the message must say.
    says: str = ""


def operation(names: str, value: str) -> Change:
    """Another value of operations."""
    old = "values[node] = self.operate(node, args)"
    new = f"values[node] = ({value}) if node.op in {names.split()} else value"
    return old, ["value = self.operate(node, args)", "a, b = args[0], args[-1]", new]


def table() -> List[Mutant]:
    """The rows of ``mutants.txt``, which says how they are written."""
    kind, rows = "", []
    for line in (Path(__file__).parent / "mutants.txt").read_text().replace("\n  ", " ").splitlines():
        word, _, text = line.partition(" ")
        if word == "#" or not line:
            continue
        if line.startswith("["):
            kind = line.strip("[]")
        elif word == "-":
            rows[-1].changes.append((text, []))
        elif word == "+":
            rows[-1].changes[-1][1].append(text)
        elif word == "operation":
            rows[-1].changes.append(operation(*text.split(": ", 1)))
        elif word == "says":
            rows[-1] = rows[-1]._replace(says=text)
        else:
            case, _, fault = line.partition(": ")
            rows.append(Mutant(kind, case, fault, []))
    return rows


MUTANTS = table()
#: Those that a case must catch, and those that any generated call must.
BY_CASE = [mutant for mutant in MUTANTS if mutant.kind != "generated"]
GENERATED = [mutant for mutant in MUTANTS if mutant.kind == "generated"]


def linear(x: torch.Tensor) -> torch.Tensor:
    """The numbers that lie in memory from the first of ``x`` on, as if it were contiguous."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())[x.storage_offset() :]
    flat = torch.zeros(x.numel(), dtype=x.dtype)
    flat[: min(len(memory), len(flat))] = memory[: len(flat)]
    return flat.view(x.shape)


def from_start(x: torch.Tensor) -> torch.Tensor:
    """``x`` as if it began where its storage begins."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).as_strided(x.shape, x.stride())


def fail() -> None:
    """A fault that is an exception."""
    raise ArithmeticError("planted")


def refuse() -> None:
    """A refusal of what is declared."""
    raise Unsupported("planted")


#: Names that changed lines may use, beside those of the loop.
NAMES = {f.__name__: f for f in (linear, from_start, fail, refuse, TorchBackend, random, threading, time, weakref)}


def planted(mutant: Mutant) -> Type[Backend]:
    """The plain backend with the fault in it."""
    source = SOURCE
    for old, new in mutant.changes:
        indents = re.findall(rf"^( *){re.escape(old)}$", source, re.MULTILINE)
        assert len(indents) == 1, f"this line stands {len(indents)} times in plain_loop.py, and must once: {old}"
        source = source.replace(f"\n{indents[0]}{old}\n", "".join(f"\n{indents[0]}{line}" for line in new) + "\n")
    module: Dict[str, Any] = {**NAMES, "np": np, "__name__": "planted"}
    exec(compile(source, f"plain_loop.py, {mutant.fault}", "exec"), module)
    backend: Type[Backend] = module["Plain"]
    return backend


def result_of(backend: Type[Backend], case: str) -> Result:
    """Result of the case on the backend."""
    with installed(backend) as name:
        (result,) = check_backend(name, cases=[case])
    return result


@lru_cache(maxsize=None)
def of_the_control(case: str) -> Result:
    """The same on the loop without a fault."""
    return result_of(plain_loop.Plain, case)


@pytest.fixture
def process() -> Iterator[None]:
    """Changes that a mutant makes to the whole process are undone."""
    threads, dtype, states = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
    hook = threading.excepthook
    yield
    threading.excepthook = hook
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.set_rng_state(states)


def test_each_mutant_changes_lines_of_the_loop() -> None:
    """Whichever part of the matrix runs, no mutant was left behind by a change of the loop."""
    for mutant in MUTANTS:
        planted(mutant)


@pytest.mark.matrix
@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("mutant", BY_CASE, ids=[f"{m.kind}: {m.fault}".replace(" ", "-") for m in BY_CASE])
def test_the_case_catches_it(mutant: Mutant) -> None:
    """It passes without the fault, and with it finds a difference, or tells the exception that was planted."""
    control = of_the_control(mutant.case)
    assert control.outcome == "passed", control.message
    result = result_of(planted(mutant), mutant.case)
    caught = result.outcome == "failed" or (result.outcome == "error" and "planted" in result.message)
    assert caught, f"{mutant.fault} is not caught by {mutant.case}: {result.outcome} {result.message}"
    assert mutant.says in result.message


@pytest.mark.matrix
@pytest.mark.parametrize("mutant", GENERATED, ids=[m.fault.replace(" ", "-") for m in GENERATED])
def test_a_generated_call_catches_it(mutant: Mutant) -> None:
    """The message names the simplest call that fails, which takes what the row says and fails again by itself."""
    takes = mutant.case.partition(" ")[2]
    ids = sorted((case.id for case in CASES.select(ids=["generated/*=*"])), key=lambda id: not re.search(takes, id))
    with installed(planted(mutant)) as name:
        failed = (result for id in ids for result in check_backend(name, cases=[id]) if result.outcome == "failed")
        message = next(failed).message
        again = re.search(r"--case (generated/\S*)", message)[1]  # type: ignore[index]  # every message has it
        assert re.search(takes, again), message
        (repeated,) = check_backend(name, cases=[again])
    assert repeated.outcome == "failed"
    assert repeated.message.splitlines()[0] == message.splitlines()[0]


def test_there_are_enough() -> None:
    """Each with a name of its own, of many kinds."""
    assert len({(m.kind, m.fault) for m in MUTANTS}) == len(MUTANTS) >= 150
    assert len({m.kind for m in MUTANTS}) >= 25


FLUSHED = "value * (value.abs() >= torch.finfo(value.dtype).tiny)"


@pytest.mark.parametrize(("value", "alone"), [(FLUSHED, True), (f"{FLUSHED} + (a == 2.0) * (b == 2.0)", False)])
def test_differences_beside_subnormal_numbers_are_told(value: str, alone: bool) -> None:
    """The text that an expected failure names stands in the message where it is true of all differences."""
    result = result_of(planted(Mutant("", "", "flushes", [operation("add", value)])), "edges/add")
    assert result.outcome == "failed"
    assert ("each of these is beside a subnormal number" in result.message) == alone, result.message


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("earlier", [[], ["forward/lif-hard"]], ids=["alone", "after-another-case"])
@pytest.mark.parametrize("case", ["ownership/process-subnormals", "edges/mul", "edges/mul-gradient", "edges/output-*"])
def test_flush_to_zero_is_seen_whichever_case_set_it(case: str, earlier: List[str]) -> None:
    """Every call sets it and none resets it, so that later cases find it set before they call."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.fault == "subnormal numbers are 0 for all"]
    with installed(planted(mutant)) as name:
        results = check_backend(name, cases=[*earlier, case])[len(earlier) :]
    assert {result.outcome for result in results} == {"failed"}
    says = "this thread takes subnormal numbers for 0" if earlier else "subnormal"
    assert all(says in result.message for result in results), results
