"""Batch normalisation and a neuron in one layer, beside compiled batch normalisation and ReLU, and beside a copy.

The layers are those of the networks ``vgg-t4`` and ``vgg-t6``, eight convolutions of five sizes. The time is that of
the device's kernels, forward and backward: in a network they follow one another, and nobody waits for the host between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from spikecore.layers import NormNeuron
from spikecore_bench.calls import compiled_apart
from spikecore_bench.cases import Bench, Case, Job, contained, set_up, timed, training
from spikecore_bench.forms import forget_compiled
from spikecore_bench.report import Fact, Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call, Timing, interleave
from spikecore_bench.workloads import WORKLOADS

COPY, RELU = "copy", "BatchNorm + ReLU, compiled"
#: Words per element that batch normalisation and a neuron must move: statistics 1, forward 2, backward 2 and 3.
WORDS = 8
#: Channels, height and width, and how many layers of the network have them.
LAYERS: Tuple[Tuple[Tuple[int, int, int], int], ...] = (
    ((64, 32, 32), 1),
    ((128, 32, 32), 1),
    ((256, 16, 16), 2),
    ((512, 8, 8), 2),
    ((512, 4, 4), 2),
)
#: Time steps and batch on a GPU; on a CPU, and in a quick run.
SIZES, SMALL = ((4, 128), (6, 64), (10, 64), (16, 32)), ((2, 1),)
#: Calls of a profile.
PROFILED = 5
NEURONS = ("LIF", "own-neuron")
LAYOUTS = ("contiguous", "channels-last")


class Subject(NamedTuple):
    """A layer to be timed, and whether its input has no dimension of time."""

    make: Callable[[], nn.Module]
    flat: bool = False


@dataclass(frozen=True)
class Normalised(Case):
    """Images ``[T, B, C, H, W]`` in a layout, before batch normalisation."""

    image: Tuple[int, int, int] = (1, 1, 1)
    layout: str = "contiguous"
    #: Layers of the network that have this size.
    layers: int = 1

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        channels, height, width = self.image
        more = {"channels": channels, "height": height, "width": width, "layers": self.layers}
        return {**super().facts, "layout": self.layout, **more}

    @property
    def label(self) -> str:
        """For people."""
        return f"T={self.steps} B={self.batch} {'x'.join(map(str, self.image))} {self.layout}"

    def made(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random numbers, as an input or a cotangent."""
        shape = (self.steps * self.batch, *self.image)
        values = torch.randn(shape, device=device, generator=generator).to(torch.bfloat16)
        if self.layout == "channels-last":
            values = values.contiguous(memory_format=torch.channels_last)
        return values.view(self.steps, self.batch, *self.image)


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per number of steps, layout and size of a layer."""
    found = []
    large = bench.device.type == "cuda" and not settings.quick
    for steps, batch in SIZES if large else SMALL:
        for layout in LAYOUTS:
            for image, layers in LAYERS if large else LAYERS[-1:]:
                neurons = batch * image[0] * image[1] * image[2]
                case = Normalised("norms", "norm", "bfloat16", steps, neurons, batch, image, layout, layers)
                found.append(contained(case, bench, measure))
    return found


def subjects(case: Normalised, bench: Bench) -> Dict[str, Subject]:
    """Subjects to time: ReLU behind batch normalisation, and each neuron fused and as two layers on each backend."""
    channels = case.image[0]

    def norm() -> nn.BatchNorm2d:
        made = nn.BatchNorm2d(channels)
        with torch.no_grad():
            made.weight.copy_(torch.linspace(0.5, 1.5, channels))
            made.bias.copy_(torch.linspace(-0.2, 0.5, channels))
        return made

    def neuron(name: str, backend: str, fused: bool) -> nn.Module:
        return NormNeuron(norm(), WORKLOADS[name].make(backend), fused=fused)

    found = {RELU: Subject(partial(compiled_apart, lambda: nn.Sequential(norm(), nn.ReLU())), flat=True)}
    for one in bench.implementations:
        if one.backend is not None:
            for name in NEURONS:
                found[f"{one.name}, {name} fused"] = Subject(partial(neuron, name, one.backend, True))
            found[f"{one.name}, LIF apart"] = Subject(partial(neuron, "LIF", one.backend, False))
    return found


def _call(subject: Subject, x: Tensor, cotangent: Tensor) -> Call:
    """Forward and backward, once made."""
    if subject.flat:
        x, cotangent = x.detach().flatten(0, 1).requires_grad_(), cotangent.flatten(0, 1)
    call = training(subject.make().to(x.device), [(x, cotangent)])
    call(0)
    return call


def measure(case: Any, bench: Bench) -> List[Row]:
    """The rows of one case."""
    generator = torch.Generator(bench.device).manual_seed(0)
    x, cotangent = (case.made(bench.device, generator) for _ in range(2))
    x = (2 * x + 1).requires_grad_()
    makers = {name: partial(_call, subject, x, cotangent) for name, subject in subjects(case, bench).items()}
    calls, rows = set_up(case, makers)
    there = torch.empty_like(x)
    calls[COPY] = lambda i: there.copy_(x.detach())
    found = interleave(calls, bench.clock.kernels, replace(bench.plan, fixed=PROFILED))
    copy, relu = found[COPY], found.get(RELU)
    forget_compiled()  # each size is a result of torch.compile's, and it keeps eight of a function
    for name, timing in found.items():
        if not isinstance(timing, Timing):
            rows[name] = case.row(name, "failed", timing.reason)
            continue
        figures = timed("device", timing)
        if isinstance(copy, Timing):
            # a copy moves two words
            figures["fraction"] = WORDS / 2 * copy.seconds / timing.seconds if name != COPY else 1.0
        if isinstance(relu, Timing) and name != COPY:
            figures["time_over_relu"] = timing.seconds / relu.seconds
        rows[name] = case.row(name, "ok", "", **figures)
    return list(rows.values())
