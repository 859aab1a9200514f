"""The benchmarks of the field: their rows, their bounds, and who takes part. No time is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import refusals
import spikecore as sc
from bench_runs import TINY, Mutant, only, ran, shown
from spikecore.testing import installed
from spikecore_bench import field
from spikecore_bench import field_cases as cases
from spikecore_bench.machine import Peak
from spikecore_bench.settings import Settings


def test_a_linear_layer_is_beside_its_products() -> None:
    """Every time has its bound; who computes something else has none."""
    with installed(Mutant):
        report = ran(replace(TINY, suites=("open-neuromorphic",), backends=("torch", "mutant"), steps=(4,)))
    rows = report.rows
    assert [(row.implementation, row.status) for row in rows] == [
        ("products alone", "ok"),
        ("mutant", "wrong"),
        ("torch", "ok"),
    ]
    assert not rows[1].figures
    assert "spikes differ" in rows[1].detail
    case, figures = rows[2].case, only(rows, "torch").figures
    assert (case["steps"], case["batch"], case["neurons"]) == (4, 2, 32)
    for kind, products, words in (("forward", 1, 2 * 8 * 32 + 32 * 32), ("training", 2, 3 * 8 * 32 + 2 * 32 * 32)):
        operations = products * 2 * 8 * 32 * 32
        least = max(operations / figures["products_tflops"] / 1e12, 4 * words / figures["bandwidth_gb_s"] / 1e9)
        assert figures[f"{kind}_bound_ms"] == pytest.approx(1e3 * least)
        assert figures[f"{kind}_over_bound"] == pytest.approx(figures[f"{kind}_ms"] / figures[f"{kind}_bound_ms"])
    assert "a linear layer and LIF" in shown(report)


def test_a_time_below_the_bound_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and a copy that take a million times as long make every layer faster than the bound."""
    fast = field.rate
    monkeypatch.setattr(field, "rate", lambda *arguments: 1e-6 * fast(*arguments))
    rows = ran(replace(TINY, suites=("open-neuromorphic",), backends=("torch",))).rows
    assert "training: faster than the arithmetic's bound" in only(rows, "torch").detail


def test_a_known_card_has_the_bound_of_its_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor has no data sheet here."""
    settings = replace(TINY, suites=("shd",), backends=("torch",), steps=(4,))
    assert "step_peak_ms" not in ran(settings).rows[1].figures
    monkeypatch.setitem(field.PEAKS, "", Peak(1e-3, 1.0, 1.0))
    operations = (
        field.classifier_cases(settings.on(torch.device("cpu")), torch.device("cpu"))[0].bounds["step"].operations
    )
    assert ran(settings).rows[1].figures["step_peak_ms"] == pytest.approx(operations / 1e9 * 1e3)


def test_a_library_has_a_budget_in_a_process_of_its_own() -> None:
    """The same row comes from there; what takes longer has a row that says so, and the next case goes on."""
    settings = replace(
        TINY, suites=("shd",), backends=("torch",), cases=("H=8,B=2", "H=4,B=3"), steps=(4,), budget=300.0
    )
    rows = ran(settings).rows
    assert [(row.implementation, row.status) for row in rows] == [("products alone", "ok")] * 2 + [("torch", "ok")] * 2
    assert [(row.case["network"], row.case["batch"]) for row in rows[2:]] == [("128-8-8-20", 2), ("128-4-4-20", 3)]
    rows = ran(replace(settings, cases=("H=8,B=2",), budget=1e-6)).rows
    assert (rows[1].status, rows[1].figures) == ("failed", {})
    assert rows[1].detail == "TimeoutError: not done in 1e-06 s; --budget gives it more"


def test_a_step_on_shd_has_the_time_of_an_epoch() -> None:
    """8,156 samples in batches, the last one smaller."""
    report = ran(replace(TINY, suites=("shd",), backends=("torch",), steps=(4,)))
    assert [row.implementation for row in report.rows] == ["products alone", "torch"]
    row = report.rows[1]
    assert (row.status, row.case["network"]) == ("ok", "128-8-8-20")
    assert row.figures["epoch_s"] == pytest.approx(4078 * row.figures["step_ms"] / 1e3)
    assert "128-8-8-20" in shown(report)


def test_the_operations_of_a_step_are_those_that_torch_counts() -> None:
    """Forward, and the gradients of the weights and of all inputs but the first."""
    counter = pytest.importorskip("torch.utils.flop_counter", reason="torch counts operations from 2.1 on")
    weights = [torch.randn(16, cases.CHANNELS), torch.randn(16, 16), torch.randn(cases.CLASSES, 16)]
    net = cases.classifier(weights, lambda width: sc.LIF(2.0, backend="torch"))
    with counter.FlopCounterMode(display=False) as counted:
        net(torch.rand(5, 3, cases.CHANNELS)).sum().backward()
    assert counted.get_total_flops() == cases.ClassifierCase(5, 3, 16).bounds["step"].operations


def test_who_is_not_there_is_listed_with_the_reason() -> None:
    """Libraries that only these suites know, too."""
    report = ran(replace(TINY, suites=("shd",), backends=("torch",)))
    listed = {one.name: (one.state, one.detail) for one in report.implementations}
    for name in ("snnTorch StateLeaky", "sinabs", "Rockpool", "Spyx"):
        assert listed[name] == ("left out", "--no-peers")


test_refused = refusals.table(__file__, globals(), Settings)
