"""From an entry point to a backend: the steps of loading one candidate, each checked.

Rules of this module:

- A step either returns something that keeps the contract or raises :class:`BackendLoadError` with a sentence; what went
  wrong in the plugin is its ``__cause__``. Nothing is remembered here: the registry does that.
- Each plugin gets a plugin manager of its own. pluggy stops at the first failing hook and loses all results, keeps a
  plugin registered that failed validation (before 1.7), and reports another's misspelt hook; alone, none of it spreads.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import pluggy

import spikecore
from spikecore import hookspecs
from spikecore.backend import SUPPORTED_API, Backend, BackendInfo, BackendLoadError, Capabilities

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

    def answers_to(self, word: str) -> bool:
        """Whether ``word`` names this backend or its distribution, spelt in any of the ways of a distribution."""
        return normal_name(word) in (normal_name(self.name), normal_name(self.distribution))


def normal_name(name: str) -> str:
    """A distribution's name as package indexes compare it: ``Spikecore_Foo`` is ``spikecore-foo``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def builtin_candidates(modules: Mapping[str, str]) -> List[Candidate]:
    """One candidate per entry of the table of built-ins."""
    return [
        Candidate(name, module, "spikecore", spikecore.__version__, True, partial(importlib.import_module, module))
        for name, module in modules.items()
    ]


def entry_point_candidate(point: Any, distribution: Any = None) -> Candidate:
    """The candidate behind an entry point. Before Python 3.10 an entry point does not know its distribution."""
    distribution = distribution or getattr(point, "dist", None)
    name, version = ("", "") if distribution is None else (distribution.metadata["Name"], distribution.version)
    return Candidate(point.name, point.value, name or "", version or "", False, point.load)


def installed_candidates() -> Iterator[Candidate]:
    """One candidate per entry point of the group, of each distribution the one that Python would import."""
    first: Dict[str, Any] = {}
    for distribution in importlib.metadata.distributions():
        try:
            points = [point for point in distribution.entry_points if point.group == hookspecs.GROUP]
            if points:
                first.setdefault(normal_name(distribution.metadata["Name"]), (distribution, points))
        except Exception as error:
            _log.debug("unreadable metadata of %r: %s", distribution, error)
    for distribution, points in first.values():
        for point in points:
            yield entry_point_candidate(point, distribution)


def load_info(candidate: Candidate) -> BackendInfo:
    """Import the candidate's plugin module and take its description of the backend of that name."""
    try:
        info = _describe(candidate)
        # the version first: another contract may well have other fields
        skew = _skew(candidate, info)
        if not skew:
            _check_fields(info)
    except Exception as error:
        raise _failure(candidate, error) from error
    if skew:
        raise BackendLoadError(skew)
    return info


def make_backend(candidate: Candidate, info: BackendInfo) -> Backend:
    """Import the factory that ``info`` names, call it, and check that it made what ``info`` says."""
    try:
        module, _, attribute = info.factory.partition(":")
        factory: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
        backend = factory()
        if not isinstance(backend, Backend):
            raise TypeError(f"{info.factory} made a {type(backend).__name__}, not a spikecore.backend.Backend")
        if backend.name != info.name:
            raise ValueError(f"{info.factory} made a backend named {backend.name!r}, not {info.name!r}")
        if backend.capabilities != info.capabilities:
            raise ValueError(f"{info.factory} has other capabilities than its BackendInfo declares")
    except Exception as error:
        raise _failure(candidate, error) from error
    return backend


def checked_reason(reason: object) -> Optional[str]:
    """What a probe returned, when it is what a probe may return."""
    if reason is not None and not (isinstance(reason, str) and reason):
        raise TypeError(f"it must return None or a reason in words, got {reason!r}")
    return reason


def _describe(candidate: Candidate) -> BackendInfo:
    plugin = candidate.load()
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=candidate.name)
    manager.check_pending()
    impls = manager.hook.spikecore_backends.get_hookimpls()
    if not impls:
        raise TypeError(f"{candidate.value} implements no hook; mark spikecore_backends() with @spikecore.hookimpl")
    infos: List[object] = [info for impl in impls for info in _called(impl.function)]
    for info in infos:
        if not isinstance(info, BackendInfo):
            raise TypeError(f"spikecore_backends() must return BackendInfo objects, got {info!r}")
    mine = [info for info in infos if isinstance(info, BackendInfo) and info.name == candidate.name]
    if len(mine) != 1:
        names = ", ".join(sorted(repr(info.name) for info in infos if isinstance(info, BackendInfo))) or "none"
        raise ValueError(f"spikecore_backends() must describe {candidate.name!r} once; it describes {names}")
    return mine[0]


def _called(function: Callable[[], object]) -> List[object]:
    result: Any = function()
    if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
        raise TypeError(f"spikecore_backends() must return BackendInfo objects in a list or tuple, got {result!r}")
    return list(result)


def _skew(candidate: Candidate, info: BackendInfo) -> str:
    if not isinstance(info.api, int):
        raise TypeError(f"BackendInfo.api must be an integer, got {info.api!r}")
    low, high = SUPPORTED_API
    if low <= info.api <= high:
        return ""
    speaks = str(low) if low == high else f"{low} to {high}"
    old = candidate.distribution if info.api < low else "spikecore"
    return (
        f"backend {info.name!r} ({candidate.provider}) speaks backend API {info.api}; "
        f"this spikecore speaks {speaks}; upgrade {old}"
    )


def _check_fields(info: BackendInfo) -> None:
    # a plugin's fields are what they are annotated as only if its author was careful
    factory: Any = info.factory
    devices: Any = info.devices
    if not isinstance(factory, str) or not re.fullmatch(r"[\w.]+:[\w.]+", factory):
        raise ValueError(f"BackendInfo.factory must be 'package.module:Class', got {factory!r}")
    if not isinstance(devices, tuple) or not devices or not all(isinstance(device, str) for device in devices):
        raise TypeError(f"BackendInfo.devices must be a tuple of device types, got {devices!r}")
    never: Any = info.never
    if not isinstance(never, tuple) or not all(isinstance(device, str) for device in never):
        raise TypeError(f"BackendInfo.never must be a tuple of device types, got {never!r}")
    if not isinstance(info.capabilities, Capabilities):
        raise TypeError(f"BackendInfo.capabilities must be a Capabilities, got {info.capabilities!r}")
    if not callable(info.probe):
        raise TypeError(f"BackendInfo.probe must be callable, got {info.probe!r}")


def _failure(candidate: Candidate, error: Exception) -> BackendLoadError:
    return BackendLoadError(
        f"backend {candidate.name!r} ({candidate.provider}) failed to load: {type(error).__name__}: {error}; "
        f"SPIKECORE_BLOCK={candidate.name} skips it"
    )
