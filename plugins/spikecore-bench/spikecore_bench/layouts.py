"""Neurons on images in several layouts, with parameters that are learnt, and at the numbers of steps that people use.

The figures are those of the neuron rows, and so is the copy beside them; the floor counts inputs and outputs alone, and
no parameter. A case of the suite ``steps`` is checked on fewer neurons than are timed, so that a loop over 1000 steps
in plain torch, which says what is right, does not take longer than what is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import List, Mapping, Tuple

import torch
from torch import Tensor

from spikecore.dtypes import DTYPES
from spikecore_bench.cases import Bench, Case, Job, contained
from spikecore_bench.neurons import elements, measure
from spikecore_bench.report import Fact
from spikecore_bench.settings import Settings
from spikecore_bench.workloads import CHANNELS, IN_LAYOUTS

#: Height and width of the images, and the neurons of one.
SIDE = 16
IMAGE = CHANNELS * SIDE * SIDE
#: Layout -> the order of the dimensions of ``[T, B, C, H, W]`` in memory.
LAYOUTS: Mapping[str, Tuple[int, ...]] = {
    "contiguous": (0, 1, 2, 3, 4),
    "channels-last": (0, 1, 3, 4, 2),
    "batch before time": (1, 0, 2, 3, 4),
}
#: Neuron and layout of what is measured at every number of steps. ``flat`` is ``[T, N]``, ``odd`` the same with one
#: neuron less.
SUBJECTS: Tuple[Tuple[str, str], ...] = (
    ("LIF", "flat"),
    ("own-neuron", "flat"),
    ("LIF, tau and threshold of each channel", "contiguous"),
    ("LIF, tau and threshold of each channel", "channels-last"),
    ("LIF", "batch before time"),
    ("LIF", "odd"),
    ("own-neuron", "odd"),
)
#: Neurons of those on a GPU, at least; a row of 1000 steps then has 4 GiB of bfloat16.
MANY = 2**21
#: Neurons of their check: the remainder of the size that is timed is added, as it chooses a kernel.
CHECKED = 4096


@dataclass(frozen=True)
class LaidOut(Case):
    """A case whose input is images ``[T, B, C, H, W]`` in a layout, or ``[T, N]``."""

    layout: str = "contiguous"

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        return {**super().facts, "layout": self.layout}

    @property
    def label(self) -> str:
        """For people."""
        return f"{super().label}, {self.layout}"

    def made(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random numbers, as an input or a cotangent of this case."""
        if self.layout not in LAYOUTS:
            return super().made(device, generator)
        order = LAYOUTS[self.layout]
        shape = (self.steps, self.neurons // IMAGE, CHANNELS, SIDE, SIDE)
        there = [shape[d] for d in order]
        values = torch.randn(there, device=device, dtype=DTYPES[self.dtype], generator=generator)
        return values.permute([order.index(d) for d in range(len(order))])

    @property
    def smaller(self) -> Case:
        """The case with as many neurons as are checked: one image, or some thousand with the same remainder."""
        if self.layout in LAYOUTS:
            return replace(self, neurons=IMAGE)
        return self if self.neurons <= 2 * CHECKED else replace(self, neurons=CHECKED + self.neurons % CHECKED)


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per neuron, dtype and layout, at the first of the time steps; a quick run has no parameter of each
    channel.
    """
    found = []
    # those with a name of their own are LIF
    wanted = [name for name in IN_LAYOUTS if name.partition(",")[0] in settings.neurons]
    if settings.quick:
        wanted = [name for name in wanted if "," not in name]
    for neuron in wanted:
        for dtype in settings.dtypes:
            total = settings.elements or elements(DTYPES[dtype], settings.steps[0], bench.clock, settings.quick)
            for layout in LAYOUTS:
                case = _case("layouts", neuron, dtype, settings.steps[0], total, layout)
                found.append(contained(case, bench, measure))
    return found


def jobs_at_steps(settings: Settings, bench: Bench) -> List[Job]:
    """One job per subject, dtype and number of steps."""
    found = []
    for neuron, layout in SUBJECTS:
        if neuron.partition(",")[0] not in settings.neurons or layout not in (settings.layouts or (layout,)):
            continue
        for dtype in settings.dtypes:
            for steps in settings.all_steps:
                total = settings.elements or elements(DTYPES[dtype], steps, bench.clock, settings.quick, MANY)
                case = _case("steps", neuron, dtype, steps, total, layout)
                found.append(contained(case, bench, partial(measure, checked=case.smaller)))
    return found


def _case(suite: str, neuron: str, dtype: str, steps: int, total: int, layout: str) -> LaidOut:
    """A case of about so many numbers."""
    neurons = max(1, total // steps)
    if layout in LAYOUTS:
        neurons = max(1, neurons // IMAGE) * IMAGE
    elif layout == "odd" and neurons % 2 == 0:
        neurons -= 1
    return LaidOut(suite, neuron, dtype, steps, neurons, layout=layout)
