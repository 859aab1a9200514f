"""``spikecore new-backend``: a project for a backend."""

from __future__ import annotations

from pathlib import Path

import typer

from spikecore._scaffold import write_project


def new_backend(
    name: str = typer.Argument(..., help="Name of the backend: a lower-case identifier."),
    kernel: bool = typer.Option(False, "--kernel", help="Begin with two launches, forward and backward, on arrays."),
    into: Path = typer.Option(Path(), help="Folder to write the project into.", show_default="this one"),
) -> None:
    """Write a project for a new backend, which installs and passes the conformance suite as it is."""
    try:
        root = write_project(name, into, kernel)
    except (ValueError, FileExistsError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(
        f"wrote {root}\n\n"
        f"  pip install -e {root}\n"
        f"  spikecore conformance {name} --tier core\n\n"
        f"The backend is {root / f'spikecore_{name}' / '__init__.py'}; docs/backends.md says what it must do."
    )
