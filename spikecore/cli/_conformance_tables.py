"""A report on a screen."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spikecore.testing._changes import Changes
from spikecore.testing._report import Report
from spikecore.testing._result import OUTCOMES, Result
from spikecore.testing._verdict import CONFORMS, DOES_NOT_CONFORM, NOT_TESTED, PARTIAL

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


def show(report: Report, changed: Optional[Changes] = None) -> None:
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
    own = versions.pop("distribution")
    words = [f"{name} {version}" for name, version in versions.items()]
    if own and not own.startswith("spikecore "):
        words.insert(0, own)
    device = f"{report.device} ({report.device_name})" if report.device_name != report.device else report.device
    seeds = [f"seed of {name}: {seed}" for name, seed in report.seeds.items()]
    return [", ".join(words), "; ".join(filter(None, [device, report.date, *seeds]))]


def _verdict(report: Report) -> Text:
    verdict = report.verdict
    link = {CONFORMS: " ", DOES_NOT_CONFORM: " "}.get(verdict.word, ": ")
    said = Text(f"\nbackend {report.backend!r}{link}{verdict.word}", style=_VERDICTS[verdict.word])
    if verdict.word == DOES_NOT_CONFORM:
        return said.append(f": {verdict.wrong} of {verdict.total} cases")
    said.append(f": {verdict.passed} cases passed, of {verdict.suite}" if verdict.passed else ": nothing passed")
    for line in verdict.left_out.sentences():
        said.append(f"\n  {line}", style="not bold")
    return said


def _table(report: Report) -> Table:
    table = Table(title=f"conformance of backend {report.backend!r}", show_footer=True)
    counts = report.counts()
    shown = [one for one in OUTCOMES if one in _ALWAYS or counts[one]]
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
