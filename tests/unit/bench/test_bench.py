"""``spikecore bench``: what it measures, and what it refuses to measure. No figure is judged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest
import torch
from torch import nn

import spikecore as sc
from bench_runs import TINY, Mutant, only, ran
from spikecore.bench import _beside as beside
from spikecore.bench import _implementations as implementations
from spikecore.bench._cases import Bench
from spikecore.bench._check import differences, observe
from spikecore.bench._implementations import find
from spikecore.bench._layouts import LAYOUTS, SIDE, LaidOut
from spikecore.bench._peers import PEERS, Peer
from spikecore.bench._report import from_json
from spikecore.bench._run import measure, prepare
from spikecore.bench._settings import Settings, device_named
from spikecore.bench._timing import CudaClock, Failure, HostClock, Plan, Timing, clock_for, interleave
from spikecore.bench._workloads import CHANNELS, IN_LAYOUTS, WORKLOADS, Hat, hat_spike
from spikecore.bench.models import EXAMPLES
from spikecore.cli._bench_tables import tables
from spikecore.inspect._explain import words
from spikecore.lang._plain import number
from spikecore.testing._custom import Gated, Probe
from spikecore.testing._loopback import EVERYTHING, Loopback, installed


class Narrow(Loopback):
    """A backend that says it has no bfloat16."""

    name = "narrow"
    capabilities = replace(EVERYTHING, bfloat16=False)


class Broken(Loopback):
    """A backend whose runs fail."""

    name = "broken"

    def compile(self, program, spec):
        raise RuntimeError("no more chips\nsecond line")


# -- floors


@pytest.mark.parametrize("name", WORKLOADS)
def test_floor_of_every_workload_is_five_words(name: str) -> None:
    """One input and one output: 2 words forward, 3 backward, where x is read again."""
    assert words(WORKLOADS[name].make("torch")) == (2, 5)


def test_floor_follows_inputs_and_outputs() -> None:
    """Each input is read forward and backward and has a gradient; each output is written and has a cotangent."""
    assert words(Gated()) == (3, 3 + 1 + 2 + 2)
    assert words(Probe()) == (3, 3 + 2 + 1 + 1)


def test_floor_reads_the_input_again_only_where_the_gradient_needs_it() -> None:
    """The gradient of a linear neuron needs no x; that of its time constant does."""
    assert words(sc.LI()) == (2, 4)
    assert words(sc.LI(learn=("tau",))) == (2, 5)


# -- beside other libraries


def test_beside_has_every_implementation_and_names_the_peers_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer and a single step: both figures of the reference, and a row for each library that is not there."""
    report = ran(replace(TINY, suites=("beside",), backends=("torch",)))
    assert [case["neuron"] for case, _ in report.cases("beside")] == ["LIF", "LIF single step"]
    for _, rows in report.cases("beside"):
        row = only(rows, "torch")
        assert row.status == "ok", row.detail
        assert {"forward_ms", "training_ms"} <= set(row.figures)
        assert {one.implementation for one in rows if one.status == "skipped"} == {peer.name for peer in PEERS}
    assert from_json(report.to_json()).rows == report.rows


def test_beside_has_the_networks_of_the_examples() -> None:
    """Inference and training of each, tiny."""
    implementation = find(torch.device("cpu"), ("torch",), peers=False, compile_steps=0)[0][0]
    bench = Bench(torch.device("cpu"), HostClock(torch.device("cpu")), [implementation], Plan(1))
    for network in EXAMPLES:
        small = replace(network, steps=2, batch_on_cpu=2)
        (row,) = [row for row in beside.measure({"n": 1}, partial(beside._network, small), bench) if row.status == "ok"]
        assert {"forward_ms", "training_ms"} <= set(row.figures)


