"""The tables of published tutorials again: the same sizes, measured here, beside the figures that they print.

Each case has a row for what its document printed, measured by its authors on their machine. The ratio to a loop over
time steps in plain torch is what can be compared between machines; the times cannot.

Source: two tutorials of SpikingJelly, on the CUDA neurons of ``cext`` (LIF, ``N = 40``, an RTX 2080) and on writing
CuPy neurons (IF, ``N = 64 x 32 x 32 x 32``, a Quadro RTX 6000).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Dict, List, NamedTuple, Tuple

from spikecore_bench.cases import Bench, Case, Inputs, Job, admit, both_ways, contained, timed_row
from spikecore_bench.check import REFERENCE
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Timing

#: Row that ratios refer to, if it takes part; else the reference backend.
LOOP = "SpikingJelly steps"


class Printed(NamedTuple):
    """Figures that a document gives of one implementation, for each number of time steps."""

    name: str
    training: Tuple[float, ...]
    #: Forward; empty: what is printed for forward and backward are ratios.
    forward: Tuple[float, ...] = ()


class Document(NamedTuple):
    """One table of a document. The first of its implementations is what the ratios are to, if it has times."""

    neuron: str
    neurons: int
    dtype: str
    steps: Tuple[int, ...]
    printed: Tuple[Printed, ...]


#: Milliseconds.
_LIF = (
    Printed(
        "printed: torch, step by step, RTX 2080",
        (4.833, 9.512, 18.870, 38.792, 75.053),
        (1.670, 3.238, 6.348, 12.588, 25.136),
    ),
    Printed(
        "printed: cext, step by step, RTX 2080",
        (1.892, 3.516, 6.748, 13.196, 27.016),
        (0.4425, 0.8111, 1.538, 2.987, 5.878),
    ),
    Printed(
        "printed: cext, all steps at once, RTX 2080",
        (0.3305, 0.3292, 0.3298, 0.3670, 0.3331),
        (0.05478, 0.05510, 0.05502, 0.05504, 0.06540),
    ),
)
_CUPY = "printed: its CuPy kernels, Quadro RTX 6000"
DOCUMENTS = (
    Document("LIF", 40, "float32", (8, 16, 32, 64, 128), _LIF),
    Document("IF", 64 * 32**3, "float32", (2, 4, 8, 16, 32), (Printed(_CUPY, (0.59, 1.47, 2.67, 4.17, 6.93)),)),
    Document("IF", 64 * 32**3, "float16", (2, 4, 8, 16, 32), (Printed(_CUPY, (0.68, 1.31, 2.2, 4.77, 6.7)),)),
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
    k = document.steps.index(case.steps)
    printed = [case.row(one.name, "printed", "", **_printed(document, one, k)) for one in document.printed]
    return [*printed, *rows]


def _printed(document: Document, one: Printed, k: int) -> Dict[str, float]:
    """The figures of the ``k``-th number of time steps."""
    if not one.forward:
        return {"training_speedup": one.training[k]}
    speedup = document.printed[0].training[k] / one.training[k]
    return {"forward_ms": one.forward[k], "training_ms": one.training[k], "training_speedup": speedup}
