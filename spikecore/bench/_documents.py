"""The tables of published tutorials again: the same sizes, measured here, beside the figures that they print.

Each case has a row for what its document printed, measured by its authors on their machine. The ratio to a loop over
time steps in plain torch is what can be compared between machines; the times cannot.

Source: two tutorials of SpikingJelly, on the CUDA neurons of ``cext`` (LIF, ``N = 40``, an RTX 2080) and on writing
CuPy neurons (IF, ``N = 64 x 32 x 32 x 32``, a Quadro RTX 6000).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import List, Mapping, Tuple

from spikecore.bench._cases import Bench, Case, Inputs, Job, admit, both_ways, contained, timed_row
from spikecore.bench._check import REFERENCE
from spikecore.bench._report import Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Timing

#: What the ratios are to, where it takes part; else the reference backend.
LOOP = "SpikingJelly steps"


@dataclass(frozen=True)
class Printed:
    """What a document says of one implementation: figure -> number, for each number of time steps."""

    name: str
    figures: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class Document:
    """One table of a document."""

    neuron: str
    neurons: int
    dtype: str
    printed: Tuple[Printed, ...]

    @property
    def steps(self) -> Tuple[int, ...]:
        """The numbers of time steps in it."""
        return tuple(self.printed[0].figures)


def _milliseconds(name: str, **found: Tuple[float, float]) -> Printed:
    """Forward, and forward with backward, by the number of steps (``t8=...``)."""
    return Printed(
        f"printed: {name}, RTX 2080",
        {int(t[1:]): {"forward_ms": forward, "training_ms": both} for t, (forward, both) in found.items()},
    )


def _ratios(**found: float) -> Tuple[Printed, ...]:
    figures = {int(t[1:]): {"training_speedup": ratio} for t, ratio in found.items()}
    return (Printed("printed: its CuPy kernels, Quadro RTX 6000", figures),)


_LIF = (
    _milliseconds(
        "torch, step by step",
        t8=(1.670, 4.833),
        t16=(3.238, 9.512),
        t32=(6.348, 18.870),
        t64=(12.588, 38.792),
        t128=(25.136, 75.053),
    ),
    _milliseconds(
        "cext, step by step",
        t8=(0.4425, 1.892),
        t16=(0.8111, 3.516),
        t32=(1.538, 6.748),
        t64=(2.987, 13.196),
        t128=(5.878, 27.016),
    ),
    _milliseconds(
        "cext, all steps at once",
        t8=(0.05478, 0.3305),
        t16=(0.05510, 0.3292),
        t32=(0.05502, 0.3298),
        t64=(0.05504, 0.3670),
        t128=(0.06540, 0.3331),
    ),
)
DOCUMENTS = (
    Document("LIF", 40, "float32", _LIF),
    Document("IF", 64 * 32**3, "float32", _ratios(t2=0.59, t4=1.47, t8=2.67, t16=4.17, t32=6.93)),
    Document("IF", 64 * 32**3, "float16", _ratios(t2=0.68, t4=1.31, t8=2.2, t16=4.77, t32=6.7)),
)
#: On a CPU, and in a quick run, a table for a whole GPU has so many neurons.
FEW = 4096


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per table of the neurons asked for, and number of time steps."""
    found = []
    for document in (one for one in DOCUMENTS if one.neuron in settings.neurons):
        whole = bench.device.type == "cuda" and not settings.quick
        neurons = document.neurons if whole else min(document.neurons, FEW)
        for steps in document.steps[: 1 if settings.quick else None]:
            case = Case("documents", document.neuron, document.dtype, steps, neurons)
            found.append(contained(case, bench, partial(measure, document)))
    return found


def measure(document: Document, case: Case, bench: Bench) -> List[Row]:
    """The rows of one case, those of the document first."""
    inputs = Inputs(case, bench)
    admitted, rows = admit(case, inputs, bench)
    times = both_ways(*inputs.calls(admitted), bench)
    both = times["training"]
    loop = next((found for found in (both.get(LOOP), both.get(REFERENCE)) if isinstance(found, Timing)), None)
    for name, one in admitted.items():
        row, found = timed_row(case, name, one.status, one.detail, times), both[name]
        if row.figures and loop is not None and isinstance(found, Timing):
            row = replace(row, figures={**row.figures, "training_speedup": loop.seconds / found.seconds})
        rows.append(row)
    printed = [case.row(one.name, "printed", "", **_printed(document, one, case.steps)) for one in document.printed]
    return [*printed, *rows]


def _printed(document: Document, one: Printed, steps: int) -> Mapping[str, float]:
    figures = dict(one.figures[steps])
    slowest = document.printed[0].figures[steps]
    if "training_ms" in figures:
        figures["training_speedup"] = slowest["training_ms"] / figures["training_ms"]
    return figures
