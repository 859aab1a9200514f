"""Small-layer rows: what a call costs when there is next to nothing to compute.

The figure is the host's wall time per call over a batch of calls with one synchronisation at its end: what a training
loop pays. The time with a synchronisation after every call, what somebody who waits for each result pays, is beside it.
"""

from __future__ import annotations

from typing import List

import torch

from spikecore_bench.cases import Bench, Case, Inputs, Job, admit, both_ways, contained, timed_row
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import interleave


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
    inputs, each = Inputs(case, bench), bench.clock.each
    admitted, rows = admit(case, inputs, bench)
    forward, both = inputs.calls(admitted)
    times = {
        **both_ways(forward, both, bench),
        "forward_waiting": interleave(forward, torch.no_grad()(each), bench.plan),
        "training_waiting": interleave(both, each, bench.plan),
    }
    return [*rows, *(timed_row(case, name, one.status, one.detail, times) for name, one in admitted.items())]
