"""A plugin: from the entry point to its backend, in three steps, each done once.

It describes its backend, tells whether that is usable here, and makes it. Each step checks what it is given. Whatever a
step raises is the error of this plugin alone: it is remembered, logged once, and is the ``__cause__`` of each error
that asking for the backend raises.
"""

from __future__ import annotations

import importlib
import logging
import re
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, TypeVar

import pluggy

from spikecore._base.contract import ANY_DEVICE, BACKEND_API, OLDEST_API, BackendInfo, BackendLoadError, Capabilities
from spikecore.words import a_kind

if TYPE_CHECKING:
    from spikecore.backend import Backend

#: The plugins of this project, in the folders ``plugins/spikecore-NAME`` of the repository.
PLUGINS = ("c", "jax", "numba", "opencl", "triton")

hookspec = pluggy.HookspecMarker("spikecore")
_log = logging.getLogger("spikecore")
_T = TypeVar("_T")


class _Hooks:
    @hookspec
    def spikecore_backends(self) -> Iterable[BackendInfo]:
        """Describe the backends this plugin provides. Cheap: no heavy import, no device access."""
        return ()


class Probed(NamedTuple):
    """Result of a probe: why the backend is unusable here (None if it is usable), and what the probe raised."""

    reason: Optional[str]
    error: Optional[BaseException] = None
    #: Name of the substitute that computes here; "" if the backend itself does.
    note: str = ""


@dataclass
class Plugin:
    """One backend: its entry-point metadata, which is its identity after a refresh, and how far it is loaded."""

    name: str
    #: Place of the hook, as the entry point gives it.
    value: str
    distribution: str
    version: str
    builtin: bool
    load: Callable[[], object] = field(compare=False)
    #: Results of the steps that are done: ``info``, ``probed`` and ``backend``.
    results: Dict[str, Any] = field(default_factory=dict, compare=False)
    failure: Optional[BackendLoadError] = field(default=None, compare=False)
    loading: bool = field(default=False, compare=False)

    @property
    def provider(self) -> str:
        """Distribution and version, as errors name it."""
        return f"{self.distribution} {self.version}".strip() or "unknown distribution"

    @property
    def ours(self) -> bool:
        """True for a built-in and for a plugin of this project: an entry point's name alone could be anybody's."""
        project = f"spikecore-{self.name}", f"spikecore_{self.name}"
        return self.builtin or (self.name in PLUGINS and (normal_name(self.distribution), self.value) == project)

    def unusable(self) -> str:
        """The probe's reason with the hint how to get what is missing; "" for a backend that is usable here."""
        reason, hint = self.results["probed"].reason, self.results["info"].install_hint
        return f"{reason} ({hint})" if reason and hint else reason or ""

    def advance(self, step: str) -> None:
        """Run a step, :func:`_describe`, :func:`_probe` or :func:`_make`, and keep its result or its failure."""
        if self.loading:
            raise BackendLoadError(
                f"backend {self.name!r} is being loaded already: its own module, probe or factory asks for it, or "
                "this process was forked while another thread loaded it"
            )
        self.loading = True
        try:
            self.results[step] = self.run(step)
        except BackendLoadError as error:
            self.failure = error
            _log.warning("%s", error)
        finally:
            self.loading = False

    def run(self, step: str) -> Any:
        """Result of a step, which is not kept. Raises :class:`BackendLoadError`."""
        steps: Dict[str, Callable[[Plugin], Any]] = {"info": _describe, "probed": _probe, "backend": _make}
        return contained(lambda: steps[step](self), self._failed)

    def _failed(self, error: BaseException) -> BackendLoadError:
        if isinstance(error, _Skew):
            return BackendLoadError(str(error))
        why = f"failed to load: {described(error)}; SPIKECORE_BLOCK={self.name} skips it"
        return BackendLoadError(f"backend {self.name!r} ({self.provider}) {why}")


def contained(call: Callable[[], _T], failure: Callable[[BaseException], Exception]) -> _T:
    """The result of a plugin's code. If it raises anything but KeyboardInterrupt, ``failure(error)`` is raised."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and pytest's Skipped, too, are errors of the plugin
        raise failure(error) from error


def described(error: BaseException) -> str:
    """The error in a sentence: its type and its text, where it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def normal_name(name: str) -> str:
    """A distribution's name as package indexes compare it: ``Spikecore_Foo`` is ``spikecore-foo``."""
    return re.sub(r"[-_.]+", "-", name).lower()


class _Skew(Exception):
    """Another version of the contract than this spikecore speaks."""


