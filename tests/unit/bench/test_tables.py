"""The suites ``steps``, ``calls``, ``norms`` and ``recurrent`` of the bench. No figure is judged."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, List

import pytest
import torch
from rich.console import Console
from torch import nn

import spikecore as sc
from bench_runs import TINY, Mutant, only, ran
from spikecore.bench import _calls as calls
from spikecore.bench import _recurrent as recurrent
from spikecore.bench import _steps as steps
from spikecore.bench._report import from_json
from spikecore.bench._run import prepare
from spikecore.bench._settings import STEP_LAYOUTS, Settings
from spikecore.bench._timing import HostClock, Plan
from spikecore.cli._bench_tables import show
from spikecore.testing._loopback import Loopback, installed

CPU = torch.device("cpu")


def shown(report: Any) -> str:
    """What the command prints of a report, once it was written and read."""
    console = Console(file=io.StringIO(), width=160)
    show(from_json(report.to_json()), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


# -- steps


def test_steps_are_those_that_people_use() -> None:
    """On a GPU, beside the powers of two; ``--steps`` says otherwise, and the suite of neurons has none of them."""
    chosen = Settings().on(torch.device("cuda:0"))
    assert chosen.all_steps == (4, 10, 16, 20, 25, 32, 50, 100, 128, 250, 500, 1000)
    assert chosen.steps == (4, 16, 32, 128)
    assert Settings(steps=(7,)).on(torch.device("cuda:0")).all_steps == (7,)
    assert Settings().on(CPU).all_steps == (4, 16)


def test_every_subject_has_its_rows() -> None:
    """A copy and an implementation in each layout, with the fraction of the copy; odd sizes are odd."""
    settings = replace(TINY, suites=("steps",), neurons=("LIF", "own-neuron"), backends=("torch",), elements=300)
    report = ran(settings)
    cases = [(case["neuron"], case["layout"]) for case, _ in report.cases("steps")]
    assert cases == list(steps.SUBJECTS)
    for case, rows in report.cases("steps"):
        assert {row.status for row in rows} == {"ok"}, rows
        assert "training_fraction" in only(rows, "torch").figures
        assert case["neurons"] == {"flat": 100, "odd": 99}.get(str(case["layout"]), steps.IMAGE)
    assert "LIF float32 batch before time" in shown(report)


def test_a_layout_may_be_asked_for() -> None:
    """By which another library, which compiles for seconds in each case, is measured in one."""
    _, jobs = prepare(replace(TINY, suites=("steps",), neurons=("LIF", "own-neuron"), layouts=("odd",)))
    assert [job.label for job in jobs] == [
        "steps: LIF float32 T=3 N=9, odd",
        "steps: own-neuron float32 T=3 N=9, odd",
    ]
    assert {one.layout for one in steps.SUBJECTS} == set(STEP_LAYOUTS)


def test_a_wrong_backend_has_no_time_at_any_number_of_steps() -> None:
    """The check on fewer neurons sees it, too."""
    with installed(Mutant):
        rows = ran(replace(TINY, suites=("steps",), elements=60_000)).of("steps")
    mutants = [row for row in rows if row.implementation == "mutant"]
    assert {row.status for row in mutants} == {"wrong"}
    assert not any(row.figures for row in mutants)


@pytest.mark.parametrize(("neurons", "checked"), [(12, 12), (8191, 8191), (40_000 * 4096, 4096), (4096 * 9 - 1, 8191)])
def test_a_case_is_checked_on_fewer_neurons_of_the_same_remainder(neurons: int, checked: int) -> None:
    """The remainder decides how wide a kernel reads."""
    case = steps.Flat("steps", "LIF", "float32", 3, neurons, "odd")
    assert steps.smaller(case).neurons == checked
    assert steps.smaller(case).made(CPU, torch.Generator()).shape == (3, checked)


# -- calls


def test_calls_are_beside_a_function_that_allocates() -> None:
    """Every neuron on every backend, with its ratio to the function; the wrong ones have none."""
    with installed(Mutant):
        report = ran(replace(TINY, suites=("calls",), size=40, backends=("torch", "mutant")))
    rows = report.of("calls")
    names = list(calls._neurons(10))
    yardsticks = [calls.YARDSTICK, "allocating function with a parameter", "ReLU"]
    ours = [f"{backend}, {name}" for backend in ("mutant", "torch") for name in names]
    assert [row.implementation for row in rows] == yardsticks + ours
    by = {row.implementation: row for row in rows}
    assert {by[f"mutant, {name}"].status for name in names} == {"wrong"}
    assert by[calls.YARDSTICK].figures["training_over_allocating"] == 1.0
    row = by["torch, PLIF"]
    expected = row.figures["training_ms"] / by[calls.YARDSTICK].figures["training_ms"]
    assert row.figures["training_over_allocating"] == pytest.approx(expected)
    assert row.figures["training_turns"] == calls.SHORTER
    assert "allocating function with a parameter" in shown(report)


def test_compiled_calls_are_beside_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer twice, unless ``--compile-steps 0`` leaves it out; the ratio is to the same layer."""
    given: List[Any] = []
    monkeypatch.setattr(torch, "compile", lambda layer, **_: given.append(layer) or layer)
    rows = ran(replace(TINY, suites=("calls",), size=40, backends=("torch",), compile_steps=4)).of("calls")
    by = {row.implementation: row for row in rows}
    assert len(given) == len(rows) / 2 == 8
    row, eager = by["torch, LIF, tau learnt, compiled"], by["torch, LIF, tau learnt"]
    assert row.figures["training_over_eager"] == pytest.approx(
        row.figures["training_ms"] / eager.figures["training_ms"]
    )
    assert "training_over_eager" not in eager.figures


