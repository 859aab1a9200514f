"""Which backends metadata speaks of. Nothing of them is imported here.

Rules of this module:

- A built-in is known by the table in :mod:`spikecore._plugins.registry`, everybody else's backend by an entry point.
- A distribution of this project is known by its name *and* its module (:data:`OWN`): an entry point alone could be
  anybody's.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from spikecore._plugins import hookspecs
from spikecore._version import __version__

#: The plugins of this project: backend -> (distribution, module of its entry point). Automatic choice takes these where
#: they are installed, and no others.
OWN: Mapping[str, Tuple[str, str]] = {
    "numba": ("spikecore-numba", "spikecore_numba"),
    "triton": ("spikecore-triton", "spikecore_triton"),
}

#: The value that asks for automatic choice, and therefore no backend's name.
AUTO_NAME = "auto"

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_log = logging.getLogger("spikecore")


@dataclass(frozen=True)
class Candidate:
    """What metadata says about a backend, before anything of it is imported."""

    name: str
    value: str
    distribution: str
    version: str
    builtin: bool
    load: Callable[[], object] = field(compare=False, repr=False)

    @property
    def provider(self) -> str:
        """Distribution and version, as errors name it."""
        return f"{self.distribution} {self.version}".strip() or "unknown distribution"

    @property
    def ours(self) -> bool:
        """Whether it is a built-in, or a plugin of this project."""
        return self.builtin or (normal_name(self.distribution), self.value) == OWN.get(self.name)

    @property
    def ill_named(self) -> str:
        """Why no backend may have this name; empty if one may."""
        if self.name == AUTO_NAME:
            return "is reserved"
        return "" if _NAME.fullmatch(self.name) else "is not a lower-case identifier"

    def answers_to(self, word: str) -> bool:
        """Whether ``word`` names this backend or its distribution, spelt in any of the ways of a distribution."""
        return normal_name(word) in (normal_name(self.name), normal_name(self.distribution))


def normal_name(name: str) -> str:
    """A distribution's name as package indexes compare it: ``Spikecore_Foo`` is ``spikecore-foo``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def all_candidates(builtins: Mapping[str, str], entry_points: Optional[Iterable[Any]]) -> Tuple[Candidate, ...]:
    """One candidate per built-in and per entry point, of those installed if ``entry_points`` is None."""
    plugins = installed_candidates() if entry_points is None else map(entry_point_candidate, entry_points)
    return (*builtin_candidates(builtins), *plugins)


def builtin_candidates(modules: Mapping[str, str]) -> List[Candidate]:
    """One candidate per entry of the table of built-ins."""
    return [
        Candidate(name, module, "spikecore", __version__, True, partial(importlib.import_module, module))
        for name, module in modules.items()
    ]


def entry_point_candidate(point: Any, distribution: Any = None) -> Candidate:
    """The candidate behind an entry point. Before Python 3.10 an entry point does not know its distribution."""
    name, version = _named(distribution or getattr(point, "dist", None))
    return Candidate(point.name, point.value, name, version, False, point.load)


def _named(distribution: Any) -> Tuple[str, str]:
    """Name and version of a distribution; empty where its metadata is gone, as after half an uninstall."""
    try:
        return str(distribution.metadata["Name"] or ""), str(distribution.version or "")
    except Exception as error:
        _log.debug("unreadable metadata of %r: %s", distribution, error)
        return "", ""


def installed_candidates() -> Iterator[Candidate]:
    """One candidate per entry point of the group, of each distribution the one that Python would import."""
    first: Dict[str, Any] = {}
    for distribution in importlib.metadata.distributions():
        try:
            points = [point for point in distribution.entry_points if point.group == hookspecs.GROUP]
            if points:
                name = _named(distribution)[0] or points[0].value
                first.setdefault(normal_name(name), (distribution, points))
        except Exception as error:
            _log.debug("unreadable metadata of %r: %s", distribution, error)
    for distribution, points in first.values():
        for point in points:
            yield entry_point_candidate(point, distribution)
