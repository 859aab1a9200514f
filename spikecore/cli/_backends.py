"""``spikecore backends``: the installed backends, a line each, with details under it."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import List

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from spikecore._base.descriptions import BackendStatus
from spikecore._base.errors import BackendError
from spikecore.plugins.selection import AUTO, automatic_order
from spikecore.plugins.selection import backends as list_backends

_COLOURS = {"ready": "green", "unavailable": "yellow", "failed": "red", "blocked": "dim", "shadowed": "yellow"}


def backends(probe: bool, as_json: bool) -> None:
    """Print the list."""
    with redirect_stdout(sys.stderr):  # a plugin that prints while it is imported must not spoil the list
        try:
            rows = list_backends(probe)
        except BackendError as error:  # an environment variable has a wrong value
            raise click.UsageError(str(error)) from error
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
