"""``spikecore conformance``: the suite from the shell.

Options are default values, not ``Annotated``: see :mod:`spikecore.cli`, which registers the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from spikecore.backend import BackendError
from spikecore.testing.case import TIERS
from spikecore.testing.cases import CASES
from spikecore.testing.own import cases_of
from spikecore.testing.runner import OUTCOMES, Result, check_backend, conforms

#: Columns that are always there; other outcomes have one where they occur.
_ALWAYS = ("passed", "xfailed", "unsupported", "failed")
_STYLES = {"failed": "red", "error": "red", "stale": "red", "xfailed": "yellow", "unavailable": "bold yellow"}
_TIER_HELP = f"Run this tier only; may be repeated: {', '.join(TIERS)}."
_WHERE = {"passed": "green", "unsupported": "cyan"}


def conformance(
    name: Optional[str] = typer.Argument(None, help="The backend to test."),
    tier: List[str] = typer.Option([], help=_TIER_HELP),
    case: List[str] = typer.Option(
        [], help="Run this case only, or those of a pattern: 'gradient/*'; may be repeated."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: the results and their counts, and nothing else."),
    require: bool = typer.Option(
        False, "--require", help="An unusable backend is a failure (also: SPIKECORE_REQUIRE)."
    ),
    device: Optional[str] = typer.Option(None, help="Torch device; the CPU if the backend takes it, else its first."),
    list_cases: bool = typer.Option(False, "--list", help="List the cases and what must hold; run nothing."),
    write_support: Optional[str] = typer.Option(
        None, help="Run NAME, or every usable backend, and remake its column of the support table in this file."
    ),
) -> None:
    """Check that a backend computes what the equations say. Exits with 1 if it does not."""
    try:
        if list_cases:
            _list(name, tier, case)
            return
        if write_support is not None:
            from spikecore.testing.support import make_support

            page = Path(write_support)
            have = page.read_text(encoding="utf-8") if page.exists() else ""
            page.write_text(make_support(have, [name] if name else None), encoding="utf-8")
            return
        if name is None:
            raise typer.BadParameter("name a backend, as in: spikecore conformance torch")
        results = _run(name, tier, case, as_json, require, device)
    except ValueError as error:  # a tier or a case that there is not
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(report(name, results), indent=2))
    else:
        _show(name, results)
    if not conforms(results):
        raise typer.Exit(1)


def _run(
    name: str, tier: Sequence[str], case: Sequence[str], quiet: bool, require: bool, device: Optional[str]
) -> List[Result]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task(name, total=_total(name, tier, case))

        def done(result: Result) -> None:
            progress.update(task, advance=1, description=result.id)

        return check_backend(
            name, tiers=tier or None, cases=case or None, require=require or None, device=device, progress=done
        )


def _total(name: str, tier: Sequence[str], case: Sequence[str]) -> int:
    try:
        return len(cases_of(name).select(tier or None, case or None))
    except BackendError:  # the run says what is wrong with a plugin's cases
        return 0


def report(name: str, results: Sequence[Result]) -> Dict[str, object]:
    """The facts of a run, for programs."""
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in OUTCOMES}
    return {
        "backend": name,
        "conforms": conforms(results),
        "counts": counts,
        "seconds": round(sum(result.seconds for result in results), 3),
        "results": [result.as_dict() for result in results],
    }


def _list(name: Optional[str], tier: Sequence[str], case: Sequence[str]) -> None:
    console = Console()
    for one in (CASES if name is None else cases_of(name)).select(tier or None, case or None):
        console.print(Text(f"{one.id:42} {one.tier:10} ", style="bold").append(Text(one.holds, style="not bold")))


def _show(name: str, results: Sequence[Result]) -> None:
    console = Console()
    console.print(_table(name, results))
    for outcome, title in (("xfailed", "Expected failures"), ("unsupported", "Unsupported")):
        _reasons(console, title, [result for result in results if result.outcome == outcome])
    for result in results:
        if result.outcome == "unavailable":
            console.print(Text(f"NOT TESTED: {result.message}", style=_STYLES["unavailable"]))
    wrong = [result for result in results if not result.ok]
    for result in wrong:
        console.print(Text(f"\n{result.outcome.upper()} {result.id}", style="bold red"))
        console.print(Text(result.message))
    if wrong:
        console.print(
            Text(f"\nbackend {name!r} does not conform: {len(wrong)} of {len(results)} cases", style="bold red")
        )
    elif any(result.outcome == "passed" for result in results):
        console.print(Text(f"backend {name!r} conforms", style="bold green"))


def _table(name: str, results: Sequence[Result]) -> Table:
    table = Table(title=f"conformance of backend {name!r}", show_footer=True)
    tiers = [tier for tier in TIERS if any(result.tier == tier for result in results)]
    rows = [[result for result in results if result.tier == tier] for tier in tiers]
    shown = [one for one in OUTCOMES if one in _ALWAYS or any(result.outcome == one for result in results)]
    table.add_column("tier", footer="all")
    for outcome in shown:
        total = sum(result.outcome == outcome for result in results)
        style = _STYLES.get(outcome, _WHERE.get(outcome, "")) if total else "dim"
        table.add_column(outcome, footer=str(total), justify="right", style=style, no_wrap=True)
    table.add_column("seconds", footer=f"{sum(r.seconds for r in results):.1f}", justify="right", style="dim")
    for tier, row in zip(tiers, rows):
        counts = [str(sum(result.outcome == outcome for result in row) or "") for outcome in shown]
        table.add_row(tier, *counts, f"{sum(result.seconds for result in row):.1f}")
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
