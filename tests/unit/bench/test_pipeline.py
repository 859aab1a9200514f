"""The suite `pipeline` of the bench: a network over several GPUs, beside what a document printed."""

from __future__ import annotations

import io
from typing import List

import pytest
import torch
from rich.console import Console

import spikecore as sc
from spikecore.bench import _pipeline as pipeline
from spikecore.bench._cases import Bench
from spikecore.bench._report import Row
from spikecore.bench._run import measure, prepare
from spikecore.bench._settings import Settings
from spikecore.bench._timing import HostClock, Plan
from spikecore.cli._bench_tables import show

CPU = torch.device("cpu")
BENCH = Bench(CPU, HostClock(CPU), [], Plan(1, 0.0, 0.0))


def small(case: pipeline.Case, devices: int) -> List[Row]:
    """A case with few channels and steps, on so many stand-ins for GPUs."""
    return pipeline.measure(case, "torch", [CPU] * devices, BENCH, width=4, steps=2)


@pytest.mark.parametrize("case", [pipeline.CASES[1], pipeline.CASES[-2], pipeline.CASES[-1]], ids=lambda c: c.input)
def test_rows_stand_beside_the_printed_figure(case: pipeline.Case) -> None:
    """One for each number of GPUs; more than there are is a row that says so."""
    printed, *rows = sorted(small(case, 2), key=lambda row: row.status != "printed")
    assert printed.figures == {"images_per_minute": case.printed}
    assert printed.implementation == "printed: 4 Tesla K80"
    by_name = {row.implementation: row for row in rows}
    assert {name: row.status for name, row in by_name.items()} == {"1 GPU": "ok", "2 GPUs": "ok", "4 GPUs": "skipped"}
    assert by_name["4 GPUs"].detail == "there are 2 devices here"
    for name in ("1 GPU", "2 GPUs"):
        figures = by_name[name].figures
        assert figures["images_per_minute"] == pytest.approx(case.batch * 60e3 / figures["step_ms"])


def test_the_documents_numbers() -> None:
    """Of batches in 30 minutes, those for the constant input; images per minute of the table for the rest."""
    found = {(one.input, one.batch, one.split): round(one.printed) for one in pipeline.CASES}
    assert found[("Poisson", 64, 32)] == 580
    assert found[("Poisson", 16, None)] == 404
    assert found[("constant", 64, 32)] == 589
    assert found[("constant, streamed", 32, None)] == 763
    assert len(found) == 10


@pytest.mark.parametrize("case", [pipeline.CASES[0], pipeline.CASES[-1]], ids=lambda c: c.input)
def test_stages_are_the_examples(case: pipeline.Case) -> None:
    """Five stages, the last of them with four convolutions, whose steps of a streamed image are those of the plain
    network.
    """
    net = pipeline._network(case, [CPU] * 5, 4, 3)
    assert isinstance(net, sc.Pipeline)
    convolutions = [sum(isinstance(m, torch.nn.Conv2d) for m in stage.modules()) for stage in net]
    assert convolutions == [1, 0, 1, 0, 4]
    outputs = net(torch.rand(32 if case.split else 2, 3, 32, 32))
    assert outputs.shape == ((3, 32, 10) if case.split else (1, 2, 10))


def test_on_a_cpu_it_is_a_row_that_says_why() -> None:
    """On the screen as well."""
    report, jobs = prepare(Settings(("pipeline",), "cpu", ("torch",), peers=False, compile_steps=0, quick=True))
    measure(report, jobs)
    (row,) = report.rows
    assert (row.status, row.detail) == ("skipped", "stages over several devices are measured on GPUs")
    console = Console(file=io.StringIO(), width=160)
    show(report, console)
    assert "GPUs: nothing measured: stages over several devices are measured on GPUs" in console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
