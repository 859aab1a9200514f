"""What code imports and touches, read from its text: for the tests of what is public."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set

ROOT = Path(__file__).parents[2]
#: The distributions of this repository: import name -> folder.
PACKAGES = {
    **{path.parent.name: path.parent for path in sorted(ROOT.glob("backends/*/__init__.py"))},
    **{path.parent.name: path.parent for path in sorted(ROOT.glob("plugins/*/*/__init__.py"))},
    "spikecore": ROOT / "spikecore",
}
PAGE = ROOT / "docs/api.md"


class Used(NamedTuple):
    """One use: of what, where."""

    what: str
    where: str


class Listed(NamedTuple):
    """A module of docs/api.md: its sentence, and its names, each with one."""

    sentence: str
    names: Dict[str, str]


def is_private(name: str) -> bool:
    """Whether a name begins with ``_`` and is none that Python gives a meaning to."""
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


def modules() -> Dict[str, Path]:
    """Every module of this repository's packages, templates of projects left out: name -> file."""
    found = {}
    for name, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (name, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def plain(name: str) -> bool:
    """Whether a module's name has no part that begins with ``_``."""
    return not any(part.startswith("_") for part in name.split("."))


def page() -> Dict[str, Listed]:
    """The modules of docs/api.md: a heading of its name, a sentence, and a table of names."""
    found: Dict[str, Listed] = {}
    parts = re.split(r"(?m)^#+ (.*)$", PAGE.read_text(encoding="utf-8"))
    for heading, body in zip(parts[1::2], parts[2::2]):
        name = re.fullmatch(r"`([a-z_.]+)`(?:, imported as `sc`)?", heading)
        if name is None:
            continue
        names = {}
        for cell, sentence in re.findall(r"(?m)^\| (`.*?`) \| (.*) \|$", body):
            names.update(dict.fromkeys(re.findall(r"`(\w+)`", cell), sentence))
        for table, sentence in re.findall(r"(?m)^\| all of `([\w.]+)` \| (.*) \|$", body):
            where, _, attribute = table.rpartition(".")
            there = importlib.import_module(name.group(1))
            keys = getattr(importlib.import_module(where), attribute)
            names.update({key: sentence for key in keys if hasattr(there, key)})
        found[name.group(1)] = Listed(body.strip().partition("\n\n")[0], names)
    return found


def texts_outside() -> Iterator[Used]:
    """Python text that uses spikecore from outside: backends, plugins and their tests, examples, pages, templates."""
    for name, folder in PACKAGES.items():
        if name != "spikecore":
            for path in sorted(folder.rglob("*.py")):
                yield Used(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    for pattern in ("plugins/*/tests/**/*.py", "plugins/*/benchmarks/*.py", "examples/**/*.py", "docs/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield Used(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    for pattern in ("README.md", "docs/*.md", "plugins/*/README.md"):
        for path in sorted(ROOT.glob(pattern)):
            for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
                yield Used(block, str(path.relative_to(ROOT)))


def uses(text: str, where: str, known: Set[str]) -> Iterator[Used]:
    """The names of spikecore that a text imports, or reaches through a module that it imports, with their modules."""
    tree = ast.parse(text)
    aliases: Dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == "spikecore":
                    aliases[name.asname or "spikecore"] = name.name if name.asname else "spikecore"
                    yield Used(name.name, f"{where}:{node.lineno}")
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").partition(".")[0] == "spikecore"
        ):
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if full in known:
                    aliases[name.asname or name.name] = full
                yield Used(full, f"{where}:{node.lineno}")
    for node in ast.walk(tree):
        chain: List[str] = []
        value: ast.AST = node
        while isinstance(value, ast.Attribute):
            chain.insert(0, value.attr)
            value = value.value
        if chain and isinstance(value, ast.Name) and value.id in aliases:
            reached = aliases[value.id]
            for attribute in chain:
                reached = f"{reached}.{attribute}"
                if reached not in known:
                    break
            if not reached.endswith("__"):
                yield Used(reached, f"{where}:{node.lineno}")


def private_names(tree: ast.AST) -> Set[str]:
    """The private names that a module defines: functions, classes, variables and members."""
    found = private_members(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def private_members(tree: ast.AST) -> Set[str]:
    """The private names that a module defines in classes, or sets on ``self`` or ``cls``."""
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    found.add(item.name)
                targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
                found.update(target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def _is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def foreign_privates() -> List[Used]:
    """Uses of a private name in a module that does not define it, while another module here does.

    Found are ``from module import _name``, ``value._name``, and ``getattr(value, "_name")``; ``self``, ``cls`` and
    ``super()`` may reach what their base defines. A member counts as defined where a class has it, or ``self`` gets it.
    """
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}
    defined = {name: private_members(tree) for name, tree in trees.items()}
    everywhere = set().union(*(private_names(tree) for tree in trees.values()))
    found = []
    for module, tree in trees.items():
        foreign = everywhere - defined[module]
        for node in ast.walk(tree):
            names: List[str] = []
            if isinstance(node, ast.ImportFrom):
                within = f"{node.module}." if node.level == 0 else ""
                names = [n.name for n in node.names if is_private(n.name) and f"{within}{n.name}" not in trees]
            elif isinstance(node, ast.Attribute) and not _is_own(node.value):
                names = [node.attr]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
                texts = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                names = [] if _is_own(node.args[0]) else texts
            found += [Used(name, f"{module}:{node.lineno}") for name in names if name in foreign]
    return found
