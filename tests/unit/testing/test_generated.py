"""The generated tier: its array covers what it says, rows are text, failing rows shrink to what they take."""

from __future__ import annotations

import itertools
from typing import Any, Optional, Tuple

import numpy as np
import pytest
from typer.testing import CliRunner

from spikecore.backend import Capabilities
from spikecore.cli import app
from spikecore.testing import CASES, check_backend
from spikecore.testing._generated import cases, covering, shrink
from spikecore.testing._generated.factors import FACTORS
from spikecore.testing._generated.make import case_of
from spikecore.testing._generated.row import SIMPLEST, Row, parse
from spikecore.testing._generated.shrink import shrunk
from spikecore.testing._loopback import Loopback, installed

REMADE = (
    "SPIKECORE_SEED=1 python -c 'from pathlib import Path; from spikecore.testing._generated import cases, covering; "
    'Path(cases.__file__).with_name("rows.txt").write_text("\\n".join(map(str, covering.rows(cases.SEED))) + "\\n")\''
)


def pairs_of(rows: Tuple[Row, ...]) -> Any:
    """Every pair of levels in a row, in the order of the factors."""
    found = set()
    for row in rows:
        found |= set(itertools.combinations(zip(FACTORS, row.levels), 2))
    return found


class TestArray:
    """Rows in which every pair occurs."""

    @pytest.mark.parametrize("seed", [cases.SEED, 7])
    def test_every_feasible_pair_of_levels_is_covered(self, seed):
        """By the rows of this release, and by those of another seed."""
        feasible = covering.feasible()
        assert len(feasible) > 5000
        assert pairs_of(cases.rows(seed)) == feasible

    def test_the_rows_of_this_release_are_those_of_its_seed(self):
        """The file is made from the seed; after a change of the factors it is made anew."""
        assert list(cases.rows(cases.SEED)) == covering.rows(cases.SEED), REMADE

    def test_no_pair_that_is_left_out_could_be(self):
        """A pair that the array does not have excludes itself, or leaves nothing for another factor."""
        feasible = covering.feasible()
        out = [
            (one, other)
            for one, other in itertools.combinations(covering.LEVELS, 2)
            if one[0] != other[0] and (one, other) not in feasible
        ]
        assert all(SIMPLEST.having(*one).having(*other).conflict() for one, other in out)
        assert (("T", "250"), ("size", "65539")) in out
        assert (("trace", "contiguous"), ("call", "short")) in out

    def test_every_level_occurs_with_every_dtype(self):
        """What the tier is for: long runs, large sizes and layouts, in every dtype."""
        feasible = covering.feasible()
        for dtype in FACTORS["dtype"]:
            assert all((("T", level), ("dtype", dtype)) in feasible for level in FACTORS["T"])
            assert all((("size", level), ("dtype", dtype)) in feasible for level in FACTORS["size"])
            for name in ("x", "state", "trace", "final", "param_dtype"):
                assert all((("dtype", dtype), (name, level)) in feasible for level in FACTORS[name])

    def test_rows_share_runners(self):
        """A backend that compiles has about half as many runners as rows."""
        rows = cases.rows(cases.SEED)
        assert len({covering.signature(row) for row in rows}) <= 0.6 * len(rows)


class TestRows:
    """A row is text."""

    def test_what_is_printed_reads_back(self):
        """Every row of the release, and the simplest."""
        for row in (*cases.rows(cases.SEED), SIMPLEST):
            assert parse(str(row)) == row

    def test_what_is_not_said_is_the_simplest(self):
        """One factor and a seed are enough."""
        assert parse("T=17,seed=4") == Row(SIMPLEST.having("T", "17").levels, 4)
        assert parse("seed=0") == parse("") == SIMPLEST

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("T=18", "'T=18' of the row 'T=18': T must be one of 1, 2, 15"),
            ("steps=1", "'steps=1' of the row 'steps=1': a factor is one of T, size"),
            ("kind=number,learn=all", "the row 'kind=number,learn=all' cannot be: kind=number excludes learn=all"),
            ("call=short,record=all", "record=all excludes call=short"),
        ],
    )
    def test_a_row_that_cannot_be_is_refused(self, text, message):
        """With the factor, its levels, or the two that exclude one another."""
        with pytest.raises(ValueError, match=message):
            parse(text)

    def test_a_case_is_found_by_its_row(self):
        """In the suite, beside the cases of this release and of any other seed."""
        (case,) = CASES.select(ids=["generated/T=17,dtype=float16,seed=4"])
        assert case.needs[0] == "float16"
        assert case.tier == "generated"
        assert CASES.get("generated/T=17,dtype=float16,seed=4") is not None
        assert CASES.get("generated/T=18") is None
        (other,) = CASES.select(ids=["generated/seed-7-pairs-003"])
        assert other.holds.startswith(str(cases.rows(7)[3]))
        with pytest.raises(ValueError, match="T must be one of"):
            CASES.select(ids=["generated/T=18"])
        with pytest.raises(ValueError, match="the array of seed 1 has"):
            CASES.select(ids=["generated/pairs-9999"])

    def test_another_seed_draws_other_cases(self, monkeypatch):
        """By argument, or by the environment; their ids say so."""
        ids = [case.id for case in CASES.select(["generated"], seed=7)]
        assert ids[0] == "generated/seed-7-pairs-000"
        assert all(id.startswith("generated/seed-7-") for id in ids)
        monkeypatch.setenv("SPIKECORE_SEED", "7")
        assert [case.id for case in CASES.select(["generated"])] == ids
        monkeypatch.delenv("SPIKECORE_SEED")
        assert CASES.select(["generated"])[0].id == "generated/pairs-000"

    def test_the_command_takes_a_seed(self, monkeypatch):
        """It runs the cases of that seed, and lists them."""
        monkeypatch.setenv("SPIKECORE_SEED", "1")  # put back afterwards
        told = CliRunner().invoke(app, ["conformance", "torch", "--tier", "generated", "--seed", "7", "--list"])
        assert "generated/seed-7-pairs-000" in told.stdout
        assert "generated/pairs-000" not in told.stdout


