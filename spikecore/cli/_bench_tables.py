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

    figure: str
    heading: str
    write: Callable[[float], str]
    #: The heading where the figure is a time of the host's clock, if it is another one.
    on_cpu: str = ""


class Said(NamedTuple):
    """A part of a title or a caption. ``{time}`` is what the clock of the device reads."""

    words: str
    #: A figure that the table must have, ``network`` for a row of one, or a status of a row.
    of: str = ""
    #: Where it is said: on a GPU, on the CPU, or both.
    device: str = ""


class Suite(NamedTuple):
    """What the table of a suite has: its figures, and the words around them."""

    name: str
    columns: Tuple[Column, ...]
    title: Tuple[Said, ...]
    caption: Tuple[Said, ...]


def _three(value: float) -> str:
    return f"{value:#.3g}" if value < 100 else f"{value:,.0f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


_FORWARD, _BOTH = Column("forward_ms", "fwd\nms", _three), Column("training_ms", "fwd+bwd\nms", _three)
_FORWARD_PART = Column("forward_fraction", "fwd\nof copy", _two)
_BOTH_PART = Column("training_fraction", "fwd+bwd\nof copy", _two)
_OF_NEURONS = (_FORWARD, _FORWARD_PART, _BOTH, _BOTH_PART, Column("memory_inputs", "memory\n/ input", _two))
_STEP = Column("step_ms", "step\nms", _three)
_TIME, _PER_CALL, _ADAM = Said("{time}"), Said("wall time per call"), Said("one training step with Adam")
_FRACTION = Said("fraction of a copy's speed", "training_fraction")
_PEAK = Said("peak extra memory", "memory_inputs")
_BATCH = Said("a batch of calls with one synchronisation at the end")
_COPY = "of copy: what must be moved at least, over the time, over the copy's bandwidth"
_BOUND = "bound: the products at the rate of the fastest product here, or the bytes at a copy's speed"
_PRINTED = Said("printed: by the document", "printed")

