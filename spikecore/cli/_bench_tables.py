"""A report on the screen: the implementations, and one table per suite with what it says in words below."""

from __future__ import annotations

import json
import textwrap
from typing import Callable, Dict, List, Mapping, NamedTuple, Tuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spikecore.bench._report import MEASURED, Availability, Fact, Report, Row
from spikecore.cli import _bench_words as words

#: Letters of what a measured row says beside its name; more is said below the table, up to the second number.
SHORT, LONGEST = 40, 400
#: Letters of a name that stand beside figures before a table is divided. At 80 the seven figures of networks left two.
NAME = 32
_STYLES = {
    "ok": "",
    "differs": "yellow",
    "printed": "dim",
    "wrong": "bold red",
    "failed": "red",
    "unsupported": "cyan",
    "skipped": "dim",
}
_STATES = {"ready": "green", "missing": "yellow", "unavailable": "yellow", "failed": "red"}
#: Blanks beside each column of a table, and before the first one.
_PADDING, _EDGE = 3, 1
_LIBRARIES = ("torch", "cupy", "triton", "numba", "spikingjelly", "snntorch")


class Column(NamedTuple):
    """A figure and how it is written."""

    heading: str
    figure: str
    write: Callable[[float], str]
    #: The heading where the figure is a time of the host's clock, if it is another one.
    on_cpu: str = ""


def _three(value: float) -> str:
    return f"{value:#.3g}" if value < 100 else f"{value:,.0f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


COLUMNS: Mapping[str, Tuple[Column, ...]] = {
    "neurons": (
        Column("fwd\nms", "forward_ms", _three),
        Column("fwd\nof copy", "forward_fraction", _two),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("fwd+bwd\nof copy", "training_fraction", _two),
        Column("memory\n/ input", "memory_inputs", _two),
    ),
    "layouts": (
        Column("fwd\nms", "forward_ms", _three),
        Column("fwd\nof copy", "forward_fraction", _two),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("fwd+bwd\nof copy", "training_fraction", _two),
        Column("memory\n/ input", "memory_inputs", _two),
    ),
    "steps": (
        Column("fwd\nof copy", "forward_fraction", _two),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("fwd+bwd\nof copy", "training_fraction", _two),
    ),
    "calls": (
        Column("fwd\nms", "forward_ms", _three),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("/ allo-\ncating", "training_over_allocating", _two),
        Column("/ eager", "training_over_eager", _two),
    ),
    "norms": (
        Column("device\nms", "device_ms", _three, "wall\nms"),
        Column("of copy", "fraction", _two),
        Column("/ ReLU", "time_over_relu", _two),
    ),
    "recurrent": (
        Column("device\nms", "device_ms", _three, "few calls\nms"),
        Column("/ LSTM", "device_over_lstm", _two),
        Column("wall\nms", "wall_ms", _three),
        Column("graph\nms", "graph_ms", _three),
        Column("step\nms", "step_ms", _three),
        Column("/ LSTM", "step_over_lstm", _two),
        Column("kept\nwords", "held_words", _two),
    ),
    "small": (
        Column("fwd\nms", "forward_ms", _three),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("fwd ms,\nwaiting", "forward_waiting_ms", _three),
        Column("fwd+bwd ms,\nwaiting", "training_waiting_ms", _three),
    ),
    "beside": (
        Column("fwd\nms", "forward_ms", _three),
        Column("/ Spiking-\nJelly", "forward_ratio", _two),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("/ Spiking-\nJelly", "training_ratio", _two),
    ),
    "documents": (
        Column("fwd\nms", "forward_ms", _three),
        Column("fwd+bwd\nms", "training_ms", _three),
        Column("times as fast\nas a loop", "training_speedup", _two),
    ),
    "networks": (
        Column("step\nms", "step_ms", _three),
        Column("images\nper s", "images_per_second", _three),
        Column("time /\nbest ReLU", "time_over_best_relu", _two),
        Column("/ eager\nReLU", "time_over_relu", _two),
        Column("memory\nGiB", "memory_gib", _two),
        Column("activa-\ntions GiB", "activations_gib", _two),
        Column("/ eager\nReLU", "activations_over_relu", _two),
    ),
    "pipeline": (
        Column("step\nms", "step_ms", _three),
        Column("images\nper minute", "images_per_minute", _three),
        Column("memory of the\nfullest, GiB", "memory_gib", _two),
    ),
}


def show(report: Report, console: Console) -> None:
    """Print everything, the implementations first."""
    machine = report.machine
    versions = ", ".join(f"{name} {machine[name]}" for name in _LIBRARIES if machine.get(name))
    console.print(Text(f"{machine['device_name']} ({machine['device']}), {machine['threads']} threads", style="bold"))
    console.print(Text(versions, style="dim"))
    console.print(implementations(report.implementations))
    for suite in COLUMNS:
        if report.of(suite):
            _show_suite(report, suite, console)
            console.print()
    if not report.complete:
        console.print(Text("This run was interrupted: there was more to measure.", style="bold yellow"))