def _describe(plugin: Plugin) -> BackendInfo:
    """Import the plugin's module, and take its description of the backend of that name."""
    # a manager for each plugin: pluggy stops at the first hook that fails, and reports another's misspelt hook
    manager = pluggy.PluginManager("spikecore")
    manager.add_hookspecs(_Hooks)
    manager.register(plugin.load(), name=plugin.name)
    manager.check_pending()
    hooks = manager.hook.spikecore_backends.get_hookimpls()
    if not hooks:
        raise TypeError(
            f"{plugin.value} implements no hook; mark spikecore_backends() with @spikecore.backend.hookimpl"
        )
    infos: List[BackendInfo] = []
    for hook in hooks:
        result: Any = hook.function()
        if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
            raise TypeError(f"spikecore_backends() must return BackendInfo objects in a list or tuple, got {result!r}")
        infos += result
    for info in infos:
        if not isinstance(info, BackendInfo):
            raise TypeError(f"spikecore_backends() must return BackendInfo objects, got {info!r}")
    matching = [info for info in infos if info.name == plugin.name]
    if len(matching) != 1:
        names = ", ".join(sorted(repr(info.name) for info in infos)) or "none"
        raise ValueError(f"spikecore_backends() must describe {plugin.name!r} once; it describes {names}")
    _check_version(plugin, matching[0].api)  # first: another version of the contract may have other fields
    _check_fields(matching[0])
    return matching[0]


def _check_version(plugin: Plugin, api: Any) -> None:
    """A version of the contract is a pair, ``(major, minor)``; an integer N stands for ``(N, 0)``."""
    version = api if isinstance(api, tuple) else (api, 0)
    if [type(number) for number in version] != [int, int]:
        raise TypeError(f"BackendInfo.api must be an integer or two, (major, minor), got {api!r}")
    if not OLDEST_API <= version <= BACKEND_API:
        shown = ".".join(map(str, version if isinstance(api, tuple) else (api,)))
        speaks = f"{'.'.join(map(str, OLDEST_API))} to {'.'.join(map(str, BACKEND_API))}"
        raise _Skew(
            f"backend {plugin.name!r} ({plugin.provider}) speaks backend API {shown}; this spikecore speaks {speaks}; "
            f"upgrade {plugin.distribution if version < OLDEST_API else 'spikecore'}"
        )


def _check_fields(info: Any) -> None:
    """TypeError for a field that is not what it must be."""
    factory = isinstance(info.factory, str) and re.fullmatch(r"[\w.]+:[\w.]+", info.factory)
    devices, never = (
        isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        for names in (info.devices, info.never)
    )
    for name, right, what in (
        ("factory", factory, "'package.module:Class'"),
        ("devices", devices and info.devices, "a tuple of device types"),
        ("never", never, "a tuple of device types"),
        ("capabilities", isinstance(info.capabilities, Capabilities), "a Capabilities"),
        ("probe", callable(info.probe), "callable"),
        ("note", info.note is None or callable(info.note), "callable or None"),
        ("install_hint", isinstance(info.install_hint, str), "a string"),
    ):
        if not right:
            raise TypeError(f"BackendInfo.{name} must be {what}, got {getattr(info, name)!r}")


def _probe(plugin: Plugin) -> Probed:
    """Ask the backend whether it is usable here. An error of the probe is a reason like any other."""
    info: Any = plugin.results["info"]

    def ask() -> Probed:
        reason = info.probe()
        if reason is not None and not (isinstance(reason, str) and reason):
            raise TypeError(f"it must return None or a reason in words, got {reason!r}")
        return Probed(reason, note="" if reason or info.note is None else str(info.note()))

    try:
        return contained(ask, lambda error: RuntimeError(described(error)))
    except RuntimeError as error:
        return Probed(f"its probe raised {error}", error.__cause__)


def _make(plugin: Plugin) -> Backend:
    """Import the factory that the description names, call it, and check that it made what the description says."""
    from spikecore.backend import Backend

    info: Any = plugin.results["info"]
    module, _, attribute = info.factory.partition(":")
    factory: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
    backend = factory()
    if not isinstance(backend, Backend):
        raise TypeError(f"{info.factory} made {a_kind(backend)}, not a spikecore.backend.Backend")
    if backend.name != info.name:
        raise ValueError(f"{info.factory} made a backend named {backend.name!r}, not {info.name!r}")
    if backend.capabilities != info.capabilities:
        raise ValueError(f"{info.factory} has other capabilities than its BackendInfo declares")
    for device in (device for device in info.devices if device != ANY_DEVICE):
        more = set(backend.capabilities_on(device).names()) - set(info.capabilities.names())
        if more:
            source = f"{info.factory}.capabilities_on({device!r})"
            raise ValueError(f"{source} has {', '.join(sorted(more))}, which its BackendInfo does not declare")
    return backend
