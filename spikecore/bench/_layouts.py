"""Neurons on images in several layouts, with parameters that are learnt: time, fraction of the roofline, memory.

The same figures as those of the neuron rows; the floor counts inputs and outputs alone, and no parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Tuple

import torch
from torch import Tensor

from spikecore.bench._cases import Bench, Case, Job, contained
from spikecore.bench._neurons import elements, measure
from spikecore.bench._report import Fact
from spikecore.bench._settings import Settings
from spikecore.bench._workloads import CHANNELS, IN_LAYOUTS, Workload
from spikecore.dtypes import DTYPES

#: Height and width of the images.
SIDE = 16
#: Layout -> the order of the dimensions of ``[T, B, C, H, W]`` in memory.
LAYOUTS: Mapping[str, Tuple[int, ...]] = {
    "contiguous": (0, 1, 2, 3, 4),
    "channels-last": (0, 1, 3, 4, 2),
    "batch before time": (1, 0, 2, 3, 4),
}


@dataclass(frozen=True)
class LaidOut(Case):
    """A case whose input is images ``[T, B, C, H, W]`` in a layout."""

    layout: str = "contiguous"

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        return {**super().facts, "layout": self.layout}

    @property
    def workload(self) -> Workload:
        """The neuron itself."""
        return IN_LAYOUTS[self.neuron]

    @property
    def label(self) -> str:
        """For people."""
        return f"{super().label}, {self.layout}"

    def made(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random numbers, as an input or a cotangent of this case."""
        order = LAYOUTS[self.layout]
        shape = (self.steps, self.neurons // (CHANNELS * SIDE * SIDE), CHANNELS, SIDE, SIDE)
        there = [shape[d] for d in order]
        values = torch.randn(there, device=device, dtype=DTYPES[self.dtype], generator=generator)
        return values.permute([order.index(d) for d in range(len(order))])


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per neuron, dtype and layout, at the first of the time steps; a quick run has no parameter of each
    channel.
    """
    found = []
    steps, image = settings.steps[0], CHANNELS * SIDE * SIDE
    # those with a name of their own are LIF
    wanted = [name for name in IN_LAYOUTS if name.partition(",")[0] in settings.neurons]
    if settings.quick:
        wanted = [name for name in wanted if "," not in name]
    for neuron in wanted:
        for dtype in settings.dtypes:
            total = settings.elements or elements(DTYPES[dtype], steps, bench.clock, settings.quick)
            neurons = max(1, total // steps // image) * image
            for layout in LAYOUTS:
                case = LaidOut("layouts", neuron, dtype, steps, neurons, layout)
                found.append(contained(case, bench, measure))
    return found