def _show_suite(report: Report, suite: str, console: Console) -> None:
    """A table, and what it says in words; a line of words where there is nothing for a table."""
    rows = report.of(suite)
    if all(row.status == "skipped" for row in rows):
        console.print(Text(words.nothing(report, suite), style=_STYLES["skipped"]))
        return
    if any(row.status in MEASURED for row in rows):
        for one in tables(report, suite, console.width):
            console.print(one)
    else:
        console.print(Text(words.title(report, suite), style="italic"))
    for text in notes(rows):
        console.print(text)


def implementations(listed: List[Availability]) -> Table:
    """Who takes part, and why not."""
    made = Table(title="Implementations", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("name", "state", "what it is, or why not"):
        made.add_column(heading, no_wrap=heading != "what it is, or why not", overflow="fold")
    for one in listed:
        state = Text(one.state, style=_STATES.get(one.state, "dim"))
        about = ": ".join(part for part in (one.version, one.detail) if part)
        made.add_row(Text(one.name), state, Text(about))
    return made


def tables(report: Report, suite: str, width: int) -> List[Table]:
    """The measured rows of a suite, case by case: one table where ``width`` letters hold all figures beside the names,
    else several with the same names.
    """
    rows = [row for row in report.of(suite) if row.status in MEASURED]
    available = width - min(max(len(_name(row)) for row in rows), NAME) - _PADDING - _EDGE
    groups: List[List[Column]] = [[]]
    free = available
    for column in COLUMNS[suite]:
        cells = [_cell(column, row) for row in rows if column.figure in row.figures]
        if cells:
            needed = max(map(len, [*_heading(column, report).split("\n"), *cells])) + _PADDING
            if needed > free and groups[-1]:
                groups.append([])
                free = available
            groups[-1].append(column)
            free -= needed
    made = [_table(report, suite, group, every=i == 0) for i, group in enumerate(groups)]
    made[0].title = words.title(report, suite)
    made[-1].caption = words.caption(report, suite)
    return made


def _table(report: Report, suite: str, columns: List[Column], every: bool) -> Table:
    """Some columns of a suite. ``every``: of all measured rows, not only of those with a figure in these columns."""
    made = Table(title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    made.add_column("", overflow="fold")
    for column in columns:
        made.add_column(_heading(column, report), justify="right", no_wrap=True)
    figures = {column.figure for column in columns}
    for case, found in report.cases(suite):
        measured = [row for row in found if row.status in MEASURED and (every or figures & row.figures.keys())]
        if measured:
            made.add_row(Text("\n".join(_parts(case)), style="bold"))
        for i, row in enumerate(measured):
            cells = [_cell(column, row) for column in columns]
            made.add_row(Text(_name(row), style=_STYLES[row.status]), *cells, end_section=i == len(measured) - 1)
    return made


def _heading(column: Column, report: Report) -> str:
    return column.on_cpu if column.on_cpu and words.on_cpu(report) else column.heading


def _cell(column: Column, row: Row) -> str:
    return column.write(row.figures[column.figure]) if column.figure in row.figures else ""


def _name(row: Row) -> str:
    """The implementation of a row, with what marks it."""
    mark = " *" if row.status == "differs" else f" {row.detail}" if len(row.detail) <= SHORT else ""
    return f"  {row.implementation}{mark}".rstrip()


def case_text(case: Mapping[str, Fact]) -> str:
    """A case in a few words."""
    return " ".join(_parts(case))


def _parts(case: Mapping[str, Fact]) -> Tuple[str, str]:
    """What is measured, and its size."""
    if "network" in case:
        return str(case["network"]), f"T={case['steps']} B={case['batch']}"
    layout = f" {case['layout']}" if "layout" in case else ""
    image = " {channels}x{height}x{width}".format(**case) if "channels" in case else ""
    return f"{case['neuron']} {case['dtype']}{layout}{image}", f"T={case['steps']} N={case['neurons']:,}"


def notes(rows: List[Row]) -> List[Text]:
    """What the rows of a suite say in words: a sentence for each thing said, with the cases it is true of.

    How a peer differs is another number in every case: the first stands for all, and the report has the others. What is
    skipped in every case is said without one.
    """
    said: Dict[Tuple[str, ...], List[Row]] = {}
    for row in rows:
        if row.status not in ("ok", "printed") or len(row.detail) > SHORT:
            said.setdefault((row.status, row.implementation, row.detail if row.status != "differs" else ""), []).append(
                row
            )
    abouts = {
        str(row.case["network"]): f"{row.case['about']}, {row.case['dtype']}" for row in rows if "about" in row.case
    }
    lines = [Text(f"{network}: {about}", style="dim") for network, about in abouts.items()]
    cases = len({json.dumps(row.case, sort_keys=True) for row in rows})
    for (status, implementation, _), where in said.items():
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        in_cases = "" if status == "skipped" and len(where) == cases else f" ({case_text(where[0].case)}{more})"
        mark = "* " if status == "differs" else ""
        detail = textwrap.shorten(where[0].detail, LONGEST, placeholder=" ...")
        lines.append(Text(f"{mark}{implementation} {status}: {detail}{in_cases}", style=_STYLES[status]))
    return lines
