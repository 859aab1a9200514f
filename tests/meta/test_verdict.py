"""No run says more than it showed: every way to a hollow verdict, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import spikecore as sc
from plain_loop import Loop, Plain, added
from spikecore.cli import app
from spikecore.plugins.registry import default_registry
from spikecore.testing import CASES, TIERS, Result, check_backend, conforms, examine, installed, judge


def run(*arguments: str) -> Any:
    """The result of the command."""
    return CliRunner().invoke(app, ["conformance", *arguments])


def every(outcome: str = "passed", **changed: str) -> Any:
    """Results of the whole default suite, those of some ids with another outcome."""
    return [Result(case.id, case.tier, changed.get(case.id, outcome), 0.0) for case in CASES.select()]


class Wrong(Loop):
    """Never fires."""

    def operate(self, node, args):
        """Zeros for spikes."""
        value = super().operate(node, args)
        return value * 0 if node.op == "spike" else value


class TestTheWords:
    """The four verdicts, from results alone."""

    def test_conforms(self) -> None:
        """The whole default suite, and every core case passed; limits outside core are said and allowed."""
        assert str(judge(every())) == f"conforms: {len(CASES.select())} cases passed"
        outside = next(case.id for case in CASES.select(["robust"]))
        verdict = judge(every(**{outside: "xfailed"}))
        assert (verdict.word, verdict.exit_code) == ("conforms", 0)
        assert "1 expected failure" in str(verdict)
        assert conforms(every())

    def test_wrong_numbers_that_a_reason_alone_excuses_are_partial(self) -> None:
        """In numbers: a plain text covers whatever number comes."""
        results = [replace(r, outcome="xfailed", blanket=True) if r.tier == "edges" else r for r in every()]
        verdict = judge(results)
        count = len(CASES.select(["edges"]))
        assert (verdict.word, verdict.exit_code) == ("partial", 3)
        assert f"wrong numbers in {count} cases excused by a reason alone (give match of ExpectedFailure)" in str(
            verdict
        )
        assert verdict.left_out["blanket"] == count
        assert judge([replace(r, blanket=False) for r in results]).word == "conforms"

    @pytest.mark.parametrize("outcome", ["xfailed", "unsupported"])
    def test_a_core_case_that_did_not_pass_is_partial(self, outcome: str) -> None:
        """An excuse is none in core, and gradients are part of it."""
        verdict = judge(every(**{"gradient/lif-hard": outcome}))
        assert (verdict.word, verdict.exit_code) == ("partial", 3)
        assert not conforms(every(**{"gradient/lif-hard": outcome}))

    def test_whole_tiers_that_hold_are_no_failure(self) -> None:
        """Partial as the verdict on the backend, exit code 0, and the text says what holds and what is not judged."""
        results = [result for result in every() if result.tier in ("core", "robust")]
        verdict = judge(results)
        others, left = len(CASES.select()) - len(results), len({case.tier for case in CASES.select()}) - 2
        assert (verdict.word, verdict.exit_code, conforms(results)) == ("partial", 0, False)
        holds = f"partial: all {len(results)} cases of the tiers core, robust hold; not judged: {left} tiers ({others} "
        assert str(verdict).startswith(holds)
        assert judge([replace(r, outcome="xfailed") if r.tier == "robust" else r for r in results]).exit_code == 0

    @pytest.mark.parametrize("spoilt", ["not whole", "core excused", "blanket"])
    def test_tiers_that_are_not_whole_or_excused_are_partial(self, spoilt: str) -> None:
        """Exit code 3, as for a backend."""
        results = [result for result in every() if result.tier in ("core", "robust")]
        if spoilt == "not whole":
            results = results[:-1]
        else:
            at = 0 if spoilt == "core excused" else -1
            results[at] = replace(results[at], outcome="xfailed", blanket=spoilt == "blanket")
        verdict = judge(results)
        assert (verdict.word, verdict.exit_code, verdict.clean) == ("partial", 3, ())
        assert "tiers not run (" in str(verdict)

    def test_a_case_that_was_not_chosen_is_partial(self) -> None:
        """One of all is enough."""
        assert "1 case of the other tiers not chosen" in str(judge(every()[1:]))
        assert judge(every()[1:]).word == "partial"

    @pytest.mark.parametrize("outcome", ["failed", "error", "stale"])
    def test_one_wrong_case_does_not_conform(self, outcome: str) -> None:
        """Whatever else passed."""
        verdict = judge(every(**{"forward/lif-hard": outcome}))
        assert (verdict.word, verdict.exit_code) == ("does not conform", 1)

    def test_nothing_passed_is_not_tested(self) -> None:
        """No results, only excuses, only refusals, not usable here."""
        some = CASES.select(["robust"])[:3]
        for outcome in ("xfailed", "unsupported", "unavailable"):
            verdict = judge([Result(case.id, case.tier, outcome, 0.0) for case in some])
            assert (verdict.word, verdict.exit_code) == ("not tested", 4), outcome
        assert judge([]).word == "not tested"
        assert not conforms([])


class TestHollow:
    """Runs that were once called sound."""

    def test_an_unusable_backend(self, monkeypatch: Any) -> None:
        """``conformance cupy --json`` without a GPU: not tested, and 4; 1 where it is required."""
        monkeypatch.delenv("SPIKECORE_REQUIRE", raising=False)
        with installed(Plain, reason="no such chip here") as name:
            result = run(name, "--json")
            facts = json.loads(result.output)
            assert (facts["verdict"], facts["conforms"], result.exit_code) == ("not tested", False, 4)
            assert "no such chip here" in facts["summary"]
            assert run(name, "--require").exit_code == 1

    def test_one_case(self) -> None:
        """Partial, with what was left out, and 3."""
        result = run("torch", "--case", "forward/lif-hard", "--json")
        facts = json.loads(result.output)
        assert (facts["verdict"], facts["conforms"], result.exit_code) == ("partial", False, 3)
        assert facts["left_out"]["cases"] == len(CASES.select()) - 1
        assert facts["left_out"]["tiers"] == [tier for tier in TIERS[1:] if CASES.select([tier])]

    def test_a_tier(self) -> None:
        """Its cases hold: exit code 0, though the backend is not judged; the output says why."""
        result = run("torch", "--tier", "ownership")
        assert result.exit_code == 0
        assert f"partial: all {len(CASES.select(['ownership']))} cases of the tier ownership hold" in result.output
        assert "not judged: " in result.output
        assert "exit code 0: nothing failed; the verdict is partial" in result.output
        results = [Result(case.id, "random", "passed", 0.0) for case in CASES.select(["random"])]
        assert judge(results).headline() == "partial: all 2 cases of the tier random hold"

    def test_every_case_an_expected_failure(self) -> None:
        """Nothing passed: not tested, and 1 where it is required."""

        class Excused(Plain):
            name = "excused"
            loop = Wrong
            expected_failures = dict.fromkeys(("forward/lif-hard", "forward/if-hard"), "never fires, excused#1")

        with installed(Excused) as name:
            arguments = [name, *(f"--case={id}" for id in Excused.expected_failures)]
            result = run(*arguments)
            assert result.exit_code == 4
            assert "not tested: nothing passed" in result.output
            assert "2 expected failures, 2 of the core tier" in result.output
            assert run(*arguments, "--require").exit_code == 1
            # with all that it does, it is partial at most
            excused = every(**dict.fromkeys(Excused.expected_failures, "xfailed"))
            assert judge(excused).word == "partial"

    @pytest.mark.parametrize("way", ["a neuron of torch", "its runner, kept", "one step", "an object of its class"])
    def test_cheats_that_call_the_reference(self, way: str) -> None:
        """By any way to its runner: made before, called step by step, or of a backend object of its own."""

        class Cheat(Plain):
            name = "cheat"

            def compile(self, program, spec):  # its numbers may be wrong: who computed comes with that
                torch_ = default_registry().get("torch", "a test")
                if way == "a neuron of torch":
                    return lambda inputs, *_: ((sc.LIF(backend="torch")(*inputs),), (inputs[0][0],), ())
                if way == "an object of its class":
                    return type(torch_)().compile(program, spec)
                kept = KEPT.setdefault((program, spec), torch_.runner(program, spec))
                if way == "its runner, kept":
                    return kept

                class Once:
                    def __call__(self, *args):
                        return Loop(program, spec)(*args)

                    def one_step(self, *args):
                        return kept.one_step(*args)

                return Once()

        case = "single-step/lif-hard" if way == "one step" else "forward/lif-hard"
        with installed(Cheat) as name:
            check_backend(name, cases=[case])
            with default_registry().fresh(name, "a test"):
                (result,) = check_backend(name, cases=[case])
        assert result.outcome == "failed", result
        assert "compute in its place" in result.message


KEPT: Any = {}


class TestReport:
    """Facts of a report beside the verdict."""

    def test_it_names_what_it_depends_on(self) -> None:
        """Versions, device by name, tiers, counts, date, time."""
        facts = json.loads(run("torch", "--case", "forward/lif-hard", "--json").output)
        assert facts["versions"]["spikecore"] == sc.__version__
        assert facts["versions"]["torch"] == torch.__version__
        assert facts["versions"]["distribution"].startswith("spikecore ")
        assert set(facts["versions"]) == {"spikecore", "distribution", "torch", "python", "contract"}
        assert facts["device"]["device"] == "cpu"
        assert facts["device"]["name"] not in ("", "cpu")
        assert facts["tiers"] == {"core": facts["counts"]}
        assert facts["date"].endswith("+00:00")
        assert facts["seconds"] > 0

    def test_seeds(self, monkeypatch: Any) -> None:
        """Those that cases say are in the report, whether the case holds or not."""

        def drawn(context: Any) -> None:
            context.seed("generated", 41)
            raise AssertionError("not equal")

        with installed(Plain) as name:
            report = examine(name, cases=[added(monkeypatch, name, drawn)])
        assert report.seeds == {"generated": 41}
        assert report.as_dict()["seeds"] == {"generated": 41}

    def test_a_line_for_each_case_where_there_is_no_terminal(self) -> None:
        """The line comes when the case ends, in the order in which cases are named."""
        lines = run("torch", "--case", "record/lif-hard", "--case", "forward/lif-hard").output.splitlines()
        assert [line.split()[:3] for line in lines[:2]] == [
            ["passed", "state", "record/lif-hard"],
            ["passed", "core", "forward/lif-hard"],
        ]
