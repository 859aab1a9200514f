"""From an entry point to a backend: the steps of loading one candidate, each checked.

Rules of this module:

- A step either returns something that keeps the contract or raises :class:`BackendLoadError` with a sentence; what went
  wrong in the plugin is its ``__cause__``, whatever it is. Nothing is remembered here: the registry does that.
- Each plugin gets a plugin manager of its own. pluggy stops at the first failing hook and loses all results, keeps a
  plugin registered that failed validation (before 1.7), and reports another's misspelt hook; alone, none of it spreads.
"""

from __future__ import annotations

import importlib
import re
from functools import partial, reduce
from typing import Any, Callable, List, NamedTuple, Optional

import pluggy

from spikecore._base import contract as api
from spikecore._base.words import a_kind
from spikecore._plugins import hookspecs
from spikecore._plugins.candidates import Candidate
from spikecore._plugins.containing import contained, described
from spikecore.backend import ANY_DEVICE, Backend, BackendInfo, BackendLoadError, Capabilities


class Probed(NamedTuple):
    """What a probe said: why the backend is unusable here (None if it is usable), and what the probe raised, if so."""

    reason: Optional[str]
    error: Optional[BaseException]
    #: What serves here, if it is not what the name says.
    note: str = ""


def load_info(candidate: Candidate) -> BackendInfo:
    """Import the candidate's plugin module and take its description of the backend of that name."""
    info, skew = contained(partial(_described, candidate), partial(_failure, candidate))
    if skew:
        raise BackendLoadError(skew)
    return info


def make_backend(candidate: Candidate, info: BackendInfo) -> Backend:
    """Import the factory that ``info`` names, call it, and check that it made what ``info`` says."""
    return contained(partial(_made, info), partial(_failure, candidate))


def probe(info: BackendInfo) -> Probed:
    """Ask the backend whether it is usable here. An error of the probe is a reason like any other."""
    try:
        return contained(partial(_asked, info), _ProbeError)
    except _ProbeError as failed:
        error = failed.args[0]
        return Probed(f"its probe raised {described(error)}", error)


class _ProbeError(Exception):
    """Holds what a probe raised."""


def _made(info: BackendInfo) -> Backend:
    module, _, attribute = info.factory.partition(":")
    factory: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
    backend = factory()
    if not isinstance(backend, Backend):
        raise TypeError(f"{info.factory} made {a_kind(backend)}, not a spikecore.backend.Backend")
    if backend.name != info.name:
        raise ValueError(f"{info.factory} made a backend named {backend.name!r}, not {info.name!r}")
    if backend.capabilities != info.capabilities:
        raise ValueError(f"{info.factory} has other capabilities than its BackendInfo declares")
    for device in info.devices:
        if device != ANY_DEVICE:
            _check_capabilities_on(backend, device, info)
    return backend


def _check_capabilities_on(backend: Backend, device: str, info: BackendInfo) -> None:
    there: Any = backend.capabilities_on(device)
    if not isinstance(there, Capabilities):
        raise TypeError(f"{info.factory}.capabilities_on({device!r}) must give a Capabilities, got {there!r}")
    more = [name for name in there.names() if name not in info.capabilities.names()]
    if more:
        raise ValueError(
            f"{info.factory}.capabilities_on({device!r}) has {', '.join(more)}, which its BackendInfo does not declare"
        )


def _asked(info: BackendInfo) -> Probed:
    reason: object = info.probe()
    if reason is not None and not (isinstance(reason, str) and reason):
        raise TypeError(f"it must return None or a reason in words, got {reason!r}")
    return Probed(reason, None, "" if reason or info.note is None else str(info.note()))


class _Described(NamedTuple):
    info: BackendInfo
    #: What is wrong with the version of the contract, in words.
    skew: str


def _described(candidate: Candidate) -> _Described:
    info = _description(candidate)
    # the version first: another contract may well have other fields
    skew = _skew(candidate, info)
    if not skew:
        _check_fields(info)
    return _Described(info, skew)


def _description(candidate: Candidate) -> BackendInfo:
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
    why = api.skew(info.api, candidate.distribution)
    return f"backend {info.name!r} ({candidate.provider}) {why}" if why else ""


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
    if info.note is not None and not callable(info.note):
        raise TypeError(f"BackendInfo.note must be callable or None, got {info.note!r}")
    hint: Any = info.install_hint
    if not isinstance(hint, str):
        raise TypeError(f"BackendInfo.install_hint must be a string, got {hint!r}")


def _failure(candidate: Candidate, error: BaseException) -> BackendLoadError:
    return BackendLoadError(
        f"backend {candidate.name!r} ({candidate.provider}) failed to load: {described(error)}; "
        f"SPIKECORE_BLOCK={candidate.name} skips it"
    )
