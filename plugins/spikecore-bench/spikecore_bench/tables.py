"""A report on the screen: the implementations, and one table per suite with what it says in words below."""

from __future__ import annotations

import json
import textwrap
from typing import Callable, Dict, List, Mapping, NamedTuple, Tuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spikecore_bench.report import MEASURED, Availability, Fact, Report, Row

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
    """A figure, how it is written, and what is said of it below the table."""

    figure: str
    heading: str
    write: Callable[[float], str]
    said: str = ""
    #: The heading where the figure is a time of the host's clock, if it is another one.
    on_cpu: str = ""


class Suite(NamedTuple):
    """Table of a suite: its figures, and how they are measured. ``{time}`` stands for the clock's name."""

    name: str
    columns: Tuple[Column, ...]
    measured: str
    said: str = ""


def _three(value: float) -> str:
    return f"{value:#.3g}" if value < 100 else f"{value:,.0f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


_COPY = "of copy: what must be moved at least, over the time, over the copy's bandwidth"
_BOUND = "bound: the products at the rate of the fastest product here, or the bytes at a copy's speed; TF32 is off"
_PRINTED = "printed: by the document"
_BATCH = "a batch of calls with one synchronisation at the end"
_ADAM = "one training step with Adam"
_FORWARD, _BOTH = Column("forward_ms", "fwd\nms", _three), Column("training_ms", "fwd+bwd\nms", _three)
_FORWARD_PART = Column("forward_fraction", "fwd\nof copy", _two)
_BOTH_PART = Column("training_fraction", "fwd+bwd\nof copy", _two, _COPY)
_MEMORY = Column("memory_inputs", "memory\n/ input", _two, "memory: at the peak, beyond what there was")
_OF_NEURONS = (_FORWARD, _FORWARD_PART, _BOTH, _BOTH_PART, _MEMORY)
_STEP = Column("step_ms", "step\nms", _three)

SUITES: Mapping[str, Suite] = {
    "neurons": Suite("Neurons", _OF_NEURONS, "{time}"),
    "layouts": Suite("Neurons in several layouts", _OF_NEURONS, "{time}", "inputs and outputs count, and no parameter"),
    "steps": Suite(
        "Neurons at many numbers of steps",
        (_FORWARD_PART, _BOTH, _BOTH_PART),
        "{time}",
        "parameters of each channel are learnt, and do not count",
    ),
    "calls": Suite(
        "Calls of small layers",
        (
            _FORWARD,
            _BOTH,
            Column("training_over_allocating", "/ allo-\ncating", _two, "/ allocating: a function that only allocates"),
            Column("training_over_eager", "/ eager", _two, "eager: the same layer, not compiled"),
        ),
        "wall time",
        _BATCH,
    ),
    "norms": Suite(
        "Batch normalisation and a neuron in one layer",
        (
            Column("device_ms", "device\nms", _three, on_cpu="wall\nms"),
            Column("fraction", "of copy", _two, "of copy: 8 words over the time, over the copy's bandwidth"),
            Column("time_over_relu", "/ ReLU", _two, "ReLU: compiled, behind batch normalisation"),
        ),
        "{time}, forward and backward",
    ),
    "recurrent": Suite(
        "Layers with feedback beside nn.LSTM",
        (
            Column("device_ms", "device\nms", _three, "device: its kernels, on a CPU a few calls", "few calls\nms"),
            Column("device_over_lstm", "/ LSTM", _two),
            Column("wall_ms", "wall\nms", _three, "wall: forward and backward, eager"),
            Column("graph_ms", "graph\nms", _three, "graph: captured"),
            _STEP._replace(said="step: a whole training step"),
            Column("step_over_lstm", "/ LSTM", _two),
            Column("held_words", "kept\nwords", _two, "kept: float32 for each number of the output"),
        ),
        "{time}",
    ),
    "online": Suite(
        "Learning rules that move along with time",
        (
            Column("step_us", "step\nus", _three, "step: one at a time, with forward, trace, gradient and update"),
            Column("step_over_plain", "/ plain", _two, "plain: the rule written by hand in plain PyTorch"),
            Column("chunk_us", "in chunks\nus", _three, "in chunks: of 20 steps, of a sequence of 100"),
            Column("chunk_over_plain", "/ plain", _two),
            Column("memory_mib", "memory\nMiB", _three, "memory: at the peak, beyond a short sequence's"),
        ),
        "wall time per step",
    ),
    "small": Suite(
        "Small layers",
        (
            _FORWARD,
            _BOTH,
            Column("forward_waiting_ms", "fwd ms,\nwaiting", _three),
            Column("training_waiting_ms", "fwd+bwd ms,\nwaiting", _three, "waiting: for the device after every call"),
        ),
        "wall time per call",
        _BATCH,
    ),
    "single": Suite(
        "Single steps",
        (
            Column("forward_us", "fwd\nus", _three),
            Column("forward_over_plain", "/ plain", _two),
            Column("training_us", "fwd+bwd\nus", _three),
            Column("training_over_plain", "/ plain", _two, "plain: the step written by hand in plain PyTorch"),
        ),
        "wall time per step",
    ),
    "beside": Suite(
        "Beside other libraries",
        (
            _FORWARD,
            Column("forward_ratio", "/ Spiking-\nJelly", _two),
            _BOTH,
            Column("training_ratio", "/ Spiking-\nJelly", _two, "/ SpikingJelly: its module is 1.00"),
        ),
        "wall time per call; of a network, inference and a training step with Adam",
    ),
    "documents": Suite(
        "The tables of published tutorials",
        (
            _FORWARD,
            _BOTH,
            Column("training_speedup", "times as fast\nas a loop", _two, "loop: over time, in plain torch"),
        ),
        "wall time per call",
        _PRINTED,
    ),
    "networks": Suite(
        "Networks",
        (
            _STEP,
            Column("images_per_second", "images\nper s", _three),
            Column("time_over_best_relu", "time /\nbest ReLU", _two, "best ReLU: the network in its fastest form"),
            Column("time_over_relu", "/ eager\nReLU", _two, "eager ReLU: in its first one"),
            Column("memory_gib", "memory\nGiB", _two),
            Column("activations_gib", "activa-\ntions GiB", _two),
            Column("activations_over_relu", "/ eager\nReLU", _two),
        ),
        _ADAM,
    ),
    "open-neuromorphic": Suite(
        "Open Neuromorphic: a linear layer and LIF",
        (
            _FORWARD,
            Column("forward_bound_ms", "bound\nms", _three),
            _BOTH,
            Column("training_bound_ms", "bound\nms", _three, _BOUND),
            Column("training_over_bound", "/ bound", _two),
            Column("memory_gib", "memory\nGiB", _two),
        ),
        "wall time, synchronised, sum of the output and its gradient",
    ),
    "shd": Suite(
        "SHD: two hidden layers",
        (
            _STEP,
            Column("step_bound_ms", "bound\nms", _three, _BOUND),
            Column("step_over_bound", "/ bound", _two),
            Column("epoch_s", "epoch\ns", _three, "epoch: the steps of 8,156 samples"),
        ),
        f"wall time, synchronised, {_ADAM}",
    ),
    "pipeline": Suite(
        "A network over several GPUs",
        (
            _STEP,
            Column("images_per_minute", "images\nper minute", _three),
            Column("memory_gib", "memory of the\nfullest, GiB", _two),
        ),
        _ADAM,
        f"the network's name has the input, and the images in a part of the batch; {_PRINTED}",
    ),
}


