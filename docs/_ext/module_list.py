"""The list of modules: every package of the repository, and each module with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import List, Tuple

#: A package: its folder and sentence, and its modules as (file name, sentence).
Package = Tuple[str, str, List[Tuple[str, str]]]

INTRODUCTION = """\
The modules
===========

Where things are in the code: every package, and each module with the first sentence of its docstring. A module whose
name, or a package above it, begins with ``_`` is for spikecore alone; all others are :doc:`public <../api>`.
"""


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, as reStructuredText."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    first = re.split(r"(?<=[.?!]) +(?=[A-Z`])", " ".join(paragraph.split()))[0]
    return re.sub(r":\w+:`~?([^`]+)`", r"``\1``", first).rstrip(":")


def package(title: str, folder: Path) -> List[Package]:
    """A package, and the packages below it."""
    files = [path for path in sorted(folder.glob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
    below = sorted(path.parent for path in folder.glob("*/__init__.py"))
    own: Package = (title, sentence(folder / "__init__.py"), [(path.name, sentence(path)) for path in files])
    return [own, *(entry for inner in below for entry in package(f"{title}/{inner.name}", inner))]


def packages(root: Path) -> List[Package]:
    """The packages of the repository: those of spikecore, of the backends, and of the plugins."""
    inits = [root / "spikecore/__init__.py", *sorted(root.glob("backends/*/__init__.py"))]
    inits += sorted(root.glob("extensions/*/__init__.py"))
    inits += sorted(root.glob("plugins/*/*/__init__.py"))
    return [entry for path in inits for entry in package(str(path.parent.relative_to(root)), path.parent)]


def page(root: Path) -> str:
    """The whole list, as a page of the site."""
    lines = [INTRODUCTION]
    for title, what, modules in packages(root):
        lines += [f"{title}/", "-" * (len(title) + 1), "", what, ""]
        lines += [line for name, text in modules for line in (f"``{name}``", f"   {text}", "")]
    return "\n".join(lines)