SUITES: Mapping[str, Suite] = {
    "neurons": Suite(
        "Neurons",
        _OF_NEURONS,
        (_TIME, _FRACTION, _PEAK),
        (Said(f"{_COPY}, so that 1.00 is the roofline", "training_fraction"),),
    ),
    "layouts": Suite(
        "Neurons in several layouts",
        _OF_NEURONS,
        (_TIME, _FRACTION, _PEAK),
        (Said(f"{_COPY}; inputs and outputs count, and no parameter", "training_fraction"),),
    ),
    "steps": Suite(
        "Neurons at many numbers of steps",
        (_FORWARD_PART, _BOTH, _BOTH_PART),
        (_TIME, _FRACTION),
        (Said(f"{_COPY}; parameters of each channel are learnt, and do not count", "training_fraction"),),
    ),
    "calls": Suite(
        "Calls of small layers",
        (
            _FORWARD,
            _BOTH,
            Column("training_over_allocating", "/ allo-\ncating", _two),
            Column("training_over_eager", "/ eager", _two),
        ),
        (Said("wall time"), Said("beside a function that only allocates", "training_over_allocating")),
        (_BATCH, Said("eager: the same layer, not compiled", "training_over_eager")),
    ),
    "norms": Suite(
        "Batch normalisation and a neuron in one layer",
        (
            Column("device_ms", "device\nms", _three, "wall\nms"),
            Column("fraction", "of copy", _two),
            Column("time_over_relu", "/ ReLU", _two),
        ),
        (_TIME, Said("forward and backward")),
        (
            Said("of copy: 8 words over the time, over the copy's bandwidth", "fraction"),
            Said("ReLU: compiled, behind batch normalisation", "time_over_relu"),
        ),
    ),
    "recurrent": Suite(
        "Layers with feedback beside nn.LSTM",
        (
            Column("device_ms", "device\nms", _three, "few calls\nms"),
            Column("device_over_lstm", "/ LSTM", _two),
            Column("wall_ms", "wall\nms", _three),
            Column("graph_ms", "graph\nms", _three),
            _STEP,
            Column("step_over_lstm", "/ LSTM", _two),
            Column("held_words", "kept\nwords", _two),
        ),
        (Said("forward and backward", "wall_ms"), Said("whole training steps", "step_ms")),
        (
            Said("device: its kernels", "device_ms", "cuda"),
            Said("few calls: wall time, in turns of a few calls", "device_ms", "cpu"),
            Said("wall: eager", "wall_ms"),
            Said("graph: captured", "graph_ms"),
            Said("kept: float32 for each number of the output", "held_words"),
        ),
    ),
    "online": Suite(
        "Learning rules that move along with time",
        (
            Column("step_us", "step\nus", _three),
            Column("step_over_plain", "/ plain", _two),
            Column("chunk_us", "in chunks\nus", _three),
            Column("chunk_over_plain", "/ plain", _two),
            Column("memory_mib", "memory\nMiB", _three),
        ),
        (Said("wall time per step"), Said("forward, trace, gradient and update", "step_us")),
        (
            Said("plain: the rule written by hand in plain PyTorch", "step_over_plain"),
            Said("step: one at a time, with an update", "step_us"),
            Said("in chunks: of 20 steps, of a sequence of 100", "chunk_us"),
            Said("memory: at the peak, beyond a short sequence's", "memory_mib"),
        ),
    ),
    "small": Suite(
        "Small layers",
        (
            _FORWARD,
            _BOTH,
            Column("forward_waiting_ms", "fwd ms,\nwaiting", _three),
            Column("training_waiting_ms", "fwd+bwd ms,\nwaiting", _three),
        ),
        (_PER_CALL,),
        (_BATCH, Said("waiting: one after every call", "training_waiting_ms")),
    ),
    "single": Suite(
        "Single steps",
        (
            Column("forward_us", "fwd\nus", _three),
            Column("forward_over_plain", "/ plain", _two),
            Column("training_us", "fwd+bwd\nus", _three),
            Column("training_over_plain", "/ plain", _two),
        ),
        (Said("wall time per step"),),
        (Said("plain: the step written by hand in plain PyTorch", "training_over_plain"),),
    ),
    "beside": Suite(
        "Beside other libraries",
        (
            _FORWARD,
            Column("forward_ratio", "/ Spiking-\nJelly", _two),
            _BOTH,
            Column("training_ratio", "/ Spiking-\nJelly", _two),
        ),
        (_PER_CALL,),
        (
            Said("/ SpikingJelly: its module is 1.00", "training_ratio"),
            Said("of a network, inference and a training step with Adam", "network"),
        ),
    ),
    "documents": Suite(
        "The tables of published tutorials",
        (_FORWARD, _BOTH, Column("training_speedup", "times as fast\nas a loop", _two)),
        (_PER_CALL,),
        (Said("a loop over time steps in plain torch is 1.00, forward and backward", "training_speedup"), _PRINTED),
    ),
    "networks": Suite(
        "Networks",
        (
            _STEP,
            Column("images_per_second", "images\nper s", _three),
            Column("time_over_best_relu", "time /\nbest ReLU", _two),
            Column("time_over_relu", "/ eager\nReLU", _two),
            Column("memory_gib", "memory\nGiB", _two),
            Column("activations_gib", "activa-\ntions GiB", _two),
            Column("activations_over_relu", "/ eager\nReLU", _two),
        ),
        (_ADAM,),
        (
            Said("best ReLU: the network with ReLU in its fastest form", "time_over_best_relu"),
            Said("eager ReLU: in its first one", "time_over_relu"),
        ),
    ),
    "open-neuromorphic": Suite(
        "Open Neuromorphic: a linear layer and LIF",
        (
            _FORWARD,
            Column("forward_bound_ms", "bound\nms", _three),
            _BOTH,
            Column("training_bound_ms", "bound\nms", _three),
            Column("training_over_bound", "/ bound", _two),
            Column("memory_gib", "memory\nGiB", _two),
        ),
        (Said("wall time, synchronised"), Said("sum of the output and its gradient")),
        (Said(_BOUND), Said("TF32 is off")),
    ),
    "shd": Suite(
        "SHD: two hidden layers",
        (
            _STEP,
            Column("step_bound_ms", "bound\nms", _three),
            Column("step_over_bound", "/ bound", _two),
            Column("epoch_s", "epoch\ns", _three),
        ),
        (Said("wall time, synchronised"), _ADAM),
        (Said("epoch: the steps of 8,156 samples"), Said(_BOUND), Said("TF32 is off")),
    ),
    "pipeline": Suite(
        "A network over several GPUs",
        (
            _STEP,
            Column("images_per_minute", "images\nper minute", _three),
            Column("memory_gib", "memory of the\nfullest, GiB", _two),
        ),
        (_ADAM,),
        (Said("the network's name has the input, and the images in a part of the batch"), _PRINTED),
    ),
}


def _words(report: Report, suite: str, said: Tuple[Said, ...]) -> List[str]:
    rows, cpu = report.of(suite), _on_cpu(report)
    there = {fact for row in rows for fact in (*row.figures, row.status, *{"network"}.intersection(row.case))}
    time, device = ("wall time on the CPU", "cpu") if cpu else ("device time", "cuda")
    return [part.words.format(time=time) for part in said if part.of in ("", *there) and part.device in ("", device)]


def _title(report: Report, suite: str) -> str:
    return f"{SUITES[suite].name}: {', '.join(_words(report, suite, SUITES[suite].title))}"


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
    made[-1].caption = "; ".join(_words(report, suite, SUITES[suite].caption))
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
