"""Neuron rows: a layer that fills the device, beside a copy of its input. Time, fraction of the roofline, memory.

The roofline is the copy. A fraction of 1 is a call that takes as long as copying the words that no implementation can
do without (:func:`spikecore.inspect.floor_words`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Dict, List, Mapping, Optional, Union

import torch

from spikecore.dtypes import DTYPES
from spikecore.inspect import floor_words
from spikecore_bench.cases import Bench, Case, Inputs, Job, Times, admit, contained, timed_row
from spikecore_bench.check import REFERENCE
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call, Failure, HostClock, Timing, failure, interleave

COPY = "copy"
#: Bytes of the input where no size is asked for: 134 million float32 on a GPU, 17 million on a CPU.
FILL_GPU, FILL_CPU = 2**29, 2**26
#: Neurons on a GPU, at least: with fewer the last of its blocks run alone for a part of the time.
MANY = 2**22
#: A quick run takes this part of them.
QUICK = 8
#: Memory that a case takes at most, in units of its input: that of the reference in half precision.
LARGEST = 20
#: Neurons of a row that has the size of the device are a multiple of this.
ALIGNED = 64


def elements(dtype: torch.dtype, steps: int, clock: HostClock, quick: bool, many: int = MANY) -> int:
    """Number of elements that fill the device without filling its memory: a multiple of the steps."""
    fill = FILL_CPU
    if clock.device.type == "cuda":
        fill = max(FILL_GPU, many * steps * torch.finfo(dtype).bits // 8)
    fill //= QUICK if quick else 1
    while fill > 2**20 and LARGEST * fill > clock.free_bytes():
        fill //= 2
    # Layers have even sizes. One of an odd size, which is what is left of a power of two divided by 25 steps, is read
    # number by number: 0.73 of a copy's speed where LIF reaches 0.94.
    return steps * max(1, fill * 8 // torch.finfo(dtype).bits // steps // ALIGNED * ALIGNED)


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per neuron, dtype and number of steps."""
    found = []
    for neuron in settings.neurons:
        for dtype in settings.dtypes:
            for steps in settings.steps:
                total = settings.elements or elements(DTYPES[dtype], steps, bench.clock, settings.quick)
                case = Case("neurons", neuron, dtype, steps, max(1, total // steps))
                found.append(contained(case, bench, measure))
    return found


def measure(case: Case, bench: Bench, checked: Optional[Case] = None) -> List[Row]:
    """The rows of one case: the copy, and every implementation, once it was checked on the case or on a smaller one."""
    inputs, clock = Inputs(case, bench), bench.clock
    admitted, rows = admit(case, inputs if checked is None else Inputs(checked, bench), bench)
    inference, calls = inputs.calls(admitted)
    turn, copy = clock.on_device, {COPY: inputs.copy()}
    times = {
        "forward": interleave({**copy, **inference}, torch.no_grad()(turn), bench.plan),
        "training": interleave({**copy, **calls}, turn, bench.plan),
    }
    bytes_ = inputs.sets[0][0].numel() * inputs.sets[0][0].element_size()
    floor = floor_words(case.workload.make(REFERENCE))
    least = {"forward": floor.forward, "training": floor.training}
    for name, one in admitted.items():
        row = timed_row(case, name, one.status, one.detail, times)
        if row.figures:
            memory = _memory(clock, calls[name])
            if isinstance(memory, Failure):
                rows.append(case.row(name, "failed", memory.reason))
                continue
            figures = {f"floor_{kind}_words": float(count) for kind, count in least.items()}
            figures.update(row.figures, **_fractions(name, times, least), first_call_s=one.first)
            if memory:
                figures["memory_inputs"] = memory / bytes_
            row = replace(row, figures=figures)
        rows.append(row)
    return [_copy(timed_row(case, COPY, "ok", "", times), bytes_), *rows]


def _memory(clock: HostClock, call: Call) -> Union[int, Failure, None]:
    try:
        return clock.peak(partial(call, 0))
    except Exception as error:
        return failure(error)


def _fractions(name: str, times: Times, least: Mapping[str, int]) -> Dict[str, float]:
    """Of the copy's speed, which moves two words."""
    figures: Dict[str, float] = {}
    for kind, found in times.items():
        timing, copy = found[name], found[COPY]
        if isinstance(timing, Timing) and isinstance(copy, Timing):
            figures[f"{kind}_fraction"] = least[kind] / 2 * copy.seconds / timing.seconds
    return figures


def _copy(row: Row, bytes_: int) -> Row:
    """The row of the copy with its bandwidth."""
    if not row.figures:
        return row
    bandwidth = 2e-6 * bytes_ / min(row.figures["forward_ms"], row.figures["training_ms"])
    figures = {**row.figures, "bandwidth_gb_s": bandwidth, "forward_fraction": 1.0, "input_mib": bytes_ / 2**20}
    detail = f"{bandwidth:,.0f} GB/s" if bandwidth >= 10 else f"{bandwidth:.2f} GB/s"
    return replace(row, detail=detail, figures=figures)
