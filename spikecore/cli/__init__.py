"""The ``spikecore`` command.

Rules of this module:

- Typer and Rich are imported here and nowhere else.
- Options are default values: before Python 3.10 Typer sees no ``Annotated`` behind postponed annotations.
- A command calls the library and shows the result; ``--json`` prints the same facts for programs, and nothing else.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import List

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import spikecore
from spikecore._plugins.registry import BackendStatus
from spikecore._plugins.selection import AUTO, automatic_order
from spikecore._plugins.selection import backends as list_backends
from spikecore.cli._bench import bench
from spikecore.cli._cache import show_cache
from spikecore.cli._conformance import ConformanceCommand, conformance
from spikecore.cli._explain import explain
from spikecore.cli._kernels import kernel
from spikecore.cli._new_backend import new_backend
from spikecore.cli._plugins_page import plugins_page

app = typer.Typer(name="spikecore", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

#: Columns of a screen that a table of backends needs.
_WIDE = 120
_COLOURS = {"ready": "green", "unavailable": "yellow", "failed": "red", "blocked": "dim", "shadowed": "yellow"}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spikecore {spikecore.__version__}")
        raise typer.Exit


# Without a callback, Typer makes an only command the program itself instead of a subcommand.
@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Spiking neurons, written once as equations, run on every accelerator."""


@app.command()
def backends(
    as_json: bool = typer.Option(False, "--json", help="Print JSON: a list with one object per backend."),
    probe: bool = typer.Option(False, "--probe", help="Load each backend and try whether it works here."),
) -> None:
    """List the installed backends. Imports none of them, unless --probe."""
    with redirect_stdout(sys.stderr):  # a plugin that prints while it is imported must not spoil the list
        try:
            rows = list_backends(probe)
        except spikecore.BackendError as error:  # an environment variable has a wrong value
            raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    console = Console()
    console.print(_table(rows) if console.width >= _WIDE else _lines(rows))
    console.print(Text(f"chosen automatically, the first that works: {_order()}"), soft_wrap=console.width >= _WIDE)


app.command(cls=ConformanceCommand)(conformance)
app.command("new-backend")(new_backend)
app.command("plugins-page")(plugins_page)
app.command()(bench)
app.command()(kernel)
app.command()(explain)
app.command("cache")(show_cache)


def _order() -> str:
    """The orders of automatic choice, in words."""
    each = [f"{device}: {', '.join(automatic_order(device))}" for device in sorted(AUTO)]
    return "; ".join([*each, f"other devices: {', '.join(automatic_order('other'))}"])


def _lines(rows: List[BackendStatus]) -> Group:
    """The list where a table would break words: a line for each backend, and its details under it."""
    lines: List[RenderableType] = []
    for row in rows:
        line = Text(f"{row.name} ").append(row.state, style=_COLOURS.get(row.state, ""))
        lines.append(line.append(f" ({row.distribution} {row.version})" if row.distribution else ""))
        for heading, words in (("", row.detail), ("devices: ", row.devices), ("can: ", row.capabilities)):
            text = words if isinstance(words, str) else ", ".join(words)
            if text:
                lines.append(Padding(Text(heading + text), (0, 0, 0, 4)))
    return Group(*lines)


def _table(rows: List[BackendStatus]) -> Table:
    table = Table()
    for heading in ("name", "state", "provided by", "devices", "capabilities", "detail"):
        table.add_column(heading, no_wrap=heading in ("name", "state"), overflow="fold")
    for row in rows:
        table.add_row(
            # Text, because Rich would read the brackets of "spikecore[cuda12]" as markup
            Text(row.name),
            Text(row.state, style=_COLOURS.get(row.state, "")),
            Text(f"{row.distribution} {row.version}".strip()),
            Text(", ".join(row.devices)),
            Text(", ".join(row.capabilities)),
            Text(row.detail),
        )
    return table


def main() -> None:
    """Entry point of the console script."""
    app()
