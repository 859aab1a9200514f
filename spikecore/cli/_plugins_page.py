"""``spikecore plugins-page``: the list of plugins."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional

import typer

from spikecore.testing import _pages as pages


def plugins_page(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of results, one file for each plugin and device."),
    new: List[Path] = typer.Option(
        [], "--add", metavar="FILE", help="Put this report of spikecore conformance --json into DIR; may be repeated."
    ),
    write: Optional[Path] = typer.Option(
        None, "--write", metavar="FILE", help="Write the list into this file, and a page for each backend beside it."
    ),
) -> None:
    """Print the list of plugins that docs/plugins.md is, made from the results of conformance runs."""
    try:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder")
        for file in new:
            typer.echo(f"wrote {pages.add(folder, file.read_text(encoding='utf-8'), str(file))}")
        page = pages.render(pages.load(folder))
        if write is not None:
            pages.write(folder, write)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if write is None and not new:
        typer.echo(page, nl=False)
