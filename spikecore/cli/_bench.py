"""``spikecore bench``: options, a progress bar, and the exit status."""

from __future__ import annotations

import gc
import logging
import time
from functools import partial
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, TypeVar

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from spikecore.bench import _run as run
from spikecore.bench._cases import Job
from spikecore.bench._plot import check_suffix
from spikecore.bench._plot import plot as draw
from spikecore.bench._report import Report, from_json
from spikecore.bench._settings import SUITES, Settings
from spikecore.cli._bench_tables import show

_Value = TypeVar("_Value")
#: The exit status of what SIGINT (2) ends: 128 + 2.
_INTERRUPTED = 130


def bench(
    suite: List[str] = typer.Option(
        ["all"],
        help="neurons, layouts, steps, small, calls, beside, documents, networks, norms, recurrent, pipeline or all; "
        "may be repeated.",
    ),
    device: str = typer.Option("auto", help="cpu, cuda or cuda:1; auto is the GPU if there is one."),
    backend: List[str] = typer.Option([], help="Measure this backend only; may be repeated."),
    neuron: List[str] = typer.Option([], help="Measure this neuron only: LIF, PLIF, own-neuron, ...; may be repeated."),
    network: List[str] = typer.Option([], help="Train this network only: fc, cifar10, ...; may be repeated."),
    form: List[str] = typer.Option(
        [], help="Train networks in this form only: eager, 'channels-last compiled CUDA graph', ...; may be repeated."
    ),
    dtype: List[str] = typer.Option([], help="float32, bfloat16, float16 or float64; may be repeated."),
    steps: List[int] = typer.Option([], help="Time steps of neuron and small-layer rows; may be repeated."),
    layout: List[str] = typer.Option(
        [], help="Of the suite steps measure this layout only: flat, odd, ...; may be repeated."
    ),
    elements: Optional[int] = typer.Option(None, help="Time steps times neurons of a neuron row; fills the device."),
    size: int = typer.Option(40, help="Neurons of a small-layer row."),
    repetitions: Optional[int] = typer.Option(
        None, help="Turns of every implementation; a figure is their median.  [9]"
    ),
    peers: bool = typer.Option(True, help="Measure SpikingJelly, snnTorch and Norse, too, where they are installed."),
    peer: List[str] = typer.Option([], help="Of other libraries measure this one only; may be repeated."),
    turn: Optional[float] = typer.Option(None, help="Seconds of a turn, at least.  [0.02; 0.05 on a CPU]"),
    workers: int = typer.Option(
        0, help="Processes that compile before anything is timed; a form of a network is set up in one of its own."
    ),
    patience: float = typer.Option(
        150.0, help="Seconds of that; kernels of other libraries that are not compiled then are not measured."
    ),
    compile_steps: Optional[int] = typer.Option(
        None,
        help="Measure torch.compile up to this many time steps, at about a second of compilation each; 0: never.  "
        "[4; 0 with --quick]",
    ),
    threads: Optional[int] = typer.Option(None, help="Threads of torch on the CPU."),
    quick: bool = typer.Option(
        False, "--quick", help="A few cases in one to three minutes, without torch.compile: rough figures."
    ),
    json: Optional[Path] = typer.Option(None, help="Write the report to this file, after every case."),
    plot: Optional[Path] = typer.Option(None, help="Draw the report to this file: .png, .svg, .pdf."),
    given: Optional[Path] = typer.Option(None, "--from", help="Measure nothing: show this report, which --json wrote."),
) -> None:
    """Measure the backends beside a copy of the data, torch.compile and other libraries.

    Spikes and gradients are checked first. Exits with 1 if a backend computes something else than the reference.
    Ctrl-C ends it with 130, after what was measured by then is shown.
    """
    try:
        for path in (json, plot):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"{path}: there is no directory {path.parent}")
            if path is not None and path.is_dir():
                raise ValueError(f"{path} is a directory; give a file in it")
        if plot is not None:
            check_suffix(plot)  # before anything is measured
        if given is not None and json is not None:
            raise ValueError(f"--json {json}: with --from nothing is measured, and there is nothing to write")
        if threads is not None:
            if threads < 1:
                raise ValueError(f"threads={threads} must be 1 or more")
            torch.set_num_threads(threads)
        settings = Settings(
            suites=_suites(suite),
            device=device,
            backends=_each_once(backend),
            peers=peers,
            neurons=_each_once(neuron),
            dtypes=_each_once(dtype),
            steps=_each_once(steps),
            layouts=_each_once(layout),
            elements=elements,
            size=size,
            networks=_each_once(network),
            forms=_each_once(form),
            peer_names=_each_once(peer),
            turn=turn,
            workers=workers,
            patience=patience,
            compile_steps=compile_steps,
            repetitions=repetitions,
            quick=quick,
        )
        settings.check_use()
        if given is not None:
            settings.check_shown()
        report, jobs = run.prepare(settings) if given is None else (_read(given), [])
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error
    logging.getLogger("torch._library").setLevel(logging.ERROR)  # says on a CPU that there is no Triton
    ended = _measure(report, jobs, json) if given is None else True
    console = Console()
    show(report, console)
    if plot is not None:
        draw(report, plot)
    if not ended:
        raise typer.Exit(_INTERRUPTED)
    wrong = sorted({row.implementation for row in report.rows if row.status == "wrong"})
    if wrong:
        console.print(Text(f"not timed, because what it computes is wrong: {', '.join(wrong)}", style="bold red"))
        raise typer.Exit(1)


def _suites(named: Sequence[str]) -> Tuple[str, ...]:
    """The suites to measure; names beside ``all`` are checked, too."""
    if "all" not in named:
        return _each_once(named)
    return _each_once([*SUITES, *(name for name in named if name != "all")])


def _each_once(values: Sequence[_Value]) -> Tuple[_Value, ...]:
    """What is named twice is measured once."""
    return tuple(dict.fromkeys(values))


def _read(path: Path) -> Report:
    """The report in a file. Raises ValueError, naming the file, for one that holds something else."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--from {path}: this is no report that spikecore bench --json wrote ({error})") from error


def _measure(report: Report, jobs: List[Job], json: Optional[Path]) -> bool:
    """Measure under a progress bar, or line by line into a file. Ctrl-C ends it and keeps what there is: False then."""
    gc.freeze()  # what is there now stays: a collection between two cases then takes milliseconds
    console, began = Console(stderr=True), time.perf_counter()
    save = None if json is None else partial(Report.write, path=json)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs))

        def show(label: str, done: int, of: int) -> None:
            progress.update(task, completed=done, description=label)
            if not console.is_terminal:
                line = f"{time.perf_counter() - began:7.1f} s  {done + 1} of {of}  {label}"
                console.print(Text(line), soft_wrap=True)

        try:
            run.measure(report, jobs, show, save)
        except KeyboardInterrupt:
            return False
    return True