def test_allocating_functions_have_gradients() -> None:
    """Of the input's size and of the parameter's, so that they are a backward pass."""
    x = torch.rand(3, 4, requires_grad=True)
    layer = calls.AllocatesWithParameter()
    layer(x).backward(torch.ones(3, 4))
    assert x.grad is not None
    assert x.grad.shape == (3, 4)
    assert layer.parameter.grad is not None
    assert layer.parameter.grad.shape == ()


# -- normalisation


def test_normalising_layers_are_beside_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both layouts, fused and apart, with the fraction of a copy's speed at eight words and the time over ReLU's."""
    monkeypatch.setattr(torch, "compile", lambda layer, **_: layer)
    monkeypatch.setattr("spikecore.bench._norms.SMALL", ((2, 3),))
    forgotten: List[bool] = []
    monkeypatch.setattr("spikecore.bench._norms.forget_compiled", lambda: forgotten.append(True))
    report = ran(replace(TINY, suites=("norms",), backends=("torch",)))
    assert [case["layout"] for case, _ in report.cases("norms")] == ["contiguous", "channels-last"]
    assert len(forgotten) == 2  # torch.compile keeps eight sizes and would refuse the ninth
    for case, rows in report.cases("norms"):
        assert (case["batch"], case["channels"], case["layers"]) == (3, 512, 2)
        by = {row.implementation: row for row in rows}
        assert by["torch, LIF apart"].status == "ok", by["torch, LIF apart"].detail
        copy, apart = by["copy"].figures["device_ms"], by["torch, LIF apart"].figures
        assert apart["fraction"] == pytest.approx(4 * copy / apart["device_ms"])
        relu = by["BatchNorm + ReLU, compiled"].figures["device_ms"]
        assert apart["time_over_relu"] == pytest.approx(apart["device_ms"] / relu)
    assert "channels-last" in shown(report)


def test_layers_are_those_of_the_network() -> None:
    """As many of each size as the networks of the bench have."""
    from spikecore.bench import _norms as norms
    from spikecore.bench.models import vgg

    seen: List[Any] = []

    class Seen(nn.ReLU):
        def forward(self, x):
            seen.append(tuple(x.shape[2:]))
            return super().forward(x)

    vgg(2, Seen)(torch.rand(1, 3, 32, 32))
    assert {image: seen.count(image) for image in seen} == dict(norms.LAYERS)


# -- recurrence


def test_recurrent_layers_are_beside_an_lstm() -> None:
    """One call and the loop, for the first variant; a training step with projections; ratios to the LSTM's."""
    report = ran(replace(TINY, suites=("recurrent",), backends=("torch",)))
    assert {row.status for row in report.rows} == {"ok"}, [row.detail for row in report.rows]
    cases = report.cases("recurrent")
    assert [case["neuron"] for case, _ in cases] == ["LIF", "ALIF", "LIF", "LIF", "network"]
    assert [row.implementation for row in cases[0][1]] == ["torch, one call", "torch, loop", "nn.LSTM"]
    assert [row.implementation for row in cases[1][1]] == ["torch, one call", "nn.LSTM"]
    for kind, (_, rows) in (("device", cases[0]), ("wall", cases[0]), ("step", cases[-1])):
        lstm, call = only(rows, "nn.LSTM").figures, only(rows, "torch, one call").figures
        assert call[f"{kind}_over_lstm"] == pytest.approx(call[f"{kind}_ms"] / lstm[f"{kind}_ms"])
    assert "graph_ms" not in cases[0][1][0].figures
    assert "nn.LSTM" in shown(report)


def test_inputs_are_scaled_until_neurons_fire_as_often_as_wanted() -> None:
    """Within a tenth, for a layer that is large enough to have such a rate."""
    _, jobs = prepare(replace(TINY, suites=("recurrent",), backends=("torch",)))
    bench = steps.Bench(CPU, HostClock(CPU), recurrent_implementations(), Plan(1))
    assert len(jobs) == 5
    for rate in (0.04, 0.3):
        case = recurrent.Fed("recurrent", "LIF", "float32", 20, 8 * 64, 8, 64, rate)
        x, _, found = recurrent._scaled(case, bench)
        layer = recurrent._made(lambda: recurrent._recurrent(sc.LIF, 64, "torch", True), case, bench)
        assert float(layer(x).detach().mean()) == pytest.approx(found, abs=0.01)
        assert found == pytest.approx(rate, rel=0.1)


def recurrent_implementations() -> List[Any]:
    """The reference alone."""
    from spikecore.bench._implementations import find

    return find(CPU, ("torch",), peers=False, compile_steps=0)[0]


def test_layer_that_a_backend_refuses_is_a_row() -> None:
    """A backend without feedback in one call says so; its loop is measured."""
    with installed(Loopback):
        rows = ran(replace(TINY, suites=("recurrent",), backends=("loopback",))).of("recurrent")
    looped = [row for row in rows if row.implementation == "loopback, loop"]
    assert {row.status for row in looped} == {"ok"}, [row.detail for row in looped]
