"""``spikecore check``: a file of NIR in another library."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import click

import spikecore as sc
from spikecore.cli._named import shape as sizes


def check(
    file: Path,
    against: str,
    shape: Optional[str],
    scales: Sequence[float],
    seed: int,
    as_json: bool,
    convention: Optional[str],
    **reading: Any,
) -> None:
    """Print the comparison. Exit code 0: equal, 1: a node differs, 2: nothing is known."""
    try:
        size = None if shape is None else sizes(shape)
        reading["convention"] = convention if convention is None else _convention(convention)
        report = sc.nir.check(file, against, shape=size, scales=scales, seed=seed, **reading)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    facts = {**asdict(report), "first": report.first and report.first.name}
    facts.update(silent=report.silent, equal=report.equal)
    click.echo(json.dumps(facts, indent=2) if as_json else str(report))
    raise click.exceptions.Exit(0 if report.equal else 1 if report.first else 2)


def _convention(text: str) -> Any:
    """A name, or a name and fields: ``sinabs,lif=jump``."""
    name, *fields = text.split(",")
    if not fields:
        return name
    known, flags = sc.nir.CONVENTIONS.get(name), {"yes": True, "no": False}
    pairs = [field.partition("=") for field in fields]
    if known is None or not all(key in asdict(known) for key, _, _ in pairs):
        what = f"{', '.join(sc.nir.CONVENTIONS)}, and fields of sc.nir.Convention"
        raise ValueError(f"--convention {text!r} must be one of {what}, as in sinabs,lif=jump,many=no")
    values: Dict[str, Any] = {key: flags.get(value, float(value) if key == "dt" else value) for key, _, value in pairs}
    return replace(known, **values)