# -- check


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_check_passes_what_is_equal(dtype: torch.dtype) -> None:
    """A backend that computes what the reference computes has no differences, learnt parameters included."""
    x, cotangent = (torch.randn(5, 33, dtype=dtype) for _ in range(2))
    x.requires_grad_()
    with installed(Loopback) as name:
        seen = [observe(sc.PLIF(backend=one), x, cotangent) for one in (name, "torch")]
    assert differences(*seen) is None


def test_check_counts_what_differs() -> None:
    """Spikes are counted; gradients of neurons whose spikes agree are compared, and a NaN is a difference."""
    x, cotangent = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8)
    right = observe(sc.PLIF(backend="torch"), x, cotangent)
    spikes = right.spikes.clone()
    spikes[2, 3] = 1 - spikes[2, 3]
    elsewhere = right.gradient.clone()
    elsewhere[:, 3] = 100.0
    assert (
        differences(right._replace(spikes=spikes, gradient=elsewhere), right) == "1 of 40 spikes differ (0.025 of all)"
    )
    off = right.gradient.clone()
    off[1, 1], off[1, 2] = float("nan"), off[1, 2] + 0.5
    assert "2 of 40 input gradients differ, by up to nan" in str(differences(right._replace(gradient=off), right))
    learnt = (right.learnt[0] + 3.0,)
    assert "a learnt parameter is off by 3" in str(differences(right._replace(learnt=learnt), right))
    assert "0 learnt parameters instead of 1" in str(differences(right._replace(learnt=()), right))
    assert "spikes in bfloat16 for" in str(differences(right._replace(spikes=spikes.bfloat16()), right))
    assert "spikes of shape [4, 8]" in str(differences(right._replace(spikes=spikes[:4]), right))


def test_own_surrogate_is_the_same_in_both_forms() -> None:
    """What other libraries are given for the user's surrogate has its derivative."""
    u = torch.linspace(-3, 3, 41).requires_grad_()
    (theirs,) = torch.autograd.grad(hat_spike(u).sum(), u)
    ours = Hat().derivative(u.detach())
    torch.testing.assert_close(theirs, ours)
    assert torch.equal(hat_spike(u), (u >= 0).float())
    assert float(number(0.4, u)) == pytest.approx(float(ours.max()))


# -- rows


def test_rows_of_a_run() -> None:
    """Every implementation has a row in every case, with times; a neuron row has its fraction of the copy."""
    with installed(Loopback):
        report = ran()
    assert report.complete
    names = ["copy", "loopback", "torch"]
    assert sorted(row.implementation for row in report.of("neurons")) == names
    row = only(report.of("neurons"), "loopback")
    assert row.status == "ok"
    assert row.case == {"neuron": "LIF", "dtype": "float32", "steps": 3, "neurons": 10}
    assert {"forward_ms", "training_ms", "forward_fraction", "training_fraction", "first_call_s"} <= set(row.figures)
    assert row.figures["floor_training_words"] == 5
    assert "memory_inputs" not in row.figures  # nobody counts it on a CPU
    copy = only(report.of("neurons"), "copy")
    expected = 5 / 2 * copy.figures["training_ms"] / row.figures["training_ms"]
    assert row.figures["training_fraction"] == pytest.approx(expected)
    assert copy.figures["bandwidth_gb_s"] > 0
    waiting = only(report.of("small"), "loopback")
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


def test_peer_that_differs_is_timed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library that computes something else has figures, and the difference in words with numbers."""
    peer = Peer("odd", "torch", "torch", "", {"LIF": lambda: sc.LIF(3.0, backend="torch")}, nn.ReLU)
    monkeypatch.setattr(implementations, "PEERS", (peer,))
    row = only(ran(replace(TINY, peers=True)).of("neurons"), "odd")
    assert row.status == "differs"
    assert "differ" in row.detail
    assert row.figures["training_ms"] > 0


def test_peer_without_the_neuron_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neuron that a library does not have is skipped, with the reason."""
    monkeypatch.setattr(implementations, "PEERS", (Peer("poor", "torch", "torch", "", {}, nn.ReLU),))
    row = only(ran(replace(TINY, peers=True)).of("neurons"), "poor")
    assert (row.status, row.detail) == ("skipped", "has no such neuron")


