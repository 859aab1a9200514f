"""``spikecore cache`` from the shell.

Options are default values, not ``Annotated``: see :mod:`spikecore.cli`, which registers the command.
"""

from __future__ import annotations

import json

import typer

from spikecore.kernels import cache


def show_cache(
    clear: bool = typer.Option(False, "--clear", help="Remove all compiled kernels; they are compiled again."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: folder, limit, and files and bytes by kind."),
) -> None:
    """Show where compiled kernels are kept, how many and how large; or remove them."""
    try:
        limit = cache.limit()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if clear:
        files, size = cache.clear()
        if as_json:
            typer.echo(json.dumps({"folder": str(cache.base()), "removed": {"files": files, "bytes": size}}, indent=2))
        else:
            typer.echo(f"removed {files} files, {_mib(size)}, from {cache.base()}")
        return
    kinds = cache.kinds()
    if as_json:
        by_kind = {name: {"files": kind.files, "bytes": kind.size} for name, kind in kinds.items()}
        typer.echo(json.dumps({"folder": str(cache.base()), "limit": limit, "kinds": by_kind}, indent=2))
        return
    typer.echo(f"{cache.base()}, {_mib(limit)} at most")
    for name, kind in kinds.items():
        typer.echo(f"  {name}: {kind.files} files, {_mib(kind.size)}")
    if not kinds:
        typer.echo("  nothing is kept")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
