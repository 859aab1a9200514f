"""``spikecore cache``: the folder of compiled kernels."""

from __future__ import annotations

import json

import click

from spikecore.kernels import cache as kept


def cache(clear: bool, as_json: bool) -> None:
    """Show or remove the compiled kernels."""
    try:
        limit = kept.limit()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    reason = kept.reason()
    folder = None if reason else str(kept.folder())
    if clear:
        files, size = kept.clear()
        if as_json:
            click.echo(json.dumps({"folder": folder, "removed": {"files": files, "bytes": size}}, indent=2))
        else:
            click.echo(f"removed {files} files, {_mib(size)}, from {folder}" if folder else _unusable(reason))
        return
    kinds = kept.kinds()
    if as_json:
        by_kind = {name: {"files": kind.files, "bytes": kind.size} for name, kind in kinds.items()}
        why = {"reason": reason} if reason else {}
        click.echo(json.dumps({"folder": folder, "limit": limit, "kinds": by_kind, **why}, indent=2))
        return
    click.echo(f"{folder}, {_mib(limit)} at most" if folder else _unusable(reason))
    for name, kind in kinds.items():
        click.echo(f"  {name}: {kind.files} files, {_mib(kind.size)}")
    if folder and not kinds:
        click.echo("  nothing is kept")


def _unusable(reason: str) -> str:
    # those in a folder that cannot be written to are read
    new = "new " if kept.kinds() else ""
    return f"no {new}kernels are kept: {reason}; SPIKECORE_CACHE_DIR names another folder"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