@pytest.mark.parametrize(
    ("backend", "dtype", "status", "detail"),
    [(Broken, "float32", "failed", "RuntimeError: no more chips"), (Narrow, "bfloat16", "unsupported", "bfloat16")],
)
def test_implementation_that_cannot_is_a_row(backend: type, dtype: str, status: str, detail: str) -> None:
    """What raises is a row with the first line of the reason, and costs nobody else a row."""
    with installed(backend):
        report = ran(replace(TINY, dtypes=(dtype,)))
    row = only(report.of("neurons"), backend.name)
    assert (row.status, dict(row.figures)) == (status, {})
    assert detail in row.detail
    assert "second line" not in row.detail
    assert only(report.of("neurons"), "torch").status == "ok"


def test_failure_outside_of_implementations_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case whose reference fails says so, and the next case is measured."""
    monkeypatch.setitem(WORKLOADS, "IF", replace(WORKLOADS["IF"], make=lambda name: sc.IF(threshold=1 / 0)))
    report = ran(replace(TINY, suites=("neurons",), neurons=("IF", "LIF")))
    failed, *rest = report.rows
    assert (failed.case["neuron"], failed.status) == ("IF", "failed")
    assert "nothing was measured here: ZeroDivisionError" in failed.detail
    assert {row.status for row in rest} == {"ok"}


def test_interrupted_run_keeps_what_there_is() -> None:
    """Rows are there after each part, and the report says that it is not complete."""
    report, jobs = prepare(TINY)
    saved: List[int] = []

    def stop(label: str, done: int, of: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(report, jobs, stop, lambda found: saved.append(len(found.rows)))
    assert saved == [len(report.rows)]
    assert report.of("neurons")
    assert not report.complete


# -- implementations


def test_every_implementation_is_listed_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, unusable, elsewhere or left out is on the list with the reason, and takes no part."""
    monkeypatch.setattr(implementations, "version_of", lambda *names: None)
    cpu = torch.device("cpu")
    with installed(Loopback, reason="no such chip"):
        taking_part, listed = implementations.find(cpu)
    by = {one.name: one for one in listed}
    assert (by["loopback"].state, by["loopback"].detail) == ("unavailable", "no such chip")
    assert (by["snnTorch"].state, by["snnTorch"].detail) == ("missing", "not installed: pip install snntorch")
    assert [one.name for one in taking_part] == ["torch", "torch.compile"]
    with installed(Loopback, devices=("cuda",)):
        taking_part, listed = implementations.find(cpu, ["loopback"], peers=False, compile_steps=0)
    by = {one.name: one for one in listed}
    assert (by["loopback"].state, by["loopback"].detail) == ("elsewhere", "computes on cuda, not on cpu")
    assert {by[name].state for name in ("torch", "torch.compile", "snnTorch")} == {"left out"}
    assert taking_part == []


