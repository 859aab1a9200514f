"""Small-layer rows: what a call costs when there is next to nothing to compute.

The figure is the host's wall time per call over a batch of calls with one synchronisation at its end: what a training
loop pays. The time with a synchronisation after every call, what somebody who waits for each result pays, is beside it.
"""

from __future__ import annotations

from typing import List

from spikecore.bench._cases import Bench, Case, Inputs, Job, admit, contained, first_failure, quietly, timed, training
from spikecore.bench._report import Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Timing, interleave


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per neuron, dtype and number of steps."""
    return [
        contained(Case("small", neuron, dtype, steps, settings.size), bench, measure)
        for neuron in settings.small_neurons
        for dtype in settings.dtypes[:1]
        for steps in settings.small_steps
    ]


def measure(case: Case, bench: Bench) -> List[Row]:
    """The rows of one case."""
    inputs, clock, plan = Inputs(case, bench), bench.clock, bench.plan
    admitted, rows = admit(case, inputs, bench)
    forward = {name: inputs.inference(one.layer) for name, one in admitted.items()}
    both_ways = {name: training(one.layer, inputs.sets) for name, one in admitted.items()}
    found = {
        "forward": interleave(forward, quietly(clock.batch), plan),
        "training": interleave(both_ways, clock.batch, plan),
        "forward_waiting": interleave(forward, quietly(clock.each), plan),
        "training_waiting": interleave(both_ways, clock.each, plan),
    }
    for name, one in admitted.items():
        reason = first_failure(*(times[name] for times in found.values()))
        if reason:
            rows.append(case.row(name, "failed", reason))
            continue
        figures = {}
        for kind, times in found.items():
            timing = times[name]
            if isinstance(timing, Timing):
                figures.update(timed(kind, timing))
        rows.append(case.row(name, one.status, one.detail, **figures))
    return rows
