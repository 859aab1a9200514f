"""A network over several GPUs: training by the size of a part of the batch, beside what a document printed.

The network is that of ``examples/cifar10_pipeline.py``, its five stages on one GPU, on two and on four. A case is a
batch, the size of its parts, and an input: spikes drawn from the image (``Poisson``), the image itself for all steps at
once (``constant``), or the image itself streamed through the stages step by step (``constant, streamed``).

Source: SpikingFlow's tutorial on ``softbp``, programs ``cifar10mp`` and ``cifar10cmp``: T = 50, 256 channels,
tau = 100, four Tesla K80; one of them for ``cifar10``.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.cases import Bench, Case, Job, contained, set_up, timed_row
from spikecore_bench.check import REFERENCE
from spikecore_bench.implementations import NotTimed
from spikecore_bench.models import cifar10
from spikecore_bench.report import Fact, Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call, interleave

#: First modules of the stages in the network, whose first module is the encoder or its place. The first ones are short,
#: since they keep the largest activations.
BEGINS = (0, 2, 3, 4, 5)
#: The GPU of each stage, by the number of GPUs. Of two, the second has the convolution with most of the arithmetic and
#: the neurons behind it; four are placed as in the document.
PLACES: Mapping[int, Tuple[int, ...]] = {1: (0, 0, 0, 0, 0), 2: (0, 0, 1, 1, 0), 4: (0, 1, 2, 0, 3)}
STEPS, TAU, WIDTH = 50, 100.0, 256
POISSON, CONSTANT, STREAMED = "Poisson", "constant", "constant, streamed"


class Printed(NamedTuple):
    """A row of the document's table."""

    input: str
    batch: int
    #: Images in a part; None: the batch is one part.
    split: Optional[int]
    #: Images per minute that the document gives.
    printed: float
    #: On what.
    machine: str = "4 Tesla K80"


TABLE = (
    *(Printed(POISSON, 64, split, printed) for split, printed in ((32, 580.0), (16, 490.0), (4, 247.0), (2, 132.0))),
    *(Printed(POISSON, 32, split, printed) for split, printed in ((32, 497.0), (16, 490.0), (8, 357.0))),
    Printed(POISSON, 16, None, 404.0, "one Tesla K80"),
    # in 30 minutes 276 batches of 64, and 715 of 32
    Printed(CONSTANT, 64, 32, 276 * 64 / 30),
    Printed(STREAMED, 32, None, 715 * 32 / 30),
)


@dataclass(frozen=True)
class Stages(Case):
    """A row of the table, to be measured with layers of ``neurons`` channels."""

    printed: Printed = TABLE[0]
    backend: str = REFERENCE

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        about = f"six {self.neurons}-channel convolutions, 32x32, LIF on {self.backend}; {self.printed.input} input"
        about += f", parts of {self.printed.split}" if self.printed.split else ""
        facts: Dict[str, Fact] = {"network": self.neuron, "about": about, "dtype": self.dtype}
        return {**facts, "steps": self.steps, "batch": self.batch}


