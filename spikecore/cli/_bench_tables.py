"""A report on the screen: the implementations, and one table per suite with what it says in words below."""

from __future__ import annotations

import textwrap
from typing import Callable, Dict, List, Mapping, NamedTuple, Tuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spikecore.bench._report import MEASURED, Availability, Fact, Report, Row

#: Letters of what a measured row says beside its name; more is said below the table, up to the second number.
SHORT, LONGEST = 40, 400
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
_LIBRARIES = ("torch", "cupy", "triton", "numba", "spikingjelly", "snntorch")


class Column(NamedTuple):
    """A figure and how it is written."""

    heading: str
    figure: str
    write: Callable[[float], str]


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
        Column("device\nms", "device_ms", _three),
        Column("of copy", "fraction", _two),
        Column("/ ReLU", "time_over_relu", _two),
    ),
    "recurrent": (
        Column("device\nms", "device_ms", _three),
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
TITLES = {
    "neurons": "Neurons: device time, fraction of a copy's speed, peak extra memory",
    "layouts": "Neurons in several layouts, with learnt parameters: as above",
    "steps": "Neurons at many numbers of steps: device time, fraction of a copy's speed",
    "calls": "Calls of small layers: wall time, beside a function that only allocates",
    "norms": "Batch normalisation and a neuron in one layer: device time, forward and backward",
    "recurrent": "Layers with feedback beside nn.LSTM: forward and backward; whole training steps",
    "small": "Small layers: wall time per call",
    "beside": "Beside other libraries: wall time per call",
    "documents": "The tables of published tutorials: wall time per call",
    "networks": "Networks: one training step with Adam",
    "pipeline": "A network over several GPUs: one training step with Adam",
}
CAPTIONS = {
    "layouts": "of copy: as above; the floor counts inputs and outputs, and no parameter",
    "neurons": "of copy: what must be moved at least, over the time, over the copy's bandwidth; 1.00 is the roofline",
    "steps": "of copy: as above; tau and threshold of each channel are learnt, and do not count as words",
    "calls": "a batch of calls with one synchronisation at the end; eager: the same layer, not compiled",
    "norms": "of copy: 8 words over the time, over the copy's bandwidth; ReLU: compiled, behind batch normalisation",
    "recurrent": "device: its kernels; wall: eager; graph: captured; kept: float32 for each number of the output",
    "small": "a batch of calls with one synchronisation at the end; waiting: one after every call",
    "beside": "/ SpikingJelly: its module is 1.00; of a network, inference and a training step with Adam",
    "documents": "a loop over time steps in plain torch is 1.00, forward and backward; printed: by the document",
    "networks": "best ReLU: the network with ReLU in its fastest form; eager ReLU: in its first one",
    "pipeline": "the network's name has the input, and the images in a part of the batch; printed: by the document",
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
            console.print(table(report, suite))
            for text in notes(report.of(suite)):
                console.print(text)
            console.print()
    if not report.complete:
        console.print(Text("This run was interrupted: there was more to measure.", style="bold yellow"))


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


def table(report: Report, suite: str) -> Table:
    """The measured rows of a suite, case by case."""
    made = Table(
        title=TITLES[suite], caption=CAPTIONS[suite], title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD
    )
    made.add_column("", overflow="fold")
    columns = [one for one in COLUMNS[suite] if any(one.figure in row.figures for row in report.of(suite))]
    for one in columns:
        made.add_column(one.heading, justify="right", no_wrap=True)
    for case, found in report.cases(suite):
        measured = [row for row in found if row.status in MEASURED]
        if measured:
            made.add_row(Text("\n".join(_parts(case)), style="bold"))
        for i, row in enumerate(measured):
            cells = [one.write(row.figures[one.figure]) if one.figure in row.figures else "" for one in columns]
            mark = " *" if row.status == "differs" else f" {row.detail}" if len(row.detail) <= SHORT else ""
            name = f"  {row.implementation}{mark}".rstrip()
            made.add_row(Text(name, style=_STYLES[row.status]), *cells, end_section=i == len(measured) - 1)
    return made


def case_text(case: Mapping[str, Fact]) -> str:
    """A case in a few words."""
    return " ".join(_parts(case))


def _parts(case: Mapping[str, Fact]) -> Tuple[str, str]:
    """What is measured, and its size."""
    if "network" in case:
        return str(case["network"]), f"T={case['steps']} B={case['batch']}"
    layout = f" {case['layout']}" if "layout" in case else ""
    return f"{case['neuron']} {case['dtype']}{layout}", f"T={case['steps']} N={case['neurons']:,}"


def notes(rows: List[Row]) -> List[Text]:
    """What the rows of a suite say in words: a sentence for each thing said, with the cases it is true of.

    How a peer differs is another number in every case: the first stands for all, and the report has the others.
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
    for (status, implementation, _), where in said.items():
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        mark = "* " if status == "differs" else ""
        detail = textwrap.shorten(where[0].detail, LONGEST, placeholder=" ...")
        text = f"{mark}{implementation} {status}: {detail} ({case_text(where[0].case)}{more})"
        lines.append(Text(text, style=_STYLES[status]))
    return lines
