"""What ``spikecore bench`` says around its figures."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from bench_runs import TINY, ran
from spikecore.bench._peers import PEERS
from spikecore.bench._report import Report, Row
from spikecore.cli._bench_tables import show


def shown(report: Report) -> str:
    """What the command prints on eighty columns below the list of implementations."""
    console = Console(file=io.StringIO(), width=80)
    show(report, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return text.partition("what it is, or why not")[2].partition("\n")[2]


def read(report: Report) -> str:
    """The same as running text: a title is broken at the width of its table."""
    return " ".join(shown(report).split())


def report_of(device: str, *rows: Row) -> Report:
    """A complete report."""
    return Report({"device_name": "x", "device": device, "threads": 2}, {}, [], list(rows), True)


CASE = {"neuron": "LIF", "dtype": "float32", "steps": 8, "neurons": 40}
FIGURES = {"forward_ms": 1.0, "forward_fraction": 0.5, "training_ms": 2.0, "training_fraction": 0.5}
LOOPED = {"device_ms": 1.0, "device_over_lstm": 0.5, "wall_ms": 2.0}


def neurons(**figures: float) -> Row:
    return Row("neurons", CASE, "numba", "ok", "", {**FIGURES, **figures})


def test_times_of_a_cpu_are_wall_times() -> None:
    """Titles, headings and captions name the clock; a heading that says "device" is for a GPU."""
    rows = (
        neurons(),
        Row("norms", CASE, "numba", "ok", "", {"device_ms": 1.0}),
        Row("recurrent", CASE, "a", "ok", "", LOOPED),
    )
    text = read(report_of("cpu", *rows))
    assert "Neurons: wall time on the CPU, fraction of a copy's speed" in text
    assert "one layer: wall time on the CPU, forward and backward" in text
    assert "few calls: wall time, in turns of a few calls; wall: eager" in text
    assert "device" not in text
    text = read(report_of("cuda:0", *rows))
    assert "Neurons: device time, fraction of a copy's speed" in text
    assert "device: its kernels; wall: eager" in text
    assert "wall time" not in text


def test_words_are_of_what_the_table_has() -> None:
    """A title names memory, and a caption a network or a ratio, where there are such figures."""
    assert "memory" not in read(report_of("cpu", neurons()))
    assert "peak extra memory" in read(report_of("cuda", neurons(memory_inputs=1.0)))
    beside = Row("beside", CASE, "numba", "ok", "", {"forward_ms": 1.0})
    assert "SpikingJelly" not in read(report_of("cpu", beside))
    network = replace(beside, case={"network": "fc", "about": "a", "dtype": "float32", "steps": 2, "batch": 3})
    assert "inference and a training step with Adam" in read(report_of("cpu", beside, network))
    assert "as above" not in read(
        report_of("cpu", replace(neurons(), suite="layouts"), replace(neurons(), suite="steps"))
    )


def test_a_suite_that_was_skipped_is_a_line() -> None:
    """Without a table, which would have no column; a failure is said below the title."""
    pipeline = {"network": "cifar10", "about": "six layers", "dtype": "float32", "steps": 2, "batch": 3}
    text = shown(report_of("cpu", Row("pipeline", pipeline, "all", "skipped", "it is measured on GPUs")))
    assert text.strip().splitlines()[-1:] == ["A network over several GPUs: nothing measured: it is measured on GPUs"]
    text = shown(report_of("cpu", Row("pipeline", pipeline, "all", "failed", "it broke")))
    assert "A network over several GPUs: one training step with Adam" in text
    assert "all failed: it broke (cifar10 T=2 B=3)" in text
    assert "step ms" not in " ".join(text.split())


def test_peers_that_are_not_there_are_a_line_each() -> None:
    """With the reason itself, and on eighty columns in one line."""
    report = ran(replace(TINY, suites=("beside",), neurons=(), steps=(), elements=None, backends=("torch",)))
    lines = shown(report).splitlines()
    for peer in PEERS:
        assert f"{peer.name} skipped: --no-peers" in lines