class _Streamed(sc.parallel.Pipeline):
    """Its output for an image at every step, as rates ``[1, B, 10]``."""

    def __init__(self, stages: Sequence[Tuple[nn.Module, torch.device]], steps: int) -> None:
        super().__init__(stages)
        self.steps = steps

    def forward(self, images: Tensor) -> Any:
        """Image by image, time streams through the stages."""
        return self.constant_forward(images, self.steps)[None] / self.steps


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per row of the table, on every GPU of this machine."""
    width, steps = (32, 8) if settings.quick else (WIDTH, STEPS)
    backend = next((one.backend for one in bench.implementations if one.backend), REFERENCE)
    cases = []
    for row in TABLE[:1] if settings.quick or bench.device.type != "cuda" else TABLE:
        name = f"cifar10 {row.input}" + (f" / {row.split}" if row.split else "")
        cases.append(Stages("pipeline", name, "float32", steps, width, row.batch, row, backend))
    return [contained(case, bench, measure) for case in cases]


def measure(case: Any, bench: Bench, devices: Optional[Sequence[torch.device]] = None) -> List[Row]:
    """Figures that the document printed, and a row for each number of GPUs.

    A CPU has no second device to measure a pipeline on.
    """
    if devices is None:
        if bench.device.type != "cuda":
            return [case.row("all", "skipped", "stages over several devices are measured on GPUs")]
        devices = [torch.device("cuda", k) for k in range(torch.cuda.device_count())]
    printed = case.row(f"printed: {case.printed.machine}", "printed", images_per_minute=case.printed.printed)
    running, rows = set_up(case, {_name(count): partial(_trained, case, count, devices) for count in PLACES})
    found = interleave({name: call for name, (call, _) in running.items()}, partial(_turn, devices), bench.plan)
    for name, (_, peak) in running.items():
        rows[name] = row = timed_row(case, name, "ok", "", {"step": found})
        if row.figures:
            figures = {**row.figures, "images_per_minute": 6e4 * case.batch / row.figures["step_ms"]}
            figures.update({} if peak is None else {"memory_gib": peak / 2**30})
            rows[name] = replace(row, figures=figures)
    return [printed, *(rows[_name(count)] for count in PLACES)]


def _name(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


def _turn(devices: Sequence[torch.device], call: Call, begin: int, calls: int) -> float:
    """Seconds on the host for some calls; every device has finished at its end."""
    _synchronize(devices)
    start = time.perf_counter()
    for i in range(begin, begin + calls):
        call(i)
    _synchronize(devices)
    return time.perf_counter() - start


def _synchronize(devices: Sequence[torch.device]) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _network(case: Stages, places: Sequence[torch.device]) -> nn.Module:
    kind, steps = case.printed.input, case.steps
    net = cifar10(steps if kind == CONSTANT else None, partial(sc.LIF, TAU), case.neurons)
    if kind != CONSTANT:  # a streamed image needs no encoder
        net = nn.Sequential(sc.encode.Poisson(steps) if kind == POISSON else nn.Identity(), *net)
    stages = [net[begin:end] for begin, end in zip(BEGINS, (*BEGINS[1:], len(net)))]
    placed = [*zip(stages, places)]
    return (
        _Streamed(placed, steps)
        if kind == STREAMED
        else sc.parallel.Pipeline(placed, split_sizes=case.printed.split, batch_dim=(0, 1))
    )


def _trained(case: Stages, count: int, devices: Sequence[torch.device]) -> Tuple[Call, Optional[int]]:
    """One training step as a call on so many GPUs, and the most memory that a device has during one, in bytes."""
    if count > len(devices):
        raise NotTimed(f"there are {len(devices)} devices here")
    places = [devices[k] for k in PLACES[count]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = _network(case, places)
    generator = torch.Generator(places[0]).manual_seed(0)
    images = torch.rand(case.batch, 3, 32, 32, device=places[0], generator=generator)
    labels = torch.randint(10, (case.batch,), device=places[0], generator=generator).to(places[-1])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    step = sc.training_model(net, sc.losses.ce_rate, optimizer, backend=case.backend)

    def call(_: int) -> Any:
        return step(images, labels)

    with warnings.catch_warnings():
        # batch normalisation sees one part, as in the document's programs
        warnings.filterwarnings("ignore", message=r"Pipeline: .* normalises each of", category=UserWarning)
        call(0)  # compiles, tunes, makes the optimiser's state
    return call, _peak(partial(call, 1), sorted(set(places), key=str))


def _peak(call: Any, devices: Sequence[torch.device]) -> Optional[int]:
    if devices[0].type != "cuda":
        return None
    _synchronize(devices)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    call()
    _synchronize(devices)
    return max(torch.cuda.max_memory_allocated(device) for device in devices)
