"""Neurons at the numbers of time steps that people use: the usual layout, odd sizes, views, parameters of each channel.

The figures are those of the neuron rows, and so is the copy beside them. A case is checked on fewer neurons than are
timed, so that a loop over 1000 steps in plain torch, which says what is right, does not take longer than what is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import List, NamedTuple, Tuple

from spikecore.bench._cases import Bench, Case, Job, contained
from spikecore.bench._layouts import SIDE, LaidOut
from spikecore.bench._neurons import elements, measure
from spikecore.bench._settings import Settings
from spikecore.bench._workloads import CHANNELS
from spikecore.dtypes import DTYPES

#: Neurons on a GPU, at least; a row of 1000 steps then has 4 GiB of bfloat16.
MANY = 2**21
#: Neurons of the check: the remainder of the size that is timed is added, as it chooses a kernel.
CHECKED = 4096
#: Neurons of one image.
IMAGE = CHANNELS * SIDE * SIDE


class Subject(NamedTuple):
    """A neuron in a layout."""

    neuron: str
    layout: str


#: What is measured at every number of steps. ``flat`` is ``[T, N]``, ``odd`` the same with one neuron less.
SUBJECTS: Tuple[Subject, ...] = (
    Subject("LIF", "flat"),
    Subject("own-neuron", "flat"),
    Subject("LIF, tau and threshold of each channel", "contiguous"),
    Subject("LIF, tau and threshold of each channel", "channels-last"),
    Subject("LIF", "batch before time"),
    Subject("LIF", "odd"),
    Subject("own-neuron", "odd"),
)


@dataclass(frozen=True)
class Flat(LaidOut):
    """A layer ``[T, N]``, called by its layout as images are."""

    workload = Case.workload
    made = Case.made


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per subject, dtype and number of steps."""
    layouts = settings.layouts or tuple(one.layout for one in SUBJECTS)
    wanted = [one for one in SUBJECTS if one.neuron.partition(",")[0] in settings.neurons and one.layout in layouts]
    cases = [
        _case(subject, dtype, steps, settings, bench)
        for subject in wanted
        for dtype in settings.dtypes
        for steps in settings.all_steps
    ]
    return [contained(case, bench, partial(measure, checked=smaller(case))) for case in cases]


def _case(subject: Subject, dtype: str, steps: int, settings: Settings, bench: Bench) -> Case:
    total = settings.elements or elements(DTYPES[dtype], steps, bench.clock, settings.quick, MANY)
    neurons = max(1, total // steps)
    if subject.layout in ("flat", "odd"):
        odd = subject.layout == "odd" and neurons % 2 == 0
        return Flat("steps", subject.neuron, dtype, steps, neurons - odd, subject.layout)
    return LaidOut("steps", subject.neuron, dtype, steps, max(1, neurons // IMAGE) * IMAGE, subject.layout)


def smaller(case: Case) -> Case:
    """The case with as many neurons as are checked: one image, or some thousand with the same remainder."""
    if not isinstance(case, Flat):
        return replace(case, neurons=IMAGE)
    return case if case.neurons <= 2 * CHECKED else replace(case, neurons=CHECKED + case.neurons % CHECKED)
