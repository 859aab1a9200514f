"""A run: what was asked for, measured part by part, into one report."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Callable, List, Mapping, Optional, Tuple

from spikecore_bench import (
    beside,
    calls,
    documents,
    field,
    layouts,
    networks,
    neurons,
    norms,
    online,
    pipeline,
    recurrent,
    single,
    small,
)
from spikecore_bench.cases import Bench, Job, bench_of
from spikecore_bench.machine import machine
from spikecore_bench.report import Report
from spikecore_bench.settings import FIELD, Settings, device_named

#: ``progress(label, done, of)``, before each part.
Progress = Callable[[str, int, int], None]
#: ``save(report)``, after each part.
Save = Callable[[Report], None]
_JOBS: Mapping[str, Callable[[Settings, Bench], List[Job]]] = {
    "neurons": neurons.jobs,
    "layouts": layouts.jobs,
    "steps": layouts.jobs_at_steps,
    "small": small.jobs,
    "single": single.jobs,
    "calls": calls.jobs,
    "beside": beside.jobs,
    "documents": documents.jobs,
    "networks": networks.jobs,
    "norms": norms.jobs,
    "recurrent": recurrent.jobs,
    "online": online.jobs,
    "pipeline": pipeline.jobs,
    **{suite: partial(field.jobs, suite) for suite in FIELD},
}


def prepare(settings: Settings) -> Tuple[Report, List[Job]]:
    """An empty report with the machine and the implementations, and what there is to measure.

    Raises ValueError for a device or a backend that is not there.
    """
    device = device_named(settings.device)
    settings = settings.on(device)
    bench = bench_of(settings, device)
    report = Report(machine(device), {**asdict(settings), "clock": bench.clock.name}, list(bench.listed))
    return report, [job for suite in settings.suites for job in _JOBS[suite](settings, bench)]


def measure(report: Report, jobs: List[Job], progress: Optional[Progress] = None, save: Optional[Save] = None) -> None:
    """Measure part by part, adding to the report."""
    for done, job in enumerate(jobs):
        if progress is not None:
            progress(job.label, done, len(jobs))
        report.rows.extend(job.run())
        report.complete = done == len(jobs) - 1
        if save is not None:
            save(report)