def test_peer_whose_import_fails_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is installed and broken is on the list with its error."""
    monkeypatch.setattr(implementations, "PEERS", (Peer("bad", "torch", "no_such_module", "", {}, nn.ReLU),))
    taking_part, listed = implementations.find(torch.device("cpu"), compile_steps=0)
    assert listed[-1].state == "failed"
    assert "no_such_module" in listed[-1].detail
    assert "bad" not in [one.name for one in taking_part]


def test_compile_stops_at_its_steps() -> None:
    """torch.compile takes no part above --compile-steps, and says so."""
    (compiled,) = [one for one in implementations.find(torch.device("cpu"), peers=False)[0] if not one.ours]
    with pytest.raises(implementations.NotHere, match="--compile-steps 4"):
        compiled.layer(WORKLOADS["LIF"], 5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"suites": ("neuron",)}, "suite 'neuron' is not known; there are: neurons, layouts, steps, small, calls"),
        ({"neurons": ("Lif",)}, "there are: LIF, Leaky"),
        ({"layouts": ("NHWC",)}, "there are: flat, odd, contiguous, channels-last, batch before time"),
        ({"workers": -1}, "workers=-1 must be 0 or more"),
        ({"networks": ("vgg",)}, "there are: fc, fc-tf32, cifar10"),
        ({"dtypes": ("int8",)}, "there are: float16, bfloat16, float32, float64"),
        ({"steps": (0,)}, "steps=0 must be 1 or more"),
        ({"elements": 0}, "elements=0 must be 1 or more"),
        ({"turn": float("nan")}, "turn=nan must be a number of seconds above 0"),
        ({"turn": 0.0}, "turn=0.0 must be a number of seconds above 0"),
        ({"patience": -1.0}, "patience=-1.0 must be a number of seconds, 0 or more"),
        ({"patience": float("nan")}, "patience=nan must be a number of seconds, 0 or more"),
        ({"compile_steps": -1}, "compile_steps=-1 must be 0 or more"),
        ({"peers": False, "peer_names": ("snnTorch",)}, "peer 'snnTorch' cannot be measured with peers=False"),
    ],
)
def test_wrong_settings_are_errors_that_name_the_right_ones(wrong: Dict[str, Any], says: str) -> None:
    """An unknown name or a size of nothing is an error before anything runs."""
    with pytest.raises(ValueError, match=says):
        Settings(**wrong)


def test_a_quick_run_has_few_cases_and_compiles_nothing() -> None:
    """What compiles for seconds, or asks the same at other sizes, is left to the full run, unless it is asked for."""
    few = Settings(("neurons", "layouts", "steps", "small"), "cpu", ("torch",), peers=False, quick=True)
    report, jobs = prepare(few)
    assert [job.label.partition(":")[0] for job in jobs] == ["neurons", *["layouts"] * 3, *["steps"] * 5, "small"]
    assert report.settings["compile_steps"] == 0
    full, all_jobs = prepare(replace(few, quick=False))
    assert len(all_jobs) > 4 * len(jobs)
    assert full.settings["compile_steps"] == 4
    asked = replace(few, steps=(4, 16), compile_steps=4)
    report, more = prepare(asked)
    assert len(more) == len(jobs) + 1 + 5 + 1
    assert report.settings["compile_steps"] == 4


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


# -- timing


def test_implementations_take_turns() -> None:
    """After its warm-up a call is made once per round, in turn; the figure is the median of the turns."""
    order: List[str] = []
    seconds = iter([9.0, 1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0])

    def turn(call: Any, begin: int, calls: int) -> float:
        call(begin)
        return next(seconds)

    runs = {name: (lambda i, name=name: order.append(f"{name}{i}")) for name in "ab"}
    found = interleave(runs, turn, Plan(3, patience=100.0))
    assert order == "a0 a1 a2 a3 b0 b1 b2 b3 a4 b4 a5 b5 a6 b6".split()
    assert found == {"a": Timing(3.0, 1.0, 5.0, 3, 1), "b": Timing(4.0, 2.0, 6.0, 3, 1)}


@pytest.mark.parametrize("last", [0, 5])
def test_call_that_raises_is_out_of_the_race(last: int) -> None:
    """A failure in the warm-up or later is that implementation's result, in words; the others go on."""

    def bad(i: int) -> None:
        if i == last:
            raise MemoryError("out of memory\nand more")

    found = interleave({"bad": bad, "good": lambda i: None}, HostClock(torch.device("cpu")).batch, Plan(3))
    assert found["bad"] == Failure("MemoryError: out of memory")
    assert isinstance(found["good"], Timing)
    assert found["good"].turns == 3


