"""``spikecore check``: a file of NIR in another library."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional, Sequence

import click

import spikecore as sc
from spikecore.cli._named import shape as sizes


def check(
    file: Path, against: str, shape: Optional[str], scales: Sequence[float], seed: int, as_json: bool, **reading: Any
) -> None:
    """Print the comparison. Exit code 0: equal, 1: a node differs, 2: nothing is known."""
    try:
        size = None if shape is None else sizes(shape)
        report = sc.nir.check(file, against, shape=size, scales=scales, seed=seed, **reading)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    facts = {**asdict(report), "first": report.first and report.first.name}
    facts.update(silent=report.silent, equal=report.equal)
    click.echo(json.dumps(facts, indent=2) if as_json else str(report))
    raise click.exceptions.Exit(0 if report.equal else 1 if report.first else 2)