class TestValues:
    """What a row's case is made of."""

    def test_a_row_has_the_same_numbers_each_time(self):
        """They follow from its seed; another seed has others."""
        row = parse("T=3,size=7".replace("T=3", "T=2") + ",program=two,seed=3")
        one, again, other = case_of(row), case_of(row), case_of(Row(row.levels, 4))
        assert all(np.array_equal(a, b) for a, b in zip(one.inputs, again.inputs))
        assert not np.array_equal(one.inputs[0], other.inputs[0])

    def test_inexact_values_are_none_of_a_smaller_precision(self):
        """A number and a float64 tensor are no float32, a float32 tensor is no float16."""
        number = case_of(parse("value=inexact,seed=1")).params["tau"]
        double = case_of(parse("value=inexact,kind=scalar,param_dtype=float64,seed=1")).params["tau"]
        single = case_of(parse("value=inexact,kind=scalar,seed=1")).params["tau"]
        assert number != np.float32(number)
        assert double != np.float32(double)
        assert single != np.float16(single)

    def test_gradients_of_huge_cotangents_overflow_in_float16(self):
        """Some, and some do not."""
        found = case_of(
            parse("T=17,dtype=float16,program=swap,cotangents=huge,final=contiguous,seed=2")
        ).expected.inputs
        sizes = np.abs(np.stack(found))
        assert (sizes > 65520).any()
        assert (sizes < 65504).any()

    def test_some_gradients_are_not_a_number_and_some_are(self):
        """Where cotangents are NaN."""
        found = case_of(parse("T=17,cotangents=nan,seed=2")).expected.inputs[0]
        assert 0 < np.isnan(found).sum() < found.size

    @pytest.mark.parametrize("size", ["65539", "2x3x21851"])
    def test_many_neurons_are_copies_in_random_order(self, size):
        """Of 61, in every tensor alike: neighbours differ, and what is expected is what the oracle gives them."""
        case = case_of(parse(f"T=2,size={size},kind=full,learn=all,seed=5"))
        x = case.inputs[0].reshape(2, -1)
        assert x.shape[1] == np.prod(case.shape) > 1 << 16
        assert (x[:, 1:] != x[:, :-1]).any(axis=0).mean() > 0.9
        assert case.params["tau"].shape == case.shape == case.expected.params["tau"].shape


class TestShrinking:
    """From a failing row to what it takes."""

    @pytest.mark.parametrize(
        "fault",
        [
            {"T": "33"},
            {"T": "64", "learn": "all"},
            {"size": "131101"},
            {"x2": "permuted"},
            {"kind": "full", "param_dtype": "bfloat16"},
            {"cotangents": "huge", "dtype": "float16"},
            {"final": "last", "program": "alif"},
        ],
        ids=str,
    )
    def test_the_factors_of_a_planted_fault_are_found(self, fault):
        """Of every row that has them, and nothing else but what they demand."""
        rows = [row for row in cases.rows(cases.SEED) if all(row[name] == level for name, level in fault.items())]
        assert rows

        def fails(row: Row) -> Optional[Tuple[str, Exception]]:
            hit = all(FACTORS[n].index(row[n]) >= FACTORS[n].index(level) for n, level in fault.items())
            return ("values", AssertionError("wrong")) if hit else None

        for row in rows[:3]:
            found = shrunk(row, fails, "values")
            assert found.done
            assert fails(found.row)
            for name, level in fault.items():
                assert found.row[name] == level
            left = [n for n in FACTORS if n not in fault and found.row[n] != FACTORS[n][0]]
            # what cannot move alone: a second input takes a program that has one, a learnt parameter a tensor
            assert set(left) <= {"program", "kind", "size"}, found
            assert all(f"{name}={level}" in str(found) for name, level in fault.items())

    def test_another_kind_of_failure_is_not_followed(self):
        """A row that fails otherwise is no simpler form of this failure."""
        row = parse("T=33,dtype=float16,seed=1")

        def fails(row: Row) -> Optional[Tuple[str, Exception]]:
            return ("values" if row["dtype"] == "float16" else "TypeError", AssertionError("wrong"))

        assert str(shrunk(row, fails, "values").row) == "dtype=float16,seed=1"

    def test_time_is_bounded(self, monkeypatch):
        """When it is over, the row so far is given, and that it may not be the simplest."""
        monkeypatch.setattr(shrink, "SECONDS", 0.0)
        found = shrunk(parse("T=33,dtype=float16,seed=1"), lambda row: ("values", AssertionError("wrong")), "values")
        assert not found.done
        assert "time ended before every factor was tried" in str(found)


def test_a_random_program_that_is_refused_is_no_pass():
    """Most take what a poor backend does not declare; such a case counts as unsupported, with what is lacking."""

    class Poor(Loopback):
        name = "poor"
        capabilities = Capabilities(float32=True, gradients=True)

    with installed(Poor):
        results = check_backend("poor", cases=["generated/programs-0*"])
    refused = [result for result in results if result.outcome == "unsupported"]
    assert refused
    assert all(result.lacking and "does not support" in result.message for result in refused)
    assert {result.outcome for result in results} <= {"passed", "unsupported"}
