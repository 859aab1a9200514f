"""A benchmark that takes no time, and a backend that is wrong in it."""

from __future__ import annotations

import io
from typing import List

from rich.console import Console

from plain_loop import Loop, Plain
from spikecore_bench.report import Report, Row, from_json
from spikecore_bench.run import measure, prepare
from spikecore_bench.settings import Settings
from spikecore_bench.tables import show

TINY = Settings(
    suites=("neurons", "small"),
    device="cpu",
    peers=False,
    neurons=("LIF",),
    steps=(3,),
    elements=30,
    size=4,
    compile_steps=0,
    repetitions=1,
    quick=True,
)


def ran(settings: Settings = TINY) -> Report:
    """The report of a whole run."""
    report, jobs = prepare(settings)
    measure(report, jobs)
    return report


def shown(report: Report) -> str:
    """The command's output for a report, once it was written and read."""
    console = Console(file=io.StringIO(), width=160)
    show(from_json(report.to_json()), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def only(rows: List[Row], implementation: str) -> Row:
    """The one row of an implementation."""
    (row,) = [row for row in rows if row.implementation == implementation]
    return row


class Half(Loop):
    """Input gradients are right, spikes are those of twice the input."""

    def read(self, x, t):
        return 2 * super().read(x, t)


class Mutant(Plain):
    """A backend that is wrong."""

    name = "mutant"
    loop = Half
