"""The tables of docs/backends.md say what the code says: operations, what holds at special numbers, and dataclasses."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch

from spikecore.backend import BACKEND_API, MAX_STATIC_STEPS, OLDEST_API, Capabilities, Spec
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang.eager import TORCH
from spikecore.lang.node import LEAVES
from spikecore.testing import TIERS, TOLERANCES, judge
from spikecore.testing.reports import CONFORMS, DOES_NOT_CONFORM, NOT_TESTED, PARTIAL

PAGE = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")


def table(heading: str, first: str) -> List[List[str]]:
    """The rows of the first table behind a heading whose first column has this title, without its head."""
    text = PAGE[PAGE.index(f"\n{heading}\n") :]
    lines = text[text.index(f"\n| {first} |") :].strip().splitlines()
    rows: List[List[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


def names(cell: str) -> List[str]:
    """The words of a cell in code quotes."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_leaf_is_in_the_table() -> None:
    """The leaves are those of the language."""
    assert sorted(name for row in table("### Operations", "op | attribute") for name in names(row[0])) == sorted(LEAVES)


POINTS = [(names(call)[0], value, grads) for call, value, grads in table("### Operations", "at")]


def number(word: str) -> float:
    """A number as the page writes it."""
    return float(word == "True") if word in ("True", "False") else float(word)


def same(found: float, wanted: float) -> bool:
    """The same number, with the sign of zero; to the digits that the page has."""
    if math.isnan(wanted) or wanted == 0.0 or math.isinf(wanted):
        return repr(found) == repr(wanted)
    return math.isclose(found, wanted, rel_tol=1e-4)


@pytest.mark.parametrize(("call", "value", "grads"), POINTS, ids=[point[0] for point in POINTS])
def test_what_the_page_says_at_special_numbers_is_what_the_reference_computes(
    call: str, value: str, grads: str
) -> None:
    """Value, sign of zero and derivatives of an operation at NaN, infinities, ties and zeros."""
    op, words = call[:-1].split("(")
    args = [
        torch.tensor(word == "True") if word in ("True", "False") else torch.tensor(float(word))
        for word in words.split(", ")
    ]
    moving = [arg.requires_grad_() for arg in args if arg.dtype == torch.float32]
    found = TORCH[op](*args)
    value_found = float(found.detach())
    assert same(value_found, number(value)), f"{call} is {value_found!r}"
    if grads:
        got: Any = [torch.zeros(()) for _ in moving]
        if found.requires_grad:
            got = torch.autograd.grad(found, moving)
        wanted = [float(word) for word in grads.split(", ")]
        # torch's sign of a zero gradient is its own
        assert [same(abs(float(g)) if w == 0 else float(g), w) for g, w in zip(got, wanted)] == [True] * len(wanted), (
            got
        )
        assert len(got) == len(wanted)


def test_spec_and_capabilities_are_whole() -> None:
    """Every field of Spec and every capability has a row, and no row is of another; the limit of steps is right."""
    spec = [name for row in table("### Spec", "field") for name in names(row[0])]
    assert spec == [field.name for field in fields(Spec)]
    can = [name for row in table("### Capabilities", "capability") for name in names(row[0])]
    assert can == [field.name for field in fields(Capabilities)]
    assert f"T if it is at most {MAX_STATIC_STEPS}," in PAGE


def test_plans_are_whole() -> None:
    """Every field of both plans has a row, and every row names a field or a property."""
    shown: Dict[str, List[str]] = {"both": [], "forward": [], "backward": []}
    for plan, field, _ in table("## A kernel backend", "plan"):
        shown[plan] += names(field)
    assert set(ForwardPlan.__dataclass_fields__) <= {*shown["both"], *shown["forward"]}
    assert set(BackwardPlan.__dataclass_fields__) <= {*shown["both"], *shown["backward"]}
    for plan in (ForwardPlan, BackwardPlan):
        own, there = shown["forward" if plan is ForwardPlan else "backward"], {*dir(plan), *plan.__dataclass_fields__}
        assert [name for name in (*shown["both"], *own) if name not in there] == []


@pytest.mark.parametrize("plan", [ForwardPlan, BackwardPlan])
def test_all_that_a_plan_has_is_on_the_page(plan: Any) -> None:
    """Every public attribute of a plan stands in the part about kernel backends, by its name or behind ``plan.``."""
    begin = PAGE.index("\n## A kernel backend\n")
    part = PAGE[begin : PAGE.index("\n## ", begin + 1)]
    own = [name for name in dir(plan) if not name.startswith("_") and not hasattr(tuple, name)]
    assert [name for name in own if not re.search(rf"`(?:plan\.)?{name}\b", part)] == []


def test_the_versions_of_the_page_are_those_of_the_contract() -> None:
    """The newest and the oldest row are the versions that this spikecore takes."""
    rows = [row[0] for row in table("## Publishing, and versions", "version")]
    assert (rows[0], rows[-1]) == (str(BACKEND_API), str(OLDEST_API))


def test_verdicts_and_tiers_are_those_of_the_suite() -> None:
    """The four words with their exit codes, and every tier, are on the page."""
    rows = table("## Conformance", "verdict")
    codes = {names(word)[0]: int(code) for word, code, _ in rows}
    assert codes == {word: replace(judge([]), word=word).exit_code for word in codes}
    assert {*codes} == {CONFORMS, PARTIAL, NOT_TESTED, DOES_NOT_CONFORM}
    section = PAGE[PAGE.index("\nThe tiers: ") : PAGE.index("### Reading a failure")]
    assert set(TIERS) <= set(names(section))


def test_the_guarantees_have_the_suites_tolerances() -> None:
    """docs/guarantees.md promises for gradients what the suite asks for."""
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    table = page.partition("| quantity |")[2].partition("\n\n")[0].splitlines()
    dtypes = [cell.strip() for cell in table[0].strip("| ").split("|")]
    promised = {}
    for line in table[2:]:
        quantity, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        promised.update({(dtype, quantity): cell for dtype, cell in zip(dtypes, cells) if cell})
    as_numbers = {key: tuple(map(float, cell.split(", "))) for key, cell in promised.items()}
    assert as_numbers == {key: tuple(tolerance) for key, tolerance in TOLERANCES.items()}
