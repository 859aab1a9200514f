"""Places that must have a row for each of some names, and what pages, tables and modules hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Collection, Iterable, Iterator, Set, Tuple

ROOT = Path(__file__).parents[2]
#: The packages of the plugins that are backends.
PLUGINS = sorted(
    path.parent
    for path in ROOT.glob("plugins/*/spikecore_*/__init__.py")
    if "spikecore.backends" in (path.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def quoted(text: str) -> Set[str]:
    """The words between backquotes."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))


def check(place: str, wanted: Iterable[str], there: Collection[str], others: bool = False) -> None:
    """Fail, naming the place, unless it has these names; ``others``: and it may have more."""
    missing, stale = sorted(set(wanted) - set(there)), sorted(set(there) - set(wanted))
    assert not missing, f"{place} has no row for: {', '.join(missing)}"
    assert others or not stale, f"{place} has a row for what there is not: {', '.join(stale)}"


def supported() -> Set[str]:
    """Names with a row in the support table."""
    return quoted("\n".join(line.split("|")[1] for line in page("docs/support.md").splitlines() if line[:1] == "|"))


Place = Tuple[Callable[[], Iterable[str]], Callable[[], Collection[str]], bool]


def exactly(wanted: Callable[[], Iterable[str]], there: Callable[[], Collection[str]]) -> Place:
    """A place that has these names and no others."""
    return wanted, there, False


def at_least(wanted: Callable[[], Iterable[str]], there: Callable[[], Collection[str]]) -> Place:
    """A place that has these names, and may have others."""
    return wanted, there, True


def sources() -> Iterator[Tuple[str, str]]:
    """Files of the core, the backends and the plugins that are backends, and their text."""
    for folder in (ROOT / "spikecore", ROOT / "backends", *PLUGINS):
        for path in sorted(folder.rglob("*.py")):
            if "templates" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
