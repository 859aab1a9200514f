"""The suites of ``spikecore bench`` and the rows of each. No figure is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List

import pytest
import torch

from bench_runs import TINY, Mutant, only, ran, shown
from plain_loop import Plain
from spikecore.testing import installed
from spikecore_bench import calls, kinds, layouts, models, networks
from spikecore_bench.network import Network
from spikecore_bench.report import Report
from spikecore_bench.run import measure, prepare
from spikecore_bench.set_up import Rectifier
from spikecore_bench.timing import Plan, Timing, interleave
from spikecore_bench.workers import Here


def test_every_subject_has_its_rows() -> None:
    """A copy and an implementation in each layout, with the fraction of the copy; odd sizes are odd."""
    settings = replace(TINY, suites=("steps",), neurons=("LIF", "own-neuron"), backends=("torch",), elements=300)
    report = ran(settings)
    cases = [(case["neuron"], case["layout"]) for case, _ in report.cases("steps")]
    assert cases == list(layouts.SUBJECTS)
    for case, rows in report.cases("steps"):
        assert {row.status for row in rows} == {"ok"}, rows
        assert "training_fraction" in only(rows, "torch").figures
        assert case["neurons"] == {"flat": 100, "odd": 99}.get(str(case["layout"]), layouts.IMAGE)
    assert "LIF float32 batch before time" in shown(report)


def test_calls_are_beside_a_function_that_allocates() -> None:
    """Every neuron on every backend, with its ratio to the function; the wrong ones have none."""
    with installed(Mutant):
        report = ran(replace(TINY, suites=("calls",), size=40, backends=("torch", "mutant")))
    rows = report.of("calls")
    names = list(calls.neurons(10))
    yardsticks = [calls.YARDSTICK, "allocating function with a parameter", "ReLU"]
    ours = [f"{backend}, {name}" for backend in ("mutant", "torch") for name in names]
    assert [row.implementation for row in rows] == yardsticks + ours
    by = {row.implementation: row for row in rows}
    assert {by[f"mutant, {name}"].status for name in names} == {"wrong"}
    assert by[calls.YARDSTICK].figures["training_over_allocating"] == 1.0
    row = by["torch, PLIF"]
    expected = row.figures["training_ms"] / by[calls.YARDSTICK].figures["training_ms"]
    assert row.figures["training_over_allocating"] == pytest.approx(expected)
    assert 3 <= row.figures["training_turns"] <= calls.SHORTER  # fewer where the machine is slow
    assert "allocating function with a parameter" in shown(report)


def test_single_steps_are_beside_the_plain_step() -> None:
    """The step by hand gives the spikes and gradients of the reference."""
    rows = ran(replace(TINY, suites=("single",), backends=("torch",), peers=False)).rows
    assert {(row.case["neuron"], row.implementation, row.status) for row in rows} == {
        (neuron, name, "ok") for neuron in ("LIF", "Recurrent") for name in ("plain PyTorch", "torch")
    }
    assert all({"forward_over_plain", "training_over_plain"} <= row.figures.keys() for row in rows)


def test_online_rules_are_beside_the_loop_by_hand() -> None:
    """Each rule has the gradient of the loop, and backpropagation that of ``d_rtrl``; each way its memory."""
    report = ran(replace(TINY, suites=("online",), backends=("torch",), peers=False))
    assert {row.status for row in report.rows} == {"ok"}, [(row.implementation, row.detail) for row in report.rows]
    (exact, by_rule), (paper, _), (_, memory) = report.cases("online")
    assert (exact["rule"], paper["rule"]) == ("d_rtrl", "ottt")
    assert [row.implementation for row in by_rule] == ["plain PyTorch", "torch", "torch, BPTT"]
    ours = only(by_rule, "torch").figures
    assert {"step_us", "step_over_plain", "chunk_us", "chunk_over_plain"} == ours.keys()
    assert "step_us" not in only(by_rule, "torch, BPTT").figures
    assert [row.implementation for row in memory] == ["torch, d_rtrl", "torch, BPTT"]
    assert only(memory, "torch, BPTT").figures["memory_mib"] > 0
    assert "in chunks" in shown(report)


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


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first network is small, and the only one."""
    network = replace(models.NETWORKS["fc"], steps=2, batch_on_cpu=2)
    monkeypatch.setattr(networks, "NETWORKS", {"fc": network})


def test_the_rows_of_a_network_are_saved_one_by_one(small_network: None) -> None:
    """A run that is stopped keeps what was measured by then."""

    def save(report: Report) -> None:
        saved.append([row.implementation for row in report.rows])
        if len(saved) == 2:
            raise KeyboardInterrupt

    saved: List[List[str]] = []
    with installed(Plain), pytest.raises(KeyboardInterrupt):
        measure(*prepare(replace(TINY, suites=("networks",))), save=save)
    assert saved == [["ReLU"], ["ReLU", "plain"]]


