"""``spikecore bench``: the command of the distribution spikecore-bench."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


def bench(**options: Any) -> None:
    """Measure, or show a report: :func:`spikecore_bench.command.bench`."""
    try:
        import_module("spikecore_bench")
    except ModuleNotFoundError as error:
        needs = "spikecore bench needs spikecore-bench: pip install ./plugins/spikecore-bench, in a clone of spikecore"
        raise click.UsageError(needs) from error
    import_module("spikecore_bench.command").bench(**options)
