"""``spikecore cache``: the folder of compiled kernels."""

from __future__ import annotations

import json

import typer

from spikecore.kernels import cache as kept


def cache(
    clear: bool = typer.Option(False, "--clear", help="Remove all compiled kernels; they are compiled again."),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON: folder, limit, files and bytes by kind; or the reason why none are kept."
    ),
) -> None:
    """Show where compiled kernels are kept, how many and how large; or remove them."""
    try:
        limit = kept.limit()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    reason = kept.reason()
    folder = None if reason else str(kept.folder())
    if clear:
        files, size = kept.clear()
        if as_json:
            typer.echo(json.dumps({"folder": folder, "removed": {"files": files, "bytes": size}}, indent=2))
        else:
            typer.echo(f"removed {files} files, {_mib(size)}, from {folder}" if folder else _unusable(reason))
        return
    kinds = kept.kinds()
    if as_json:
        by_kind = {name: {"files": kind.files, "bytes": kind.size} for name, kind in kinds.items()}
        why = {"reason": reason} if reason else {}
        typer.echo(json.dumps({"folder": folder, "limit": limit, "kinds": by_kind, **why}, indent=2))
        return
    typer.echo(f"{folder}, {_mib(limit)} at most" if folder else _unusable(reason))
    for name, kind in kinds.items():
        typer.echo(f"  {name}: {kind.files} files, {_mib(kind.size)}")
    if folder and not kinds:
        typer.echo("  nothing is kept")


def _unusable(reason: str) -> str:
    # those in a folder that cannot be written to are read
    new = "new " if kept.kinds() else ""
    return f"no {new}kernels are kept: {reason}; SPIKECORE_CACHE_DIR names another folder"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
