"""docs/api.md is the list of what is public: modules and names; backends, plugins, examples and pages use no others."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Dict, Iterator, List, NamedTuple, Tuple

import pytest

import spikecore as sc
from places import ROOT, check, page

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", ""): path
    for path in sorted((ROOT / "spikecore").rglob("*.py"))
}


class Listed(NamedTuple):
    """A module of the page: its sentence, and its names, each with one."""

    sentence: str
    names: Dict[str, str]


def listed() -> Dict[str, Listed]:
    """The modules of the page: a heading of its name, a sentence, and a table of names."""
    modules: Dict[str, Listed] = {}
    parts = re.split(r"(?m)^#+ (.*)$", page("docs/api.md"))
    for heading, body in zip(parts[1::2], parts[2::2]):
        name = re.fullmatch(r"`([a-z_.]+)`(?:, imported as `sc`)?", heading)
        if name is None:
            continue
        names = {}
        for cell, sentence in re.findall(r"(?m)^\| (`.*?`) \| (.*) \|$", body):
            names.update(dict.fromkeys(re.findall(r"`(\w+)`", cell), sentence))
        for table, sentence in re.findall(r"(?m)^\| all of `([\w.]+)` \| (.*) \|$", body):
            where, _, attribute = table.rpartition(".")
            keys = getattr(importlib.import_module(where), attribute)
            module = importlib.import_module(name.group(1))
            names.update({key: sentence for key in keys if hasattr(module, key)})
        modules[name.group(1)] = Listed(body.strip().partition("\n\n")[0], names)
    return modules


LISTED = listed()


def plain(name: str) -> bool:
    """True if a module's name has no part that begins with ``_``."""
    return not any(part.startswith("_") for part in name.split("."))


def imports() -> Iterator[Tuple[str, str, List[str]]]:
    """File, module and names of each ``from spikecore... import ...`` outside ``spikecore/``, pages included."""
    folders = (
        "backends/**/*.py",
        "extensions/**/*.py",
        "plugins/**/*.py",
        "examples/**/*.py",
        "docs/**/*.py",
        "*.md",
        "docs/*.md",
        "extensions/**/*.md",
    )
    for path in (path for pattern in (*folders, "plugins/*/README.md") for path in sorted(ROOT.glob(pattern))):
        text = path.read_text(encoding="utf-8")
        for module, listed_, line in re.findall(
            r"(?m)^\s*from (spikecore(?:\.\w+)*) import (?:\(([^)]*)\)|(.*))", text
        ):
            names = re.sub(r"#.*", "", listed_ or line).split(",")
            yield str(path.relative_to(ROOT)), module, [name.split(" as ")[0].strip() for name in names if name.strip()]


def test_every_module_with_a_plain_name_is_listed() -> None:
    """A module that nobody outside may import begins with ``_``, or a package above it does."""
    assert [name for name in MODULES if plain(name) and name not in LISTED] == []


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_module_has_the_names_it_is_listed_with(name: str) -> None:
    """It has a plain name, a sentence and names; each name exists and has a sentence; ``__all__`` says the same."""
    assert plain(name)
    sentence, names = LISTED[name]
    assert sentence.rstrip().endswith("."), sentence
    module = importlib.import_module(name)
    assert [each for each in names if not hasattr(module, each) and f"{name}.{each}" not in LISTED] == []
    assert [each for each, sentence in names.items() if not sentence.endswith(".")] == []
    assert names, "a module without public names is not public"
    if hasattr(module, "__all__") and name.partition(".")[0] == "spikecore":
        check(f"docs/api.md: `{name}`", module.__all__, names)


def test_what_is_imported_from_outside_is_listed() -> None:
    """Backends, plugins with their tests, examples and pages import listed modules, and of these listed names."""
    lacking = []
    for file, module, names in imports():
        for name in names:
            known = module in LISTED and name in LISTED[module].names
            if not known and f"{module}.{name}" not in LISTED:
                lacking.append(f"{file}: {module}.{name}")
    assert lacking == []
    assert sorted(sc.__all__) == sorted(LISTED["spikecore"].names)


@pytest.mark.parametrize("extension", sorted(path.parent for path in ROOT.glob("extensions/*/__init__.py")))
def test_an_extension_s_page_names_the_modules_that_it_imports(extension: Path) -> None:
    """All of spikecore's, and no others."""
    page = (extension / "README.md").read_text(encoding="utf-8")
    section = page.partition("## What it imports\n")[2].partition("\n## ")[0]
    used = set()
    for file, module, names in imports():
        if (ROOT / file).suffix == ".py" and extension in (ROOT / file).parents:
            used |= {f"{module}.{name}" if f"{module}.{name}" in LISTED else module for name in names}
    assert set(re.findall(r"`(spikecore[\w.]*)`", section)) == used


@pytest.mark.parametrize("name", [name for name in dir(sc) if isinstance(getattr(sc, name), ModuleType)])
def test_completion_shows_what_is_listed(name: str) -> None:
    """``dir`` of a module that ``dir(sc)`` shows has its listed names, and no imports."""
    module = getattr(sc, name)
    listed_, below = LISTED[module.__name__].names, f"{module.__name__}."
    shown = {each for each in dir(module) if each[0] != "_" and below + each not in LISTED}
    assert shown == {each for each in listed_ if below + each not in LISTED}
