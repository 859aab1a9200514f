"""Writes the list of modules into CONTRIBUTING.md: ``python .ci/modules.py``.

Each module's sentence is the first of its docstring. ``tests/null/test_repository.py`` compares the page with this.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Dict, List, Tuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- modules: made by .ci/modules.py -->\n", "<!-- end of modules -->\n"


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring, as Markdown."""
    paragraph = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    first = re.split(r"(?<=[.?!]) +(?=[A-Z`])", " ".join(paragraph.split()))[0]
    plain = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", first).replace("``", "`")
    return plain.rstrip(":").replace("|", "\\|")


def folders(root: Path) -> Dict[str, Path]:
    """The import packages of the repository, in the order of the list: where each lies, and its folder."""
    inits = [
        root / "spikecore/__init__.py",
        *root.glob("backends/*/__init__.py"),
        *root.glob("plugins/*/*/__init__.py"),
    ]
    return {str(path.parent.relative_to(root)): path.parent for path in inits}


def table(title: str, folder: Path) -> List[str]:
    """One package: its sentence, a row for each of its modules, and after it the packages below."""
    rows: List[Tuple[str, Path]] = [
        (path.name, path) for path in sorted(folder.glob("*.py")) if path.name not in ("__init__.py", "__main__.py")
    ]
    lines = ["", f"**`{title}/`** {sentence(folder / '__init__.py')}"]
    if rows:
        lines += ["", "| module | is |", "|---|---|", *(f"| `{name}` | {sentence(path)} |" for name, path in rows)]
    for below in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += table(f"{title}/{below.name}", below)
    return lines


def listing(root: Path = ROOT) -> str:
    """The whole list."""
    lines: List[str] = []
    for title, folder in sorted(folders(root).items(), key=lambda item: (item[0] != "spikecore", item[0])):
        lines += table(title, folder)
    return "\n".join([*lines[1:], ""])


def replaced(page: str, text: str) -> str:
    """The page with this list between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), listing()), encoding="utf-8")
    sys.exit(0)
