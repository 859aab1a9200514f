"""``spikecore backends``: the installed backends, a line each, with details under it."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Optional

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spikecore._base.contract import BackendError, BackendStatus
from spikecore.plugins.selection import AUTO, automatic_order
from spikecore.plugins.selection import backends as list_backends

_COLOURS = {"ready": "green", "unavailable": "yellow", "failed": "red", "blocked": "dim", "shadowed": "yellow"}


def backends(probe: bool, as_json: bool, numbers: bool, into: Optional[Path]) -> None:
    """Print the list, or what arithmetic costs on each of them."""
    if into is not None and not numbers:
        raise click.UsageError(f"--into {into} is where --numbers writes its files: add --numbers")
    if into is not None and not into.is_dir():
        raise click.UsageError(f"--into {into}: there is no such folder; make it first")
    probe = probe or numbers
    with redirect_stdout(sys.stderr):  # a plugin that prints while it is imported must not spoil the list
        try:
            rows = list_backends(probe)
        except BackendError as error:  # an environment variable has a wrong value
            raise click.UsageError(str(error)) from error
    if numbers:
        _numbers([row for row in rows if row.state == "ready"], as_json, into)
        return
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    console = Console()
    console.print(_lines(rows))
    orders = [f"{device}: {', '.join(automatic_order(device))}" for device in sorted(AUTO)]
    orders.append(f"other devices: {', '.join(automatic_order('other'))}")
    console.print(Text(f"chosen automatically, the first that works: {'; '.join(orders)}"))


def _lines(rows: List[BackendStatus]) -> Group:
    """A line for each backend, and its details under it."""
    lines: List[RenderableType] = []
    for row in rows:
        line = Text(f"{row.name} ").append(row.state, style=_COLOURS.get(row.state, ""))
        lines.append(line.append(f" ({row.distribution} {row.version})" if row.distribution else ""))
        for heading, words in (("", row.detail), ("devices: ", row.devices), ("can: ", row.capabilities)):
            text = words if isinstance(words, str) else ", ".join(words)
            if text:
                lines.append(Padding(Text(heading + text), (0, 0, 0, 4), expand=False))
    return Group(*lines)


def _numbers(rows: List[BackendStatus], as_json: bool, into: Optional[Path]) -> None:
    """Measure each backend on each of its devices that is here; print it, or write a file for each."""
    from spikecore.testing.numbers import devices_here, file_name, measure  # which imports torch and the suite

    reports: List[Dict[str, Any]] = []
    for row in rows:
        for device in devices_here(row.devices):
            reports.append(measure(row.name, device))
            if into is not None:
                path = into / file_name(reports[-1])
                path.write_text(json.dumps(reports[-1], indent=2) + "\n", encoding="utf-8")
                click.echo(f"wrote {path}", err=True)
            if not as_json:
                _show(reports[-1])
    if as_json:
        click.echo(json.dumps(reports, indent=2))


def _show(report: Dict[str, Any]) -> None:
    from spikecore.testing.numbers import COLUMNS, contraction, table

    where, by = report["device"], report["versions"].get("by")
    shown = Table(*COLUMNS, title=f"{report['backend']} on {where['device']}: {by or where['name']}")
    for row in table(report):
        shown.add_row(*map(Text, row))
    console = Console()
    console.print(shown)
    console.print(Text(contraction(report)))
