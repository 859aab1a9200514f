"""``spikecore conformance``: the suite from the shell."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from spikecore.backend import BackendError, BackendLoadError, BackendUnavailable, UnknownBackend
from spikecore.cli import STDOUT
from spikecore.plugins.registry import default_registry
from spikecore.testing import CASES, Report, Result, examine
from spikecore.testing.reports import (
    CONFORMS,
    DOES_NOT_CONFORM,
    NOT_TESTED,
    OUTCOMES,
    PARTIAL,
    Changes,
    badge,
    cases_of,
    changes,
    junit,
    markdown,
    merge,
)

#: Columns that are always there; other outcomes have one where they occur.
_ALWAYS = ("passed", "xfailed", "unsupported", "failed")
_STYLES = {
    "passed": "green",
    "unsupported": "cyan",
    "failed": "red",
    "error": "red",
    "stale": "red",
    "xfailed": "yellow",
    "unavailable": "bold yellow",
}
_VERDICTS = {
    CONFORMS: "bold green",
    PARTIAL: "bold yellow",
    NOT_TESTED: "bold yellow",
    DOES_NOT_CONFORM: "bold red",
}


def conformance(
    name: Optional[str],
    tier: Sequence[str],
    case: Sequence[str],
    list_cases: bool,
    device: Optional[str],
    seed: Optional[int],
    require: bool,
    as_json: Optional[str],
    junit_file: Optional[Path],
    badge_file: Optional[Path],
    compare: Optional[Path],
    merged: Sequence[Path],
    as_text: bool,
) -> None:
    """Run or merge what was asked for, show the report, and write it."""
    if seed is not None:
        os.environ["SPIKECORE_SEED"] = str(seed)  # where selection and verdict read it
    try:
        if name is not None and not merged:
            with suppress(BackendLoadError, BackendUnavailable):  # what else is wrong is the report's to say
                default_registry().check(name, "the command line")
        if list_cases:
            _list(name, tier, case)
            return
        if as_text and as_json == STDOUT:
            raise ValueError("--report and --json both print; name a file, as in: --json run.json")
        if name is None and not merged:
            raise click.UsageError("name a backend, as in: spikecore conformance torch")
        json_file = None if as_json in (None, STDOUT) else Path(as_json)
        _can_write({"--json": json_file, "--junit": junit_file, "--badge": badge_file})
        if compare is not None:
            changes(compare, [])  # a wrong file is said before minutes of work
        if merged:
            report = _merge(name, merged, tier or case or device, require)
        else:
            report = _run(str(name), tier, case, as_text or as_json == STDOUT, require, device)
        changed = None if compare is None else changes(compare, report.results)
    # a tier, a case, a device or an earlier report that there is not, or no backend of this name
    except (ValueError, UnknownBackend) as error:
        raise click.UsageError(str(error)) from error
    facts = json.dumps({**report.as_dict(), **({"changes": changed._asdict()} if changed else {})}, indent=2)
    files = {} if json_file is None else {json_file: f"{facts}\n"}
    files.update({path: form(report) for path, form in ((junit_file, junit), (badge_file, badge)) if path})
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    written = [f"wrote {path}" for path in files]
    if as_json == STDOUT:
        click.echo(facts)
    elif as_text:
        click.echo(markdown(report), nl=False)
    else:
        _show(report, changed)
    for line in written:
        click.echo(line, err=True)
    code = 1 if changed is not None and changed.worse else report.exit_code
    if code:
        raise click.exceptions.Exit(code)


def _merge(name: Optional[str], files: Sequence[Path], chosen: Any, require: bool) -> Report:
    if chosen:
        raise ValueError("--merge runs nothing: leave --tier, --case and --device out")
    report = merge(files, require)
    if name not in (None, report.backend):
        raise ValueError(f"--merge: the reports are of backend {report.backend!r}, not of {name!r}")
    return report


def _can_write(files: Mapping[str, Optional[Path]]) -> None:
    """Raise ``ValueError`` where the file of an option cannot be written, before minutes of work."""
    for option, path in files.items():
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it first")
        if path is not None and path.is_dir():
            raise ValueError(f"{option} {path}: that is a folder; name a file")


def _run(name: str, tier: Sequence[str], case: Sequence[str], quiet: bool, require: bool, device: Any) -> Report:
    def run(progress: Optional[Callable[[Result], None]]) -> Report:
        return examine(
            name, tiers=tier or None, cases=case or None, require=require or None, device=device, progress=progress
        )

    if quiet:
        return run(None)
    if not sys.stdout.isatty():
        # a line for each case as it ends, which echo flushes
        return run(lambda r: click.echo(f"{r.outcome:11} {r.tier:10} {r.id}  {r.seconds:.2f} s"))
    total = 0
    with suppress(BackendError):  # the run says what is wrong with a plugin's cases
        total = len(cases_of(name).select(tier or None, case or None))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=total)
        return run(lambda result: progress.update(task, advance=1, description=result.id))


def _list(name: Optional[str], tier: Sequence[str], case: Sequence[str]) -> None:
    # a line for each case where a program reads them; a terminal wraps them
    console = Console(soft_wrap=not sys.stdout.isatty())
    for each in (CASES if name is None else cases_of(name)).select(tier or None, case or None):
        console.print(Text(f"{each.id:42} {each.tier:10} ", style="bold").append(Text(each.holds, style="not bold")))


# -- on a screen


def _show(report: Report, changed: Optional[Changes]) -> None:
    """Print what was tested, a line per tier, what was excused or refused, what is wrong, and the verdict."""
    console = Console()
    for line in _heading(report):
        console.print(Text(line, style="dim"))
    if report.device:
        console.print(_table(report))
    for outcome, title in (("xfailed", "Expected failures"), ("unsupported", "Unsupported")):
        _reasons(console, title, [result for result in report.results if result.outcome == outcome])
    for result in report.results:
        if not result.ok:
            console.print(Text(f"\n{result.outcome.upper()} {result.id}", style="bold red"))
            console.print(Text(result.message), soft_wrap=True)
    if changed is not None:
        console.print(Text("\nsince the earlier report", style="bold"))
        for line in changed.sentences(report.verdict.word):
            console.print(Text(f"  {line}", style="red" if line.startswith("worse") else ""))
    console.print(_verdict(report))


def _heading(report: Report) -> List[str]:
    versions = dict(report.versions)
    distribution = versions.pop("distribution")
    words = [f"{name} {version}" for name, version in versions.items()]
    if distribution and not distribution.startswith("spikecore "):
        words.insert(0, distribution)
    device = f"{report.device} ({report.device_name})" if report.device_name != report.device else report.device
    seeds = [f"seed of {name}: {seed}" for name, seed in report.seeds.items()]
    return [", ".join(words), "; ".join(filter(None, [device, report.date, *seeds]))]


def _verdict(report: Report) -> Text:
    verdict = report.verdict
    link = " " if verdict.word in (CONFORMS, DOES_NOT_CONFORM) else ": "
    style = _VERDICTS[CONFORMS if verdict.clean else verdict.word]
    said = Text(f"\nbackend {report.backend!r}{link}{verdict.headline()}", style=style)
    lines = [] if verdict.word == DOES_NOT_CONFORM else verdict.sentences()
    if verdict.clean:
        lines.append("exit code 0: nothing failed; the verdict is partial, since the rest of the suite did not run")
    for line in lines:
        said.append(f"\n  {line}", style="not bold")
    return said


def _table(report: Report) -> Table:
    table = Table(title=f"conformance of backend {report.backend!r}", show_footer=True)
    counts = report.counts()
    shown = [outcome for outcome in OUTCOMES if outcome in _ALWAYS or counts[outcome]]
    table.add_column("tier", footer="all")
    for outcome in shown:
        style = _STYLES[outcome] if counts[outcome] else "dim"
        table.add_column(outcome, footer=str(counts[outcome]), justify="right", style=style, no_wrap=True)
    table.add_column("seconds", footer=f"{report.seconds:.1f}", justify="right", style="dim")
    for tier in report.tiers():
        of_tier = report.counts(tier)
        seconds = sum(result.seconds for result in report.results if result.tier == tier)
        table.add_row(tier, *(str(of_tier[outcome] or "") for outcome in shown), f"{seconds:.1f}")
    return table


def _reasons(console: Console, title: str, results: Sequence[Result]) -> None:
    if not results:
        return
    by_reason: Dict[str, List[str]] = {}
    for result in results:
        why = ", ".join(result.lacking) if result.lacking else result.message
        by_reason.setdefault(why, []).append(result.id)
    table = Table(title=title)
    table.add_column("capability" if results[0].lacking else "reason", overflow="fold")
    table.add_column("cases", justify="right")
    table.add_column("ids", overflow="fold")
    for why, ids in by_reason.items():
        table.add_row(Text(why), str(len(ids)), Text(", ".join(ids[:6]) + (", ..." if len(ids) > 6 else "")))
    console.print(table)
