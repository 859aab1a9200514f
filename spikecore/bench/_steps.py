"""Neurons at the numbers of time steps that people use: the usual layout, odd sizes, views, parameters of each channel.

The figures are those of the neuron rows, and so is the copy beside them. A case is checked on fewer neurons than are
timed, so that a loop over 1000 steps in plain torch, which says what is right, does not take longer than what is timed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import List, NamedTuple, Sequence, Tuple

import torch

from spikecore.bench._cases import Bench, Case, Inputs, Job, contained
from spikecore.bench._check import observe
from spikecore.bench._implementations import NotHere
from spikecore.bench._layouts import SIDE, LaidOut
from spikecore.bench._neurons import elements, measure
from spikecore.bench._report import Row
from spikecore.bench._settings import Settings
from spikecore.bench._workloads import CHANNELS
from spikecore.dtypes import DTYPES

#: Neurons on a GPU, at least; a row of 1000 steps then has 4 GiB of bfloat16.
MANY = 2**21
#: Neurons of the check, and of a rehearsal without other libraries: the remainder of the size that is timed is added,
#: as it chooses a kernel.
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
    return [
        _job(_case(subject, dtype, steps, settings, bench), bench)
        for subject in wanted
        for dtype in settings.dtypes
        for steps in settings.all_steps
    ]


def _case(subject: Subject, dtype: str, steps: int, settings: Settings, bench: Bench) -> Case:
    total = settings.elements or elements(DTYPES[dtype], steps, bench.clock, settings.quick, MANY)
    neurons = max(1, total // steps)
    if subject.layout in ("flat", "odd"):
        odd = subject.layout == "odd" and neurons % 2 == 0
        return Flat("steps", subject.neuron, dtype, steps, neurons - odd, subject.layout)
    return LaidOut("steps", subject.neuron, dtype, steps, max(1, neurons // IMAGE) * IMAGE, subject.layout)


def _job(case: Case, bench: Bench) -> Job:
    few, late = smaller(case), [False]
    job = contained(case, bench, partial(_measure, few, late))
    # SpikingJelly's kernels for half types are compiled and tuned for a number of neurons
    tuned = any(not one.ours for one in bench.implementations)
    rehearse = partial(_rehearse, case if tuned else few, bench)
    return replace(job, rehearse=rehearse, late=lambda: late.__setitem__(0, True))


def _measure(few: Case, late: Sequence[bool], case: Case, bench: Bench) -> List[Row]:
    """The rows of one case, without those who would compile for minutes now."""
    if not late[0]:
        return measure(case, bench, few)
    rows = measure(case, replace(bench, implementations=[one for one in bench.implementations if one.ours]), few)
    reason = "was not compiled before --patience was over"
    return [*rows, *(case.row(one.name, "skipped", reason) for one in bench.implementations if not one.ours)]


def smaller(case: Case) -> Case:
    """The case with as many neurons as are checked: one image, or some thousand with the same remainder."""
    if not isinstance(case, Flat):
        return replace(case, neurons=IMAGE)
    return case if case.neurons <= 2 * CHECKED else replace(case, neurons=CHECKED + case.neurons % CHECKED)


def _rehearse(case: Case, bench: Bench) -> None:
    """Compile what the case needs, into the caches on disk."""
    x, cotangent = Inputs(case, bench).sets[0]
    for one in bench.implementations:
        with contextlib.suppress(NotHere):
            layer = one.layer(case.workload, case.steps).to(bench.device)
            observe(layer, x, cotangent)
            with torch.no_grad():
                layer(x)
