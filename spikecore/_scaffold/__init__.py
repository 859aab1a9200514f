"""Projects of new backends, written from the templates that docs/backends.md shows.

The templates are package data, and docs/backends.md shows the same text (a test compares them), so that what the page
says and what is written here pass the conformance suite together.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from pathlib import Path
from typing import Dict, Mapping

from spikecore.plugins.registry import AUTO_NAME, default_registry

#: File of a project -> template. ``@package@``, ``@Class@`` and ``@name@`` are replaced in both.
FILES: Mapping[str, str] = {
    "pyproject.toml": "pyproject",
    "@package@/__init__.py": "backend",
    "tests/test_conformance.py": "test",
    "README.md": "README",
    ".github/workflows/test.yml": "ci",
}
#: The template of a backend that supplies two launches.
KERNEL = "kernel"

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_name(name: str) -> None:
    """Raise ``ValueError`` unless a new backend can have this name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"backend name {name!r} must be a lower-case identifier: letters a to z, digits, underscores")
    if name == AUTO_NAME:
        raise ValueError(f"backend name {name!r} is reserved: it asks for automatic choice; choose another")
    if name in default_registry().builtins:
        raise ValueError(f"backend name {name!r} is that of a built-in backend; choose another")
    rows = [row for row in default_registry().status() if row.name == name]
    if rows:
        owner = f"{rows[0].distribution} {rows[0].version}".strip() or "another distribution"
        raise ValueError(f"backend name {name!r} is taken by {owner}, which is installed here; choose another")
    package = f"spikecore_{name}"
    if importlib.util.find_spec(package) is not None:
        raise ValueError(f"backend name {name!r}: there is a module {package} already; choose another")


def rendered(template: str, name: str) -> str:
    """The text of a template for a backend of this name."""
    data = pkgutil.get_data(__package__, f"templates/{template}.template")
    return _filled((data or b"").decode("utf-8"), name)


def project(name: str, kernel: bool = False) -> Dict[str, str]:
    """The files of a project: path -> text. ``kernel``: whether the backend is a ``KernelBackend``."""
    files = {**FILES, **({"@package@/__init__.py": KERNEL} if kernel else {})}
    return {_filled(path, name): rendered(template, name) for path, template in files.items()}


def write_project(name: str, into: Path, kernel: bool = False) -> Path:
    """Write the project ``spikecore-NAME`` into a folder, and give its path.

    Raises ``ValueError`` for a name that a new backend cannot have, and ``FileExistsError`` where there is something:
    nothing is written over.
    """
    check_name(name)
    root = into / f"spikecore-{name.replace('_', '-')}"
    if root.exists() or root.is_symlink():
        raise FileExistsError(f"{root} exists; move it away, or write into another folder")
    for path, text in project(name, kernel).items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


def _filled(text: str, name: str) -> str:
    words = {
        "@package@": f"spikecore_{name}",
        "@Class@": name.replace("_", " ").title().replace(" ", ""),
        "@name@": name,
    }
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text