def test_plan_gives_slow_calls_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls fill a turn together; a call beyond all patience still has three turns."""
    monkeypatch.undo()
    plan = Plan(repetitions=9, at_least=0.02, patience=1.0)
    assert [plan.calls(seconds) for seconds in (1.0, 0.003, 0.0)] == [1, 7, 10_000]
    assert [plan.turns(seconds) for seconds in (0.02, 0.2, 7.0)] == [9, 5, 3]
    assert Plan(repetitions=2).turns(7.0) == 2


def test_cuda_clock_asks_events_and_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device time is between two events around the calls; memory is the allocator's peak above what was there."""
    said: List[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("record")

        def elapsed_time(self, end: object) -> float:
            return 1500.0

    device = torch.device("cuda", 0)
    held = {"allocated": 100, "peak": 0}
    facts = {
        "Event": Event,
        "synchronize": lambda device: said.append("wait"),
        "memory_allocated": lambda device: held["allocated"],
        "memory_reserved": lambda device: 150,
        "max_memory_allocated": lambda device: held["peak"],
        "reset_peak_memory_stats": lambda device: held.update(peak=held["allocated"]),
        "mem_get_info": lambda device: (1000, 2000),
        "get_device_properties": lambda device: SimpleNamespace(L2_cache_size=50),
    }
    for name, value in facts.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(HostClock, "cache_bytes", None)
    clock = clock_for(device)
    assert isinstance(clock, CudaClock)
    assert clock.on_device(lambda i: said.append(f"call {i}"), 2, 2) == 1.5
    assert said == ["wait", "record", "call 2", "call 3", "record", "wait"]
    assert clock.peak(lambda: held.update(peak=170)) == 70
    assert (clock.allocated(), clock.cache_bytes(), clock.free_bytes()) == (100, 50, 1050)
    said.clear()

    class Profile:
        def __init__(self, activities: object) -> None:
            said.append("profile")

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None:
            said.append("end")

        def events(self) -> List[SimpleNamespace]:
            times = (("a", 1e6), ("b", 2e6), ("a", 3e6), ("launch", 0.0))
            return [
                SimpleNamespace(name=name, self_device_time_total=time, self_cuda_time_total=time)
                for name, time in times
            ]

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    assert clock.profile(lambda i: said.append(f"call {i}"), 3, 2) == {"a": (4.0, 2), "b": (2.0, 1)}
    assert said == ["wait", "profile", "call 3", "call 4", "wait", "end"]
    assert clock.kernels(lambda i: None, 0, 1) == 6.0
    said.clear()
    clock.batch(lambda i: said.append(f"call {i}"), 0, 2)
    assert said == ["wait", "call 0", "call 1", "wait"]
    said.clear()
    clock.each(lambda i: said.append(f"call {i}"), 0, 2)
    assert said == ["wait", "call 0", "wait", "call 1", "wait"]


# -- layouts and step counts


def test_layouts_are_those_that_they_are_called() -> None:
    """Images ``[T, B, C, H, W]`` in each layout, inputs and cotangents alike, for neurons with learnt parameters."""
    settings = replace(TINY, quick=False, suites=("layouts",), elements=2 * 3 * CHANNELS * SIDE**2, steps=(2,))
    rows = ran(settings).rows
    cases = {(str(row.case["neuron"]), str(row.case["layout"])) for row in rows}
    names = [name for name in IN_LAYOUTS if name.partition(",")[0] in TINY.neurons]
    assert names
    assert cases == {(name, layout) for name in names for layout in LAYOUTS}
    assert {row.status for row in rows if row.implementation in ("torch", "copy")} == {"ok"}
    assert all("training_fraction" in row.figures for row in rows if row.implementation == "torch")
    for layout, order in LAYOUTS.items():
        case = LaidOut("layouts", "LIF", "float32", 2, 3 * CHANNELS * SIDE**2, layout)
        x = case.made(torch.device("cpu"), torch.Generator().manual_seed(0))
        assert x.shape == (2, 3, CHANNELS, SIDE, SIDE)
        assert sorted(range(5), key=lambda d: -x.stride(d)) == list(order)
    assert tables(ran(replace(settings, neurons=("LIF",), backends=("torch",))), "layouts", 80)[0].row_count > 0