def test_networks_are_beside_relu(small_network: None) -> None:
    """A network row has the time of a step and its ratio to the same network with ReLU."""
    with installed(Plain):
        rows = ran(replace(TINY, suites=("networks",))).rows
    assert [row.implementation for row in rows] == ["ReLU", "plain", "torch"]
    assert {row.status for row in rows} == {"ok"}
    assert rows[0].figures["time_over_relu"] == 1.0
    assert rows[1].figures["images_per_second"] == pytest.approx(2e3 / rows[1].figures["step_ms"])
    assert rows[0].case["batch"] == 2


def test_forms_are_compared_with_relus_best_in_the_same_turns(
    small_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that halves its speed from form to form: no ratio sees it, nor do those of ReLU's forms."""
    costs = {"ReLU": 3.0, "ReLU, channels-last": 2.0, "torch": 4.0, "torch, channels-last": 1.0}
    names: Dict[Any, str] = {}
    asked: List[List[str]] = []

    def interleave(racing: Dict[str, Any], turn: Any, plan: Any, paired: bool) -> Dict[str, Timing]:
        names.update({form: name for name, form in racing.items() if name != networks.BEST})
        asked.append([names[form] for form in racing.values()])
        assert all(turn(form, 0, 2) > 0 for form in racing.values())
        return {name: Timing(costs[names[form]] * 2 ** len(asked), 1.0, 1.0, 1, 1) for name, form in racing.items()}

    monkeypatch.setattr(networks, "interleave", interleave)
    forms = ("eager", "channels-last")
    rows = ran(replace(TINY, suites=("networks",), backends=("torch",), forms=forms)).rows
    best = "ReLU, channels-last"
    assert asked == [["ReLU"], [best, "ReLU"], ["torch", best], ["torch, channels-last", best]]
    assert {row.implementation: row.figures["time_over_best_relu"] for row in rows} == {
        name: cost / 2.0 for name, cost in costs.items()
    }
    assert {row.implementation: row.figures["time_over_relu"] for row in rows} == {
        name: pytest.approx(cost / 3.0) for name, cost in costs.items()
    }


@pytest.mark.parametrize("network", [one for one in kinds.KINDS if one.by_hand], ids=lambda one: one.name)
def test_a_network_by_hand_computes_the_same(network: Network) -> None:
    """With the same weights, in the shapes that it has them in."""
    torch.manual_seed(0)
    plain, by_hand = network.make(2, Rectifier), network.by_hand(2, Rectifier)
    pairs = [*zip(plain.state_dict().values(), by_hand.state_dict().values())]
    assert len(pairs) == len(plain.state_dict()) == len(by_hand.state_dict())
    for value, its in pairs:
        its.copy_(value.view_as(its))
    x = torch.rand(2, *network.image)
    torch.testing.assert_close(by_hand(x), plain(x), rtol=1e-4, atol=1e-5)


def test_a_network_has_its_own_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked, and no other library takes part; the input of the network has time, and a form by hand a row."""
    (vectors,) = [one for one in kinds.KINDS if one.name == "kind-vectors"]
    network = replace(vectors, steps=2, batch_on_cpu=2, by_hand=vectors.make)
    monkeypatch.setattr(networks, "NETWORKS", {"fc": network})
    with installed(Mutant):
        rows = ran(replace(TINY, suites=("networks",), networks=("fc",), forms=("eager", "channels-last"))).rows
    status = {row.implementation: row.status for row in rows}
    assert status["torch by hand, channels-last"] == status["ReLU by hand, channels-last"] == status["torch"] == "ok"
    assert status["mutant"] == "wrong"


class Counted:
    """A measurement that notes the number of calls of each turn."""

    def __init__(self) -> None:
        self.calls: List[int] = []

    def turn(self, begin: int, calls: int) -> float:
        """Some calls, of two seconds each."""
        self.calls += range(begin, begin + calls)
        return 2.0 * calls


def test_a_fixed_number_of_calls_asks_what_is_no_function() -> None:
    """One call to warm up and so many in each turn, of an implementation in this process."""
    counted = Counted()
    plan = Plan(repetitions=2, fixed=3)
    timed = interleave({"here": Here(lambda: counted)}, lambda here, *turn: float(here.ask("turn", *turn)), plan)
    assert timed == {"here": Timing(2.0, 2.0, 2.0, 2, 3)}
    assert counted.calls == list(range(7))
