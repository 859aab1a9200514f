"""Which backends there are, how they are loaded, and one object per name.

Rules of this module:

- Importing it reads no metadata and imports no torch; listing reads metadata only; a plugin's module is imported when
  its name is asked for.
- A broken plugin harms itself alone: its error, whatever it is, is kept, logged once, and is the ``__cause__`` when it
  is asked for. One lock is held while a plugin loads, and none for lists.
- Names are exact. A built-in's name cannot be taken, and a name that two distributions provide belongs to neither.
- ``SPIKECORE_BLOCK`` (backend or distribution names, separated by commas) and ``SPIKECORE_NO_PLUGINS=1`` are read at
  time of use and act before any import.
- What was loaded and what failed is remembered until :meth:`Registry.refresh`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import logging
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar

import pluggy

from spikecore._base.caches import SAID, Lock, Recent
from spikecore._base.descriptions import (
    ANY_DEVICE,
    BACKEND_API,
    OLDEST_API,
    BackendInfo,
    BackendStatus,
    Capabilities,
)
from spikecore._base.errors import BackendError, BackendLoadError, BackendUnavailable, UnknownBackend
from spikecore._version import __version__
from spikecore.words import a_kind

if TYPE_CHECKING:
    from spikecore.backend import Backend

#: The one table of built-in backends: name -> module with the hook. Strings, so that nothing is imported for them.
BUILTINS: Mapping[str, str] = {"cupy": "spikecore_cupy", "ipu": "spikecore_ipu", "torch": "spikecore_torch"}
#: Module of a built-in backend -> the libraries of which it needs one. A plugin's come with it.
LIBRARIES: Mapping[str, Tuple[str, ...]] = {
    "spikecore_cupy": ("cupy",),
    "spikecore_ipu": ("poptorch", "poptorch_emulator"),
}
#: The plugins of this project, in the folders ``plugins/spikecore-NAME`` of the repository.
PLUGINS = ("c", "jax", "numba", "triton")
#: The backend that defines what is right; automatic choice on every device type that :data:`AUTO` does not name.
REFERENCE = "torch"
#: Device type -> the backends that automatic choice tries there, best first: built-ins, and plugins of this project.
AUTO: Mapping[str, Tuple[str, ...]] = {
    "cpu": ("numba", REFERENCE),
    "cuda": ("cupy", "triton", REFERENCE),
    "ipu": ("ipu",),
}
#: The value that asks for automatic choice, and therefore no backend's name.
AUTO_NAME = "auto"
#: Entry-point group; the entry point's name is the backend's name.
GROUP = "spikecore.backends"
#: Words for devices that are asked for as if they were backends, and what torch calls them.
_DEVICES = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "hip": "cuda", "mps": "mps", "rocm": "cuda", "xpu": "xpu"}

hookspec = pluggy.HookspecMarker("spikecore")
_log = logging.getLogger("spikecore")
_T = TypeVar("_T")


class _Hooks:
    @hookspec
    def spikecore_backends(self) -> Iterable[BackendInfo]:
        """Describe the backends this plugin provides. Cheap: no heavy import, no device access."""
        return ()


@dataclass
class Probed:
    """Result of a probe: why the backend is unusable here (None if it is usable), what the probe raised, the note."""

    reason: Optional[str]
    error: Optional[BaseException] = None
    #: Name of the substitute that computes here; "" if the backend itself does.
    note: str = ""


@dataclass
class Plugin:
    """One backend: its entry-point metadata, which is its identity after a refresh, and its load status."""

    name: str
    #: Place of the hook, as the entry point gives it.
    value: str
    distribution: str
    version: str
    builtin: bool
    load: Callable[[], object] = field(compare=False)
    info: Optional[BackendInfo] = field(default=None, compare=False)
    probed: Optional[Probed] = field(default=None, compare=False)
    backend: Optional[Backend] = field(default=None, compare=False)
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
        """The probe's reason with the hint how to get what is missing."""
        reason, hint = str(self.probed and self.probed.reason), self.info and self.info.install_hint
        return f"{reason} ({hint})" if hint else reason

    def failed(self, error: BaseException) -> BackendLoadError:
        """The error of a plugin that cannot be loaded."""
        if isinstance(error, _Skew):
            return BackendLoadError(str(error))
        why = f"failed to load: {described(error)}; SPIKECORE_BLOCK={self.name} skips it"
        return BackendLoadError(f"backend {self.name!r} ({self.provider}) {why}")


