"""``spikecore conformance``: the suite from the shell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from typer.core import TyperCommand

from spikecore._plugins.registry import default_registry
from spikecore.backend import BackendError, UnknownBackend
from spikecore.cli._conformance_tables import show
from spikecore.testing._badge import badge
from spikecore.testing._case import TIERS
from spikecore.testing._cases import CASES
from spikecore.testing._changes import Changes, changes
from spikecore.testing._junit import junit
from spikecore.testing._own import cases_of
from spikecore.testing._report import Report, examine
from spikecore.testing._result import Result

_TIER_HELP = f"Run this tier; may be repeated. {', '.join(TIERS)}."
#: ``--json`` alone: standard output.
_STDOUT = "-"


class Command(TyperCommand):
    """Takes ``--json`` with and without a file. A word after it is a file if it is ``-`` or ends in ``.json``: else
    ``--json mine`` would write a file of the name of the backend.
    """

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        """The arguments, with standard output where ``--json`` names no file."""
        made: List[str] = []
        for i, word in enumerate(args):
            made.append(word)
            following = args[i + 1] if i + 1 < len(args) else ""
            if word == "--json" and following != _STDOUT and not following.endswith(".json"):
                made.append(_STDOUT)
        return list(super().parse_args(ctx, made))


def conformance(
    name: Optional[str] = typer.Argument(None, help="The backend to test.", show_default=False),
    tier: List[str] = typer.Option([], "--tier", metavar="TIER", help=_TIER_HELP),
    case: List[str] = typer.Option(
        [],
        "--case",
        metavar="ID",
        help="Run this case, or those of a pattern: 'gradient/*'; may be repeated, and keeps the order.",
    ),
    device: Optional[str] = typer.Option(
        None, "--device", metavar="DEVICE", help="Torch device; the CPU if the backend takes it, else its first."
    ),
    require: bool = typer.Option(
        False, "--require", help="A backend that cannot be tested is a failure (also: SPIKECORE_REQUIRE)."
    ),
    as_json: Optional[str] = typer.Option(
        None,
        "--json",
        metavar="[FILE.json]",
        help="Write the report as JSON; without a file, print it and nothing else.",
    ),
    junit_file: Optional[Path] = typer.Option(None, "--junit", metavar="FILE", help="Write the report as JUnit XML."),
    badge_file: Optional[Path] = typer.Option(
        None, "--badge", metavar="FILE", help="Write the verdict as an SVG badge."
    ),
    compare: Optional[Path] = typer.Option(
        None, "--compare", metavar="OLD.json", help="Say what changed since this report; what got worse is a failure."
    ),
    seed: Optional[int] = typer.Option(
        None,
        "--seed",
        metavar="N",
        min=0,
        help="Draw generated and random cases from this seed (also: SPIKECORE_SEED).",
    ),
    list_cases: bool = typer.Option(False, "--list", help="List the cases and what must hold; run nothing."),
    write_support: Optional[str] = typer.Option(
        None,
        "--write-support",
        metavar="FILE",
        help="Run NAME, or every usable backend, and remake its column of the support table in this file.",
    ),
) -> None:
    """Check that a backend computes what the equations say.

    Exit codes:
    0: it conforms: the whole default suite ran, and every core case passed;
    1: it does not conform;
    2: an argument is wrong;
    3: partial: nothing is wrong, and something was left out;
    4: not tested: nothing passed.
    """
    if seed is not None:
        os.environ["SPIKECORE_SEED"] = str(seed)  # where selection and verdict read it
    try:
        if name is not None:
            _known(name)
        if list_cases:
            _list(name, tier, case)
            return
        if write_support is not None:
            from spikecore.testing._support import make_support

            page = Path(write_support)
            have = page.read_text(encoding="utf-8") if page.exists() else ""
            page.write_text(make_support(have, [name] if name else None), encoding="utf-8")
            return
        if name is None:
            raise typer.BadParameter("name a backend, as in: spikecore conformance torch")
        if compare is not None:
            changes(compare, [])  # a wrong file is said before minutes of work
        report = _run(name, tier, case, as_json == _STDOUT, require, device)
        changed = None if compare is None else changes(compare, report.results)
    # a tier, a case, a device or an earlier report that there is not, or no backend of this name
    except (ValueError, UnknownBackend) as error:
        raise typer.BadParameter(str(error)) from error
    _write(report, changed, as_json, junit_file, badge_file)
    if as_json == _STDOUT:
        typer.echo(_as_json(report, changed))
    else:
        show(report, changed)
    code = 1 if changed is not None and changed.worse else report.exit_code
    if code:
        raise typer.Exit(code)


def _known(name: str) -> None:
    """Raise ``UnknownBackend`` if there is none of this name; what else is wrong with it is the report's to say."""
    try:
        default_registry().info(name, "the command line")
    except UnknownBackend:
        raise
    except BackendError:
        return


def _as_json(report: Report, changed: Optional[Changes]) -> str:
    facts = report.as_dict()
    if changed is not None:
        facts["changes"] = changed._asdict()
    return json.dumps(facts, indent=2)


def _write(
    report: Report,
    changed: Optional[Changes],
    as_json: Optional[str],
    junit_file: Optional[Path],
    picture: Optional[Path],
) -> None:
    if as_json is not None and as_json != _STDOUT:
        Path(as_json).write_text(f"{_as_json(report, changed)}\n", encoding="utf-8")
    if junit_file is not None:
        junit_file.write_text(junit(report), encoding="utf-8")
    if picture is not None:
        picture.write_text(badge(report), encoding="utf-8")


def _run(
    name: str, tier: Sequence[str], case: Sequence[str], quiet: bool, require: bool, device: Optional[str]
) -> Report:

    def run(progress: Optional[Callable[[Result], None]]) -> Report:
        return examine(
            name, tiers=tier or None, cases=case or None, require=require or None, device=device, progress=progress
        )

    if quiet:
        return run(None)
    if not sys.stdout.isatty():
        return run(_line)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=_total(name, tier, case))
        return run(lambda result: progress.update(task, advance=1, description=result.id))


def _total(name: str, tier: Sequence[str], case: Sequence[str]) -> int:
    try:
        return len(cases_of(name).select(tier or None, case or None))
    except BackendError:  # the run says what is wrong with a plugin's cases
        return 0


def _line(result: Result) -> None:
    """A case as it ends, for a log."""
    typer.echo(f"{result.outcome:11} {result.tier:10} {result.id}  {result.seconds:.2f} s")  # which flushes


def _list(name: Optional[str], tier: Sequence[str], case: Sequence[str]) -> None:
    # a line for each case where a program reads them; a terminal wraps them
    console = Console(soft_wrap=not sys.stdout.isatty())
    for one in (CASES if name is None else cases_of(name)).select(tier or None, case or None):
        console.print(Text(f"{one.id:42} {one.tier:10} ", style="bold").append(Text(one.holds, style="not bold")))
