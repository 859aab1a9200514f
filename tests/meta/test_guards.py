"""The suite's own guards: what a subclass may not do, what a run may not leave out, and what an oracle must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import refusals
import spikecore as sc
from plain_loop import EVERYTHING, Loop, Plain, added
from spikecore.backend import Capabilities
from spikecore.cli import app
from spikecore.plugins.registry import default_registry
from spikecore.testing import CASES, TIERS, BackendConformance, check_backend, examine, installed
from spikecore.testing.edge_table import GROUPS


def outcomes(results):
    """Case id -> outcome."""
    return {result.id: result.outcome for result in results}


class TestExpectedFailures:
    """A list of excuses is checked like everything else."""

    def test_one_that_passes_is_stale(self):
        """And so fails the run."""
        results = check_backend("torch", cases=["forward/lif-hard"], expected_failures={"forward/lif-hard": "a reason"})
        assert outcomes(results) == {"forward/lif-hard": "stale"}
        assert "take it off expected_failures" in results[0].message
        assert not results[0].ok

    def test_one_that_names_no_case_is_stale(self):
        """The message has the id that was meant."""
        results = check_backend("torch", cases=["forward/lif-hard"], expected_failures={"forward/lif-herd": "a reason"})
        assert outcomes(results) == {"forward/lif-herd": "stale", "forward/lif-hard": "passed"}
        assert "did you mean 'forward/lif-hard'" in results[0].message

    def test_one_without_a_reason_is_refused(self):
        """Empty words are none."""
        results = check_backend("torch", cases=["exact/lif-hard"], expected_failures={"forward/lif-hard": "  "})
        assert outcomes(results) == {"forward/lif-hard": "stale", "exact/lif-hard": "passed"}

    def test_one_that_fails_has_its_reason(self):
        """It counts apart, and the run is in order; so also if the backend itself names it."""

        class Late(Plain):
            name = "late"

            def compile(self, program, spec):
                made = super().compile(program, spec)
                return lambda *args: tuple(
                    tuple(x * 0 for x in part) if i == 0 else part for i, part in enumerate(made(*args))
                )

        class Honest(Late):
            expected_failures = {"forward/lif-hard": "late#7"}

        for backend, given in ((Late, {"forward/lif-hard": "late#7"}), (Honest, {})):
            with installed(backend) as name:
                (result,) = check_backend(name, cases=["forward/lif-hard"], expected_failures=given)
            assert (result.outcome, result.message, result.ok) == ("xfailed", "late#7", True)

    def test_one_whose_capability_is_not_declared_is_stale(self):
        """It is unsupported already, which needs no excuse."""

        class Small(Plain):
            name = "small"
            capabilities = replace(EVERYTHING, record=False)

        with installed(Small) as name:
            (result,) = check_backend(name, cases=["record/lif-hard"], expected_failures={"record/lif-hard": "no"})
        assert result.outcome == "stale"


class TestCapabilities:
    """A capability that is not declared is asked for, and must be refused."""

    @pytest.mark.parametrize("lacking", [name for name in Capabilities.__dataclass_fields__ if name != "torch_compile"])
    def test_undeclared_is_unsupported_and_never_left_out(self, lacking):
        """Every case that needs the capability is in the results, as unsupported, and no other case is."""

        class Small(Plain):
            name = "small"
            capabilities = replace(EVERYTHING, **{lacking: False})

        needing = [case.id for case in CASES.select(["dtypes", "parameters", "state", "language", "robust"])]
        needing = [id for id in needing if lacking in CASES.get(id).needs][:4] or ["forward/lif-hard"]
        with installed(Small) as name:
            results = check_backend(name, cases=needing)
        assert outcomes(results) == dict.fromkeys(needing, "unsupported"), results
        assert all(lacking in result.lacking for result in results)

    def test_computing_what_is_not_declared_is_a_failure(self, monkeypatch):
        """A case that goes through although its capability is undeclared says so."""

        class Small(Plain):
            name = "small"
            capabilities = replace(EVERYTHING, record=False)

        with installed(Small) as name:
            (result,) = check_backend(name, cases=[added(monkeypatch, name, lambda context: None, ("record",))])
        assert result.outcome == "failed"
        assert "did not raise Unsupported" in result.message

    def test_everything_undeclared_fails_the_run(self):
        """Nothing was tested where no core case ran."""

        class Empty(Plain):
            name = "empty"
            capabilities = Capabilities()

        with installed(Empty) as name:
            results = check_backend(name, tiers=["core"])
        assert {result.outcome for result in results[:-1]} == {"unsupported"}
        assert (results[-1].id, results[-1].outcome) == ("backend/core-ran", "failed")


class TestRequired:
    """An unusable backend is reported; a required one fails."""

    def test_required_is_required(self, monkeypatch):
        """By argument or by environment, where names stand between commas."""
        monkeypatch.delenv("SPIKECORE_REQUIRE", raising=False)
        with installed(Plain, reason="no such chip here") as name:
            (result,) = check_backend(name, require=True)
            assert result.outcome == "failed"
            monkeypatch.setenv("SPIKECORE_REQUIRE", "other, plain")
            (result,) = check_backend(name)
            assert result.outcome == "failed"
            monkeypatch.setenv("SPIKECORE_REQUIRE", "pla,in")
            (result,) = check_backend(name)
            assert result.outcome == "unavailable"

    def test_unknown_and_broken_are_errors(self):
        """Whatever is required."""
        (result,) = check_backend("cudda")
        assert result.outcome == "error"
        assert "unknown backend 'cudda'" in result.message


class TestWitness:
    """The backend that computed is seen, not believed."""

    def test_a_case_that_computes_nothing_on_the_backend_fails(self, monkeypatch):
        """Even if its comparison holds."""
        with installed(Plain) as name:
            (result,) = check_backend(name, cases=[added(monkeypatch, name, lambda context: None)])
        assert result.outcome == "failed"
        assert "no runner of backend 'plain' was called" in result.message

    def test_nothing_stays_wrapped(self):
        """After a case the backends are as they were."""
        backend = default_registry().get("torch", "a test")
        before = dict(vars(backend))
        check_backend("torch", cases=["forward/lif-hard"])
        assert vars(backend).keys() == before.keys()
        with installed(Plain) as name:
            check_backend(name, cases=["forward/lif-hard"])
        assert type(backend).compile.__name__ == "compile"
        assert "runner" not in vars(backend)


class TestCases:
    """The table of cases."""

    def test_ids_and_sentences(self):
        """Ids are family/name in lower case; every case says what holds; every tier has cases."""
        for case in CASES:
            family, _, name = case.id.partition("/")
            assert family.islower(), case.id
            assert name, case.id
            assert name == name.lower(), case.id
            assert len(case.holds.split()) > 2, case.id
            assert all(hasattr(Capabilities(), need) for need in case.needs), case.id
        assert {case.tier for case in CASES} == set(TIERS) - {"own"}  # which is for plugins' cases

    def test_core_needs_little(self):
        """No core case needs more than float32 and the gradient of the input."""
        assert {need for case in CASES.select(["core"]) for need in case.needs} == {"float32", "gradients"}

    def test_selection(self):
        """By tier, by id, by pattern; what there is not raises."""
        assert {case.tier for case in CASES.select()} == set(TIERS) - {"own"}
        assert [case.id for case in CASES.select(ids=["forward/lif-hard"])] == ["forward/lif-hard"]
        assert len(CASES.select(ids=["surrogate/*"])) == 21
        assert CASES.select(ids=["FORWARD/lif-*"]) == CASES.select(ids=["forward/LIF-*"]) != []
        with pytest.raises(ValueError, match="no case is called 'forward/lif-har'; did you mean 'forward/lif-hard'"):
            CASES.select(ids=["bits/*", "forward/lif-har"])
        with pytest.raises(ValueError, match="no case is called 'none/\\*'; spikecore conformance --list prints all"):
            CASES.select(ids=["none/*"])
        with pytest.raises(ValueError, match="tier 'cor' must be one of core,"):
            CASES.select(["cor"])

    def test_device(self):
        """The CPU where it is taken."""
        with installed(Plain, devices=("cuda", "cpu")) as name:
            assert examine(name, cases=["forward/lif-hard"]).as_dict()["device"]["device"] == "cpu"


class TestOracle:
    """Inputs that could hide an error would be an error."""

    @pytest.mark.parametrize("id", [case.id for case in CASES.select(["core"]) if case.id.startswith("forward/")])
    def test_margin_inputs_fire_and_stay_silent(self, id):
        """On margin inputs every neuron that fires does both often, and no potential is near the threshold."""
        tested = []

        class Noting(Loop):
            def operate(self, node, args):
                if node.op == "spike":
                    tested.append(args[0])
                return super().operate(node, args)

        with installed(type("Noted", (Plain,), {"name": "noted", "loop": Noting})) as name:
            (result,) = check_backend(name, cases=[id])
        assert result.outcome == "passed", result.message
        if tested:
            above = torch.stack(tested)
            assert 0.08 < (above > 0).float().mean() < 0.92
            assert above.abs().min() > 9e-4

    def test_surrogates_are_all_there(self):
        """Those of the library; the cases ``edges/*`` compare them at their defaults."""
        assert {edge.name for edge in GROUPS["surrogates"]} == {f"surrogate-{name}" for name in sc.surrogate.SURROGATES}


class TestShell:
    """``spikecore conformance``."""

    def run(self, *arguments):
        """The result of the command."""
        return CliRunner().invoke(app, ["conformance", *arguments])

    @pytest.mark.parametrize(
        ("name", "device", "words"),
        [
            ("torch", "nope", "device 'nope' cannot be used here"),
            ("torch", "cuda:99", "device 'cuda:99' cannot be used here"),
            ("torch", "ve", "device 've' cannot be used here"),
            ("plain", "meta", "backend 'plain' computes on cpu, not on device 'meta'"),
        ],
    )
    def test_a_device_that_cannot_be_used_is_said_before_anything_runs(self, name, device, words):
        """One sentence and exit code 2, and no case has run."""
        with installed(Plain, devices=("cpu",)):
            result = self.run(name, "--device", device)
        assert result.exit_code == 2
        assert words in " ".join(result.output.split())
        assert "failed" not in result.output
        assert "is only available for these backends" not in " ".join(result.output.split())

    def test_a_wrong_one(self):
        """The difference, how to see it again, and 1."""

        class Wrong(Plain):
            name = "wrong"

            def compile(self, program, spec):
                made = super().compile(program, spec)
                return lambda *args: tuple(
                    tuple(x * 0 for x in part) if i == 0 else part for i, part in enumerate(made(*args))
                )

        with installed(Wrong) as name:
            result = self.run(name, "--case", "forward/lif-hard")
        assert result.exit_code == 1
        for words in ("first at", "again: spikecore conformance wrong --case forward/lif-hard", "does not conform"):
            assert words in result.output

    def test_wrong_arguments(self):
        """A case or a backend that there is not, or no backend, is an error of usage, and no verdict."""
        assert self.run("torch", "--case", "forward/lif-har").exit_code == 2
        assert self.run().exit_code == 2
        result = self.run("torhc")
        assert result.exit_code == 2
        said = " ".join(result.output.replace("\u2502", " ").split())
        assert "unknown backend 'torhc' (from the command line); did you mean 'torch'? Known: " in said
        assert "conform:" not in said

    def test_list(self):
        """Every case with its sentence, on one line where the output is no terminal."""
        result = self.run("--list", "--tier", "core")
        assert "forward/lif-hard" in result.output
        assert len(result.output.splitlines()) == len(CASES.select(tiers=["core"]))
        assert "the oracle's" in result.output


@pytest.mark.parametrize("shared", [False, True])
def test_results_between_each_other_in_memory_do_not_overlap(shared):
    """Two states of one allocation, every second number each, share no element; one tensor for both does."""

    class Between(Plain):
        name = "between"

        def compile(self, program, spec):
            run = super().compile(program, spec)

            def interleaved(*args):
                outputs, final, trace = run(*args)
                return outputs, torch.stack(final, -1).unbind(-1) if not shared else (final[0], final[0]), trace

            return interleaved

    with installed(Between) as name:
        (result,) = check_backend(name, cases=["ownership/results-usual"])
    assert result.outcome == ("failed" if shared else "passed"), result.message


test_refused = refusals.table(__file__, globals(), BackendConformance)