class Registry:
    """The backends of one table of built-ins and one set of entry points. Safe to use from any thread.

    ``entry_points`` are objects with ``name``, ``value``, ``load()`` and, where known, ``dist``; ``None`` means those
    installed in the group ``spikecore.backends``, read when first needed. ``environ=None`` means ``os.environ``.
    """

    def __init__(
        self,
        builtins: Mapping[str, str],
        *,
        entry_points: Optional[Iterable[Any]] = None,
        environ: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.builtins: Mapping[str, str] = dict(builtins)
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._environ = environ
        self._lock = Lock(1.0)  # a probe may fork, on another thread, and wait for that
        self._plugins: Optional[Tuple[Plugin, ...]] = None
        self._used: List[Plugin] = []
        self._reported: Recent[int, bool] = Recent(SAID)

    def names(self) -> List[str]:
        """Names that can be asked for, sorted: not the blocked, shadowed, ill-named or doubly provided ones."""
        return sorted({plugin.name for plugin in self._all() if not self._verdict(plugin)[0]})

    def status(
        self, probe: bool = False, automatic: Mapping[str, Tuple[str, ...]] = MappingProxyType({})
    ) -> List[BackendStatus]:
        """Every backend of every distribution. Imports nothing, unless ``probe`` asks to load and try all it may.

        ``automatic`` has the device types for which a name is chosen automatically, if it is one of the project's own.
        """
        plugins = sorted(self._all(), key=lambda plugin: (plugin.name, not plugin.builtin, plugin.distribution))
        return [self._row(plugin, probe, automatic.get(plugin.name, ())) for plugin in plugins]

    def info(self, name: str, source: str) -> BackendInfo:
        """Description that the backend gives of itself. ``source`` names the caller, in the words that errors use.

        Raises :class:`UnknownBackend`, :class:`BackendLoadError`, or :class:`BackendUnavailable` for a blocked name.
        """
        return self._info(self._pick(name, source))

    def probe(self, name: str, source: str) -> Optional[str]:
        """None when the backend is usable here, else the reason in words. Raises as :meth:`info` does."""
        return self._probed(self._pick(name, source)).reason

    def offers(self, name: str) -> bool:
        """True if automatic choice may take this name: a built-in, or a plugin of this project that is installed and
        not blocked. Imports nothing.
        """
        return any(p.builtin or (p.ours and not self._blocked(p)) for p in self._all() if p.name == name)

    def check(self, name: str, source: str) -> None:
        """Raise as :meth:`info` does for a name that cannot be asked for, without importing what provides it."""
        self._pick(name, source)

    def get(self, name: str, source: str) -> Backend:
        """The backend, ready to use; the same object every time.

        Raises as :meth:`info` does, and :class:`BackendUnavailable` when it is not usable here.
        """
        plugin = self._pick(name, source)
        probed = self._probed(plugin)
        if probed.reason:
            explicit = "; no other backend was tried because the choice was explicit: 'auto' takes one that works here"
            why = f"is not usable here: {plugin.unusable()}{'' if source == AUTO_NAME else explicit}"
            raise BackendUnavailable(f"backend {name!r} (from {source}) {why}") from probed.error
        return self._backend(plugin)

    def unprobed(self, name: str, source: str) -> Backend:
        """The backend, usable here or not, for what needs no device; the same object as :meth:`get`. Raises as
        :meth:`info` does.
        """
        return self._backend(self._pick(name, source))

    @contextmanager
    def fresh(self, name: str, source: str) -> Iterator[Backend]:
        """Within the block the name stands for a new object of the backend, made by its factory, which has compiled
        nothing yet; neurons made in the block use it. For tests, from one thread. Raises as :meth:`get` does.
        """
        before, plugin = self.get(name, source), self._pick(name, source)
        plugin.backend = made = contained(partial(_make, plugin), plugin.failed)
        try:
            yield made
        finally:
            plugin.backend = before

    def refresh(self) -> None:
        """Look again: forget what was found, what failed and what was said once. Backends in use are kept."""
        importlib.invalidate_caches()
        with self._lock:
            self._used = [plugin for plugin in self._all() if plugin.backend]
            self._plugins = None
        self._reported.clear()

    def first(self, key: object) -> bool:
        """True the first time it is asked for this key, among the last :data:`SAID`: for what is said only once."""
        code = hash(key)  # the text of an error may be long
        new = self._reported.get(code) is None
        self._reported.put(code, True)
        return new

    # what there is: metadata and environment, nothing imported

    def _all(self) -> Tuple[Plugin, ...]:
        flag = self._env("SPIKECORE_NO_PLUGINS")
        if flag not in ("", "0", "1"):
            raise BackendError(f"SPIKECORE_NO_PLUGINS={flag!r} must be 1, which blocks plugins, or 0, empty or unset")
        if self._plugins is None:
            with self._lock:
                self._plugins = self._plugins or self._search()
        return self._plugins

    def _search(self) -> Tuple[Plugin, ...]:
        plugins = [
            Plugin(name, module, "spikecore", __version__, True, partial(importlib.import_module, module))
            for name, module in self.builtins.items()
        ]
        points = self._entry_points
        for distribution, point in (
            installed() if points is None else ((getattr(point, "dist", None), point) for point in points)
        ):
            name, version = (distribution.metadata["Name"], distribution.version) if distribution else ("", "")
            plugins.append(Plugin(point.name, point.value, name or "", version or "", False, point.load))
        return tuple(next((used for used in self._used if used == plugin), plugin) for plugin in plugins)

    def _verdict(self, plugin: Plugin) -> Tuple[str, str]:
        """State and detail of a plugin that must not be loaded, else two empty strings."""
        blocked = self._blocked(plugin)
        if blocked:
            return "blocked", blocked
        name, provider = plugin.name, plugin.provider
        if plugin.builtin:
            return "", ""
        if name == AUTO_NAME or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            why = "is reserved" if name == AUTO_NAME else "is not a lower-case identifier"
            return "failed", f"backend name {name!r} ({provider}) {why}; {provider} must choose another"
        if name in self.builtins:
            return "shadowed", f"{name!r} is a built-in backend and stays so; {provider} must choose another name"
        rivals = [p for p in self._all() if p.name == name and not self._blocked(p)]
        if len(rivals) > 1:
            rivals.sort(key=lambda p: (not p.ours, p.provider))
            providers = " and ".join(p.provider for p in rivals)
            way_out = f"uninstall one, or set SPIKECORE_BLOCK={rivals[-1].distribution}"
            return "failed", f"backend name {name!r} is provided by {providers}; {way_out}"
        return "", ""

    def _blocked(self, plugin: Plugin) -> str:
        names = normal_name(plugin.name), normal_name(plugin.distribution)
        for word in filter(None, map(str.strip, self._env("SPIKECORE_BLOCK").split(","))):
            if normal_name(word) in names:
                return f"blocked by SPIKECORE_BLOCK; take {word!r} out of it to use this backend"
        if not plugin.builtin and self._env("SPIKECORE_NO_PLUGINS") == "1":
            return "blocked by SPIKECORE_NO_PLUGINS; unset it to use this backend"
        return ""

    def _env(self, key: str) -> str:
        return (os.environ if self._environ is None else self._environ).get(key, "").strip()

    def _pick(self, name: str, source: str) -> Plugin:
        """The one plugin that provides this name."""
        details: Dict[str, str] = {}
        for plugin in self._all():
            if plugin.name == name:
                state, detail = self._verdict(plugin)
                if not state:
                    return plugin
                details[state] = detail
        if "failed" in details:
            raise BackendLoadError(details["failed"])
        if "blocked" in details:
            raise BackendUnavailable(f"backend {name!r} (from {source}) is {details['blocked']}")
        known = self.names()
        hint = _hint(name, known)
        raise UnknownBackend(f"unknown backend {name!r} (from {source}); {hint}Known: {', '.join(known)}")

    def _row(self, plugin: Plugin, probe: bool, automatic: Tuple[str, ...]) -> BackendStatus:
        state, detail = self._verdict(plugin)
        chosen = automatic if plugin.ours and not state else ()
        if probe and not state:
            try:
                if not self._probed(plugin).reason:
                    self._backend(plugin)
            except BackendLoadError:
                pass  # remembered in plugin.failure
        info, probed = plugin.info, plugin.probed
        if not state and plugin.failure:
            state, detail = "failed", str(plugin.failure)
        elif not state and probed:
            state, detail = ("unavailable", plugin.unusable()) if probed.reason else ("ready", probed.note)
        elif not state and plugin.value in LIBRARIES and not any(map(find_spec, LIBRARIES[plugin.value])):
            library = LIBRARIES[plugin.value][0]
            state, detail = "not installed", f"it needs {library}: spikecore backends --probe says how to install it"
        api, devices, names = (info.api, info.devices, info.capabilities.names()) if info else (None, (), ())
        who = plugin.name, state or "installed", plugin.distribution, plugin.version
        return BackendStatus(*who, api, devices, names, detail, chosen)

    # loading: each step is done once, and its failure remembered

    def _info(self, plugin: Plugin) -> BackendInfo:
        info: BackendInfo = self._once(plugin, "info", _describe)
        return info

    def _probed(self, plugin: Plugin) -> Probed:
        self._info(plugin)
        probed: Probed = self._once(plugin, "probed", _probe)
        return probed

    def _backend(self, plugin: Plugin) -> Backend:
        self._info(plugin)
        backend: Backend = self._once(plugin, "backend", _make)
        return backend

    def _once(self, plugin: Plugin, attribute: str, step: Callable[[Plugin], Any]) -> Any:
        """The attribute of a plugin, which ``step`` computes the first time."""
        if getattr(plugin, attribute) is None and plugin.failure is None:
            with self._lock:
                if getattr(plugin, attribute) is None and plugin.failure is None:
                    self._load(plugin, attribute, step)
        if plugin.failure:
            # a new exception each time: raising the same one again would make its traceback grow
            raise BackendLoadError(str(plugin.failure)) from plugin.failure.__cause__
        return getattr(plugin, attribute)

    def _load(self, plugin: Plugin, attribute: str, step: Callable[[Plugin], Any]) -> None:
        if plugin.loading:
            raise BackendLoadError(
                f"backend {plugin.name!r} is being loaded already: its own module, probe or factory asks for it, or "
                "this process was forked while another thread loaded it"
            )
        plugin.loading = True
        try:
            setattr(plugin, attribute, contained(partial(step, plugin), plugin.failed))
        except BackendLoadError as error:
            plugin.failure = error
            _log.warning("%s", error)
        finally:
            plugin.loading = False


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


# from metadata to plugins


def normal_name(name: str) -> str:
    """A distribution's name as package indexes compare it: ``Spikecore_Foo`` is ``spikecore-foo``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> Iterator[Tuple[Any, Any]]:
    """Entry points with their distributions. Of two copies of a distribution the first one on the path counts."""
    first: Dict[str, Any] = {}
    for distribution in importlib.metadata.distributions():
        try:
            points = [point for point in distribution.entry_points if point.group == GROUP]
            if points:
                first.setdefault(normal_name(distribution.metadata["Name"] or points[0].value), (distribution, points))
        except Exception as error:  # somebody's metadata cannot be read
            _log.debug("unreadable metadata of %r: %s", distribution, error)
    for distribution, points in first.values():
        for point in points:
            yield distribution, point


def _hint(name: str, known: List[str]) -> str:
    """A sentence on what an unknown name may mean, with a space after it; empty if nothing is close."""
    plain = name.strip().lower()
    # "cuda:1" is a device, too; a plugin is also asked for by the name of its distribution or of its package
    device, short = _DEVICES.get(plain.partition(":")[0]), plain.replace("_", "-").replace("spikecore-", "")
    if device is not None:
        return (
            f"that is a device: a backend computes where the tensors are, so move the network, net.to({device!r}), and "
            f"leave backend out, or ask for one that computes there: {', '.join(AUTO.get(device, (REFERENCE,)))}. "
        )
    if short in PLUGINS and short not in known:
        install = f"pip install ./plugins/spikecore-{short}, in a clone of spikecore"
        return f"that is the plugin spikecore-{short}, which is not installed: {install}. "
    # 'cudda' means the backend of that device
    meant = {device: names[0] for device, names in AUTO.items() if names[0] in known}
    meant.update({word: word for word in (AUTO_NAME, *known)})
    close = difflib.get_close_matches(plain, meant, n=1, cutoff=0.7)
    return f"did you mean {meant[close[0]]!r}? " if close else ""


# from a plugin to its backend: each step checks what it is given


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

    def ask(info: Any = plugin.info) -> Probed:
        reason = info.probe()
        if reason is not None and not (isinstance(reason, str) and reason):
            raise TypeError(f"it must return None or a reason in words, got {reason!r}")
        return Probed(reason, None, "" if reason or info.note is None else str(info.note()))

    try:
        return contained(ask, lambda error: RuntimeError(described(error)))
    except RuntimeError as error:
        return Probed(f"its probe raised {error}", error.__cause__)


def _make(plugin: Plugin) -> Backend:
    """Import the factory that the description names, call it, and check that it made what the description says."""
    from spikecore.backend import Backend

    info: Any = plugin.info
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


_defaults = [Registry(BUILTINS)]


def default_registry() -> Registry:
    """The registry of this process: the built-ins and the installed plugins."""
    return _defaults[-1]


def replace_default(registry: Registry) -> Registry:
    """Take another registry for this process; the one before, to be put back."""
    before, _defaults[:] = _defaults[-1], [registry]
    return before
