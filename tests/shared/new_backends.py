"""Projects of new backends, as ``spikecore new-backend`` writes them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Dict

from click.testing import CliRunner

from spikecore.cli import app


def project(name: str, kernel: bool = False) -> Dict[str, str]:
    """The files of a project: path -> text."""
    with TemporaryDirectory() as folder:
        done = CliRunner().invoke(app, ["new-backend", name, "--into", folder, *["--kernel"] * kernel])
        assert done.exit_code == 0, done.output
        (root,) = Path(folder).iterdir()
        files = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in files}