def _title(report: Report, suite: str) -> str:
    time = "wall time on the CPU" if _on_cpu(report) else "device time"
    return f"{SUITES[suite].name}: {SUITES[suite].measured.format(time=time)}"


def _on_cpu(report: Report) -> bool:
    return str(report.machine["device"]).startswith("cpu")


def show(report: Report, console: Console) -> None:
    """Print everything, the implementations first."""
    machine = report.machine
    versions = ", ".join(f"{name} {machine[name]}" for name in _LIBRARIES if machine.get(name))
    console.print(Text(f"{machine['device_name']} ({machine['device']}), {machine['threads']} threads", style="bold"))
    console.print(Text(versions, style="dim"))
    console.print(implementations(report.implementations))
    for suite in SUITES:
        if report.of(suite):
            _show_suite(report, suite, console)
            console.print()
    if not report.complete:
        console.print(Text("This run was interrupted: there was more to measure.", style="bold yellow"))


def _show_suite(report: Report, suite: str, console: Console) -> None:
    """A table, and what it says in words; a line of words where there is nothing for a table."""
    rows = report.of(suite)
    if all(row.status == "skipped" for row in rows):
        reasons = "; ".join(dict.fromkeys(row.detail for row in rows))
        console.print(Text(f"{SUITES[suite].name}: nothing measured: {reasons}", style=_STYLES["skipped"]))
        return
    if any(row.status in MEASURED for row in rows):
        for one in tables(report, suite, console.width):
            console.print(one)
    else:
        console.print(Text(_title(report, suite), style="italic"))
    for text in notes(rows):
        console.print(text)


def implementations(listed: List[Availability]) -> Table:
    """Table of the implementations, with the reasons of those that do not take part."""
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
    for column in SUITES[suite].columns:
        cells = [_cell(column, row) for row in rows if column.figure in row.figures]
        if cells:
            needed = max(map(len, [*_heading(column, report).split("\n"), *cells])) + _PADDING
            if needed > free and groups[-1]:
                groups.append([])
                free = available
            groups[-1].append(column)
            free -= needed
    made = [_table(report, suite, group, every=i == 0) for i, group in enumerate(groups)]
    made[0].title = _title(report, suite)
    said = [*[column.said for group in groups for column in group], SUITES[suite].said]
    made[-1].caption = "; ".join(filter(None, said))
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
    return column.on_cpu if column.on_cpu and _on_cpu(report) else column.heading


def _cell(column: Column, row: Row) -> str:
    return column.write(row.figures[column.figure]) if column.figure in row.figures else ""


def _name(row: Row) -> str:
    mark = " *" if row.status == "differs" else f" {row.detail}" if len(row.detail) <= SHORT else ""
    return f"  {row.implementation}{mark}".rstrip()


def case_text(case: Mapping[str, Fact]) -> str:
    """A case in a few words."""
    return " ".join(_parts(case))


def _parts(case: Mapping[str, Fact]) -> Tuple[str, str]:
    if "network" in case:
        return str(case["network"]), f"T={case['steps']} B={case['batch']}"
    layout = f" {case['layout']}" if "layout" in case else ""
    image = " {channels}x{height}x{width}".format(**case) if "channels" in case else ""
    return f"{case['neuron']} {case['dtype']}{layout}{image}", f"T={case['steps']} N={case['neurons']:,}"


def notes(rows: List[Row]) -> List[Text]:
    """Remarks of the rows of a suite: each sentence once, with the cases it is true of.

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
