"""Every case of the suite, by tier, and those that a plugin adds for its own backend.

- An entry point of the group ``spikecore.cases`` names a :class:`~spikecore.testing.Collection`; the entry point's
  name is the backend's name, and its distribution that of the backend. Of others nothing is imported.
- An id begins with the backend's name and a slash. The core tier is the suite's: a plugin's case is of any other tier,
  best ``own``.
- Loading a plugin's cases is contained as loading its backend is.
"""

from __future__ import annotations

import importlib.metadata
import logging
from functools import partial
from typing import Any, List

from spikecore.backend import BackendLoadError
from spikecore.plugins.plugin import contained, described, normal_name
from spikecore.plugins.registry import default_registry
from spikecore.testing._case import Collection
from spikecore.testing._cases import (
    calls,
    edges,
    extensions,
    gradients,
    language,
    layers,
    layouts,
    memory,
    packed,
    parameters,
    process,
    random,
    robust,
    rows,
    steps,
    vectors,
)

CASES = Collection()
for _rows in (rows, random):
    _rows.add_to(CASES)
_WRITTEN = (layers, gradients, parameters, language, edges, layouts, calls, steps, memory, process, robust)
for _written in (*_WRITTEN, packed, extensions, vectors):
    for _case in _written.CASES:
        CASES.put(_case)

# -- cases of a plugin

#: Entry-point group of collections of cases; the entry point's name is the backend's name.
GROUP = "spikecore.cases"
#: The tier that only the suite itself has cases of.
SUITE = "core"

_log = logging.getLogger("spikecore")


def cases_of(name: str) -> Collection:
    """The cases for a backend: those of the suite, and those that its plugin adds.

    Raises ``BackendLoadError`` where the plugin's cannot be imported or are not what they must be.
    """
    collection = CASES
    for point in _points(name):
        own = contained(partial(_loaded, name, point), partial(_failure, name, point))
        collection = collection.with_those_of(own)
    return collection


def _points(name: str) -> List[Any]:
    """The entry points for a backend of the distribution that provides it."""
    if name in default_registry().builtins:
        return []
    providers = {normal_name(row.distribution) for row in default_registry().status() if row.name == name}
    found: List[Any] = []
    for distribution in importlib.metadata.distributions():
        points = [point for point in distribution.entry_points if point.group == GROUP and point.name == name]
        if points and normal_name(distribution.metadata["Name"]) not in providers:
            other = distribution.metadata["Name"]
            _log.warning("%s has cases for backend %r, which another distribution provides; not used", other, name)
        elif points and not found:  # of a distribution that is on the path twice the one that Python would import
            found = points
    return found


def _loaded(name: str, point: Any) -> Collection:
    cases: Any = point.load()
    if not isinstance(cases, Collection):
        raise TypeError(f"{point.value} must be a spikecore.testing.Collection, got {cases!r}")
    for case in cases:
        if not case.id.startswith(f"{name}/"):
            raise ValueError(f"case {case.id!r} must begin with {name + '/'!r}")
        if case.tier == SUITE:
            raise ValueError(f"case {case.id!r} is of tier {SUITE!r}, which is the suite's; choose another, as 'own'")
    return cases


def _failure(name: str, point: Any, error: BaseException) -> BackendLoadError:
    return BackendLoadError(f"the cases of backend {name!r} ({point.value}) failed to load: {described(error)}")
