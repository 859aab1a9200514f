"""``spikecore bench``: what it measures, and what it refuses to measure. No figure is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import refusals
from bench_runs import TINY, Mutant, only, ran
from plain_loop import EVERYTHING, Plain
from spikecore.inspect import floor_words
from spikecore.testing import installed
from spikecore_bench import implementations
from spikecore_bench.peers import PEERS
from spikecore_bench.report import from_json
from spikecore_bench.settings import Settings, device_named
from spikecore_bench.workloads import WORKLOADS


class Narrow(Plain):
    """A backend that says it has no bfloat16."""

    name = "narrow"
    capabilities = replace(EVERYTHING, bfloat16=False)


class Broken(Plain):
    """A backend whose runs fail."""

    name = "broken"

    def compile(self, program, spec):
        raise RuntimeError("no more chips\nsecond line")


@pytest.mark.parametrize("name", WORKLOADS)
def test_floor_of_every_workload_is_five_words(name: str) -> None:
    """One input and one output: 2 words forward, 3 backward, where x is read again."""
    assert floor_words(WORKLOADS[name].make("torch")) == (2, 5)


def test_beside_has_every_implementation_and_names_the_peers_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer and a single step: both figures of the reference, and a row for each library that is not there."""
    report = ran(replace(TINY, suites=("beside",), backends=("torch",)))
    assert [case["neuron"] for case, _ in report.cases("beside")] == ["LIF", "LIF single step"]
    for _, rows in report.cases("beside"):
        row = only(rows, "torch")
        assert row.status == "ok", row.detail
        assert {"forward_ms", "training_ms"} <= set(row.figures)
        assert {one.implementation for one in rows if one.status == "skipped"} == {
            peer.name for peer in PEERS if peer.in_network
        }
    assert from_json(report.to_json()).rows == report.rows


def test_rows_of_a_run() -> None:
    """Every implementation has a row in every case, with times; a neuron row has its fraction of the copy."""
    with installed(Plain):
        report = ran()
    assert report.complete
    names = ["copy", "plain", "torch"]
    assert sorted(row.implementation for row in report.of("neurons")) == names
    row = only(report.of("neurons"), "plain")
    assert row.status == "ok"
    assert row.case == {"neuron": "LIF", "dtype": "float32", "steps": 3, "neurons": 10}
    assert {"forward_ms", "training_ms", "forward_fraction", "training_fraction", "first_call_s"} <= set(row.figures)
    assert row.figures["floor_training_words"] == 5
    assert "memory_inputs" not in row.figures  # nobody counts it on a CPU
    copy = only(report.of("neurons"), "copy")
    expected = 5 / 2 * copy.figures["training_ms"] / row.figures["training_ms"]
    assert row.figures["training_fraction"] == pytest.approx(expected)
    assert copy.figures["bandwidth_gb_s"] > 0
    waiting = only(report.of("small"), "plain")
    assert {"forward_ms", "training_ms", "forward_waiting_ms", "training_waiting_ms"} <= set(waiting.figures)
    assert waiting.case["neurons"] == 4


def test_wrong_backend_is_not_timed() -> None:
    """A backend that computes something else has a row that says what, and no figure; the others are measured."""
    with installed(Mutant):
        report = ran()
    for suite in ("neurons", "small"):
        row = only(report.of(suite), "mutant")
        assert (row.status, dict(row.figures)) == ("wrong", {})
        assert "spikes differ" in row.detail
        assert only(report.of(suite), "torch").status == "ok"


@pytest.mark.parametrize(
    ("backend", "dtype", "status", "detail"),
    [(Broken, "float32", "failed", "RuntimeError: no more chips"), (Narrow, "bfloat16", "unsupported", "bfloat16")],
)
def test_implementation_that_cannot_is_a_row(backend: type, dtype: str, status: str, detail: str) -> None:
    """An implementation that raises is a row with the first line of the reason; all others keep theirs."""
    with installed(backend):
        report = ran(replace(TINY, dtypes=(dtype,)))
    row = only(report.of("neurons"), backend.name)
    assert (row.status, dict(row.figures)) == (status, {})
    assert detail in row.detail
    assert "second line" not in row.detail
    assert only(report.of("neurons"), "torch").status == "ok"


def test_every_implementation_is_listed_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Implementations that are missing, unusable, elsewhere or left out are listed with the reason, not measured."""
    monkeypatch.setattr(implementations, "version_of", lambda *names: None)
    cpu = torch.device("cpu")
    settings = Settings(suites=("neurons",), compile_steps=4)
    with installed(Plain, reason="no such chip"):
        taking_part, listed = implementations.find(settings, cpu)
    by = {one.name: one for one in listed}
    assert (by["plain"].state, by["plain"].detail) == ("unavailable", "no such chip")
    assert (by["snnTorch"].state, by["snnTorch"].detail) == ("missing", "not installed: pip install snntorch")
    assert [one.name for one in taking_part] == ["torch", "torch.compile"]
    with installed(Plain, devices=("cuda",)):
        taking_part, listed = implementations.find(
            replace(settings, backends=("plain",), peers=False, compile_steps=0), cpu
        )
    by = {one.name: one for one in listed}
    assert (by["plain"].state, by["plain"].detail) == ("elsewhere", "computes on cuda, not on cpu")
    assert {by[name].state for name in ("torch", "torch.compile", "snnTorch")} == {"left out"}
    assert taking_part == []


def test_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto is the CPU where there is no GPU; asking for one is an error with a way out."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_named("auto").type == "cpu"
    with pytest.raises(ValueError, match="--device cpu"):
        device_named("cuda")
    with pytest.raises(ValueError, match="is no torch device"):
        device_named("gpu")
    with pytest.raises(ValueError, match="no clock for meta"):
        device_named("meta")


test_refused = refusals.table(__file__, globals())
