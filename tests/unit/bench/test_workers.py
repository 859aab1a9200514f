"""Processes of the bench that compile before anything is timed, or hold what is timed."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, List

import pytest
import torch
from torch import nn

import spikecore as sc
from bench_runs import TINY, Counting, only, ran
from spikecore.bench import _implementations as implementations
from spikecore.bench import _run as run
from spikecore.bench import _workers as workers
from spikecore.bench._networks import Member
from spikecore.bench._peers import Peer
from spikecore.bench._timing import Failure, HostClock, Plan, Timing, interleave
from spikecore.bench._workers import Worker, rehearse, turn


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of one call, and no emulator takes part, in other processes either."""
    monkeypatch.setenv("SPIKECORE_BLOCK", "ipu")
    monkeypatch.setattr(Plan, "calls", lambda self, seconds: 1)


def test_workers_take_turns_and_say_what_fails() -> None:
    """What cannot be set up is a failure in words, and so is a turn that raises and a process that ends."""
    started = {str(seconds): Worker(TINY, Counting, seconds) for seconds in (2.0, -1.0, 101.0)}
    try:
        assert started["2.0"].ready() == started["2.0"].ready() == ("ready", 3.0)
        assert started["-1.0"].ready() == ("failed", Failure("ValueError: no time"))
        assert started["101.0"].ready() == ("failed", Failure("RuntimeError: its process ended with 3"))
        member = Member(started["2.0"], "row")
        assert turn(member, 0, 4) == 12.0
        assert member(5) == 3.0
        with pytest.raises(RuntimeError, match="RuntimeError: too late"):
            member.turn(11, 1)
        found = interleave({"one": member}, turn, Plan(2))
        assert found == {"one": Timing(3.0, 3.0, 3.0, 2, 1)}
    finally:
        for one in started.values():
            one.end()
    assert not any(one._process.is_alive() for one in started.values())


def test_processes_compile_with_one_thread_each() -> None:
    """As they are as many as there are processors; afterwards all is as it was."""
    before = dict(os.environ)
    with workers._environment():
        assert {name: os.environ[name] for name in workers.ENVIRONMENT} == workers.ENVIRONMENT
    assert dict(os.environ) == before


def test_each_job_is_rehearsed_once() -> None:
    """By the process that comes first; one that fails there costs the others nothing."""
    done: List[str] = []

    def bad() -> None:
        done.append("bad")
        raise MemoryError

    jobs = [SimpleNamespace(rehearse=one) for one in (None, bad, lambda: done.append("good"), lambda: done.append("b"))]
    taken, over = SimpleNamespace(value=0, get_lock=torch.no_grad), [0, 0, 0, 0]
    for _ in range(2):
        workers._rehearse(TINY, [1, 2, 3], taken, over, lambda settings: (None, jobs))
    assert done == ["bad", "good", "b"]
    assert over == [0, 1, 1, 1]
    assert rehearse(replace(TINY, workers=2), jobs[:1], run.prepare) == ""
    assert rehearse(TINY, jobs, run.prepare) == ""


def test_parts_are_compiled_before_they_are_measured() -> None:
    """In other processes, which have ended then."""
    settings = replace(TINY, suites=("steps",), backends=("torch",), workers=2)
    report, jobs = run.prepare(settings)
    labels: List[str] = []
    run.measure(report, jobs, lambda label, done, of: labels.append(label))
    assert labels[0] == "compiling in 2 processes"
    assert labels[1].startswith(f"{len(jobs)} parts compiled in ")
    assert "but for" not in labels[1]
    assert {row.status for row in report.rows} == {"ok"}


def test_what_is_not_compiled_in_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends are measured all the same; for another library there is a row that says why not."""
    peer = Peer("slow", "torch", "torch", "", {"LIF": lambda: sc.LIF(2.0, backend="torch")}, nn.ReLU)
    monkeypatch.setattr(implementations, "PEERS", (peer,))
    settings = replace(TINY, suites=("steps",), backends=("torch",), peers=True, workers=1, patience=0.0)
    report, jobs = run.prepare(settings)
    run.measure(report, jobs[:1])
    slow, ours = only(report.rows, "slow"), only(report.rows, "torch")
    assert (slow.status, slow.detail) == ("skipped", "was not compiled before --patience was over")
    assert ours.status == "ok"


def test_run_rehearses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first part is measured, in as many processes as were asked for."""
    seen: List[Any] = []
    monkeypatch.setattr(
        run, "rehearse", lambda settings, jobs, prepare: seen.append((settings.workers, len(jobs))) or ""
    )
    report, jobs = run.prepare(replace(TINY, suites=("steps",), backends=("torch",), workers=3))
    labels: List[str] = []
    run.measure(report, jobs[:1], lambda label, done, of: labels.append(label))
    assert seen == [(3, 1)]
    assert labels == ["compiling in 3 processes", jobs[0].label]


def test_forms_of_networks_have_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are those of a run in one process, each measured where it was set up."""
    monkeypatch.setattr(HostClock, "batch", None)  # nothing is timed here
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report = ran(replace(TINY, suites=("networks",), networks=("fc",), backends=("torch",), workers=1))
    assert [row.implementation for row in report.rows] == ["ReLU", "torch"]
    assert {row.status for row in report.rows} == {"ok"}, [row.detail for row in report.rows]
    relu, ours = (row.figures for row in report.rows)
    assert relu["time_over_best_relu"] == 1.0
    assert ours["time_over_best_relu"] == pytest.approx(ours["step_ms"] / relu["step_ms"])
