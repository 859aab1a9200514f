"""Costs of arithmetic: faults of a plain backend are found, each in its column; right values have many more digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from plain_loop import Loop, Plain
from spikecore.backend import Unsupported
from spikecore.cli import app
from spikecore.lang import Node
from spikecore.testing import installed
from spikecore.testing.numbers import OPERATIONS, SUMS, check, contraction, measure, table, ulps, values_of

mpmath = pytest.importorskip("mpmath", reason="SymPy brings it, which torch needs")
#: Functions of the oracle of the oracle.
RIGHT = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a / b": lambda a, b: a / b,
    **{f"{name}(a)": getattr(mpmath, name) for name in ("sqrt", "exp", "log", "tanh", "sin")},
}


class Faulty(Loop):
    """Each operation has a fault of its own; a product is rounded with the sum that it is in."""

    def operate(self, node: Node, args: List[Tensor]) -> Tensor:
        """The faulty value."""
        if node.op == "tanh":
            raise Unsupported("there is no tanh")
        if node.op == "mul":
            return args[0].double() * args[1].double()
        if node.op == "add":
            return (args[0].double() + args[1].double()).float()
        value = super().operate(node, args)
        if node.op == "sub":
            value = torch.where(value.abs() < 2.0**-126, 0 * value, value)
        if node.op == "div":
            value = args[0] * (1 / args[1])
        if node.op == "sqrt":
            value = value.nan_to_num(0.0, posinf=torch.inf)
        if node.op == "exp":
            value = value * (1 + 2.0**-21)
        if node.op == "log":
            value = value.clamp(min=-1e30)
        return value + 0.0 if node.op == "sin" else value


class FaultyBackend(Plain):
    """The backend."""

    name = "faulty"
    loop = Faulty


def rows(report: Dict[str, Any]) -> Dict[str, Any]:
    """Operation -> its row as words."""
    return {text: row for text, *row in table(report)}


def test_a_backend_that_rounds_correctly() -> None:
    """Operations of IEEE 754 are off by half a unit, nothing is flushed or fused, and the report passes its check."""
    with installed(Plain) as name:
        report = measure(name)
    check(report)
    shown = rows(report)
    assert [shown[text] for text in ("a + b", "a - b", "a * b", "a / b", "sqrt(a)")] == [
        ["0.5", "", "none", "kept", "right"]
    ] * 5
    assert all(float(row[0]) < 1.5 and row[3:] == ["kept", "right"] for row in shown.values())
    assert contraction(report) == "a * b + c is not fused; v = v * b + c is not fused"


def test_each_fault_is_in_its_column() -> None:
    """A product with a reciprocal, flushed results, a lost NaN, infinity and sign, a fused sum, a refusal."""
    with installed(FaultyBackend) as name:
        report = measure(name)
    check(report)
    shown, found = rows(report), report["operations"]
    assert shown["a + b"] == ["0.5", "", "none", "kept", "right"]
    assert shown["a - b"] == ["0.5", "", "none", "flushed", "right"]
    assert 1 < found["a / b"]["ulp"] < 8  # a reciprocal may be subnormal
    assert found["a / b"]["misrounded"] > found["a / b"]["values"] // 20
    assert shown["sqrt(a)"][4] == f"wrong: {found['sqrt(a)']['wrong_nans']:,} nans"
    assert 7.5 < found["exp(a)"]["ulp"] < 9
    assert shown["log(a)"][4] == f"wrong: {found['log(a)']['wrong_infinities']:,} infinities"
    assert shown["sin(a)"][4] == f"wrong: {found['sin(a)']['wrong_zeros']:,} zeros"
    assert shown["tanh(a)"] == ["refused", "", "", "", "there is no tanh"]
    assert contraction(report) == "a * b + c is fused; v = v * b + c is fused"
    assert {*report["fused"]} == {*SUMS}


@pytest.mark.parametrize("text", OPERATIONS)
def test_what_is_right_has_twenty_more_bits(text: str) -> None:
    """NumPy's float64 agrees with mpmath's 200 bits to a millionth of a unit, for every kind of value."""
    args = [np.asarray(arg, np.float64) for arg in values_of(OPERATIONS[text])]
    some = np.linspace(0, len(args[0]) - 1, 1500).astype(int)
    with np.errstate(all="ignore"):
        exact = OPERATIONS[text].exact(*args)
    compared = 0
    with mpmath.workprec(200):
        for k in some[np.isfinite(exact[some]) & np.all([np.isfinite(arg[some]) for arg in args], axis=0)]:
            right = RIGHT[text](*(mpmath.mpf(float(arg[k])) for arg in args))
            unit = mpmath.mpf(2) ** (max(int(np.frexp(exact[k])[1]) - 1, -126) - 23)
            assert abs(right - mpmath.mpf(float(exact[k]))) <= unit * 1e-6, [float(arg[k]) for arg in args]
            compared += 1
    assert compared > 500


def test_units_in_the_last_place() -> None:
    """Of the right value's binade; below the smallest normal number they stay the same, and infinity is 2^128."""
    got = np.array([1 + 2.0**-23, 1.0, 0.0, np.inf, np.inf, 2.0, -1.0])
    exact = np.array([1.0, 1 + 2.0**-24, 2.0**-149, 2.0**128 - 2.0**104, 2.0**129, 1.0, 1.0])
    assert ulps(got, exact).tolist() == [1.0, 0.5, 1.0, 1.0, 0.0, 2.0**23, 2.0**24]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({}, "backend: None is no str; it must be what `spikecore backends --numbers"),
        ({"operations": {"a + b": {"ulp": 1}}}, "operations: 'a \\+ b' has no values, at, misrounded"),
    ],
)
def test_what_is_no_report_is_refused(report: Dict[str, Any], words: str) -> None:
    """By key and value."""
    path = Path(__file__).parents[2] / "docs" / "results" / "numbers" / "torch-cpu-amd-epyc.json"
    good = json.loads(path.read_text(encoding="utf-8"))
    check(good)
    with pytest.raises(ValueError, match=words):
        check({**good, **report} if report else {})


def test_the_command_writes_a_file_for_each_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables on the screen, the same as JSON in the folder."""
    monkeypatch.setenv("SPIKECORE_BLOCK", "cupy,ipu")
    monkeypatch.setenv("COLUMNS", "200")
    with installed(FaultyBackend) as name:
        done = CliRunner().invoke(app, ["backends", "--probe", "--numbers", "--into", str(tmp_path)])
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(tmp_path.iterdir())]
    assert done.exit_code == 0, done.output
    assert [report["backend"] for report in reports] == [name, "torch"]
    for report in reports:
        assert f"{report['backend']} on cpu: {report['device']['name']}" in done.output
        for row in table(report):
            line = next(line for line in done.output.splitlines() if all(cell in line for cell in row))
            assert line.split("│")[1].strip() == row[0]
        assert contraction(report) in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--into", "."], "--into . is where --numbers writes its files: add --numbers"),
        (["--numbers", "--into", "absent"], "--into absent: there is no such folder; make it first"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(options: List[str], words: str) -> None:
    """Before anything is measured."""
    done = CliRunner().invoke(app, ["backends", *options])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
