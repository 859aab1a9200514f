"""``spikecore bench``: options, a progress bar, and the exit status."""

from __future__ import annotations

import gc
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any, List, Optional

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from spikecore_bench import run
from spikecore_bench.cases import Job
from spikecore_bench.plot import check_suffix
from spikecore_bench.plot import plot as draw
from spikecore_bench.report import Report, from_json
from spikecore_bench.settings import SUITES, Settings
from spikecore_bench.tables import show


def bench(
    json: Optional[Path], plot: Optional[Path], given: Optional[Path], threads: Optional[int], **chosen: Any
) -> None:
    """Measure under ``Settings(**chosen)``, or read a report; show it, and draw it."""
    try:
        for path in (json, plot):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"{path}: there is no directory {path.parent}")
        if plot is not None:
            check_suffix(plot)  # before anything is measured
        if given is not None and json is not None:
            raise ValueError(f"--json {json}: with --from nothing is measured, and there is nothing to write")
        if threads is not None:
            torch.set_num_threads(threads)
        if "all" in chosen["suites"]:  # names beside it are checked, too
            chosen["suites"] = (*SUITES, *(name for name in chosen["suites"] if name != "all"))
        # what is named twice is measured once
        chosen = {name: tuple(dict.fromkeys(x)) if isinstance(x, tuple) else x for name, x in chosen.items()}
        settings = Settings(**chosen)
        settings.check_use()
        if given is not None:
            settings.check_shown()
        report, jobs = run.prepare(settings) if given is None else (_read(given), [])
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        raise click.UsageError(str(error)) from error
    logging.getLogger("torch._library").setLevel(logging.ERROR)  # says on a CPU that there is no Triton
    ended = _measure(report, jobs, json) if given is None else True
    console = Console()
    show(report, console)
    if plot is not None:
        draw(report, plot)
    if not ended:
        raise KeyboardInterrupt  # the command ends as it ends any other that Ctrl-C stops
    wrong = sorted({row.implementation for row in report.rows if row.status == "wrong"})
    if wrong:
        console.print(Text(f"not timed, because what it computes is wrong: {', '.join(wrong)}", style="bold red"))
        raise click.exceptions.Exit(1)


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
