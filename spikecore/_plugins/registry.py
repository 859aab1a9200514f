"""Which backends there are, how they are loaded, and one object per name.

Rules of this module:

- Importing it reads no metadata; listing reads metadata only; a plugin's module is imported when its name is asked for.
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
from dataclasses import dataclass
from functools import partial, reduce
from types import MappingProxyType
from typing import (
    Any,
    Callable,
    Dict,
    Hashable,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    TypeVar,
)

import pluggy

from spikecore._base.caches import SAID, Lock, Recent
from spikecore._base.errors import a_kind
from spikecore._version import __version__
from spikecore.backend import (
    ANY_DEVICE,
    BACKEND_API,
    OLDEST_API,
    Api,
    Backend,
    BackendError,
    BackendInfo,
    BackendLoadError,
    BackendUnavailable,
    Capabilities,
    UnknownBackend,
)

#: The one table of built-in backends: name -> module with the hook. Strings, so that nothing is imported for them.
BUILTINS: Mapping[str, str] = {"cupy": "spikecore_cupy", "ipu": "spikecore_ipu", "torch": "spikecore_torch"}
#: The plugins of this project, in the folders ``plugins/spikecore-NAME`` of the repository.
PLUGINS = ("jax", "numba", "triton")
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
hookimpl = pluggy.HookimplMarker("spikecore")
_log = logging.getLogger("spikecore")
_T = TypeVar("_T")


class _Hooks:
    @hookspec
    def spikecore_backends(self) -> Iterable[BackendInfo]:
        """Describe the backends this plugin provides. Cheap: no heavy import, no device access."""
        return ()


@dataclass(frozen=True)
class BackendStatus:
    """One line of the list of backends. A field is empty (``api``: None) while it is not known."""

    name: str
    #: ``ready``, ``unavailable``, ``failed``, ``blocked``, ``shadowed``, or ``installed``: nobody has tried it yet.
    state: str
    distribution: str
    version: str
    api: Optional[Api]
    devices: Tuple[str, ...]
    #: Names of the declared capabilities.
    capabilities: Tuple[str, ...]
    #: Why it is in this state, and the way out; for a ready one, what serves if it is not what the name says.
    detail: str
    #: Device types whose tensors automatic choice may give to it.
    automatic: Tuple[str, ...] = ()


class Probed(NamedTuple):
    """What a probe said: why the backend is unusable here (None if it is usable), and what the probe raised, if so."""

    reason: Optional[str]
    error: Optional[BaseException] = None
    #: What serves here, if it is not what the name says.
    note: str = ""


@dataclass(eq=False)
class Plugin:
    """A backend: what metadata says of it, and what loading it has shown so far."""

    name: str
    #: Where the hook is, as the entry point says it.
    value: str
    distribution: str
    version: str
    builtin: bool
    load: Callable[[], object]
    info: Optional[BackendInfo] = None
    probed: Optional[Probed] = None
    backend: Optional[Backend] = None
    failure: Optional[BackendLoadError] = None
    loading: bool = False

    @property
    def provider(self) -> str:
        """Distribution and version, as errors name it."""
        return f"{self.distribution} {self.version}".strip() or "unknown distribution"

    @property
    def identity(self) -> Tuple[str, str, str, str]:
        """By this a plugin is the same after a refresh."""
        return self.name, self.value, self.distribution, self.version

    @property
    def ours(self) -> bool:
        """Whether it is a built-in, or a plugin of this project: an entry point's name alone could be anybody's."""
        project = f"spikecore-{self.name}", f"spikecore_{self.name}"
        return self.builtin or (self.name in PLUGINS and (normal_name(self.distribution), self.value) == project)

    def answers_to(self, word: str) -> bool:
        """Whether ``word`` names this backend or its distribution, spelt in any of the ways of a distribution."""
        return normal_name(word) in (normal_name(self.name), normal_name(self.distribution))

    def unusable(self) -> str:
        """The probe's reason with the hint how to get what is missing."""
        hint = self.info.install_hint if self.info else ""
        reason = self.probed.reason if self.probed else None
        return f"{reason} ({hint})" if hint else str(reason)

    def failed(self, error: BaseException) -> BackendLoadError:
        """The error of a plugin that cannot be loaded."""
        if isinstance(error, _Skew):
            return BackendLoadError(str(error))
        return BackendLoadError(
            f"backend {self.name!r} ({self.provider}) failed to load: {described(error)}; "
            f"SPIKECORE_BLOCK={self.name} skips it"
        )


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
        self._used: Dict[Hashable, Plugin] = {}
        self._said: Recent[Hashable, bool] = Recent(SAID)

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
        """What the backend says about itself. ``source`` is who asks, in the words that errors use.

        Raises :class:`UnknownBackend`, :class:`BackendLoadError`, or :class:`BackendUnavailable` for a blocked name.
        """
        return self._info(self._pick(name, source))

    def probe(self, name: str, source: str) -> Optional[str]:
        """None when the backend is usable here, else the reason in words. Raises as :meth:`info` does."""
        return self._probed(self._pick(name, source)).reason

    def offers(self, name: str) -> bool:
        """Whether automatic choice may take this name: a built-in, or a plugin of this project that is installed and
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
        plugin.backend = made = contained(partial(_made, plugin), plugin.failed)
        try:
            yield made
        finally:
            plugin.backend = before

    def refresh(self) -> None:
        """Look again: forget what was found, what failed and what was said once. Backends in use are kept."""
        importlib.invalidate_caches()
        with self._lock:
            self._used = {plugin.identity: plugin for plugin in self._all() if plugin.backend}
            self._plugins = None
        self._said.clear()

    def first(self, key: Hashable) -> bool:
        """True the first time it is asked for this key, among the last :data:`SAID`: for what is said only once."""
        said = hash(key)  # the text of an error may be long
        new = self._said.get(said) is None
        self._said.put(said, True)
        return new

    # what there is: metadata and environment, nothing imported

    def _all(self) -> Tuple[Plugin, ...]:
        flag = self._env("SPIKECORE_NO_PLUGINS")
        if flag not in ("", "0", "1"):
            raise BackendError(f"SPIKECORE_NO_PLUGINS={flag!r} must be 1, which blocks plugins, or 0, empty or unset")
        plugins = self._plugins
        if plugins is None:
            with self._lock:
                given = self._entry_points
                points = installed() if given is None else ((getattr(p, "dist", None), p) for p in given)
                found = [_builtin(*item) for item in self.builtins.items()] + [_plugin(*pair) for pair in points]
                plugins = self._plugins = self._plugins or tuple(self._used.get(p.identity, p) for p in found)
        return plugins

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
        for word in filter(None, (word.strip() for word in self._env("SPIKECORE_BLOCK").split(","))):
            if plugin.answers_to(word):
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
        meant = _hint(name, known, self._devices(source))
        raise UnknownBackend(f"unknown backend {name!r} (from {source}); {meant}Known: {', '.join(known)}")

    def _devices(self, source: str) -> Dict[str, str]:
        """Device types with the built-in that computes there: whoever asks for 'cudda' means that."""
        devices: Dict[str, str] = {}
        for name in filter(self.builtins.__contains__, self.names()):
            try:
                devices.update((device, name) for device in self.info(name, source).devices if device != "cpu")
            except BackendError:
                continue
        return devices

    def _row(self, plugin: Plugin, probe: bool, automatic: Tuple[str, ...]) -> BackendStatus:
        state, detail = self._verdict(plugin)
        chosen = automatic if plugin.ours and not state else ()
        if probe and not state:
            try:
                if not self._probed(plugin).reason:
                    self._backend(plugin)
            except BackendLoadError:
                pass  # kept, and shown from there
        info, probed = plugin.info, plugin.probed
        if not state and plugin.failure:
            state, detail = "failed", str(plugin.failure)
        elif not state and probed:
            state, detail = ("unavailable", plugin.unusable()) if probed.reason else ("ready", probed.note)
        api, devices, names = (info.api, info.devices, info.capabilities.names()) if info else (None, (), ())
        state = state or "installed"
        return BackendStatus(
            plugin.name, state, plugin.distribution, plugin.version, api, devices, names, detail, chosen
        )

    # loading, step by step; each step is done once, and its failure kept

    def _info(self, plugin: Plugin) -> BackendInfo:
        return self._once(plugin, lambda: plugin.info, _described)

    def _probed(self, plugin: Plugin) -> Probed:
        self._info(plugin)
        return self._once(plugin, lambda: plugin.probed, _asked)

    def _backend(self, plugin: Plugin) -> Backend:
        self._info(plugin)
        return self._once(plugin, lambda: plugin.backend, _made)

    def _once(self, plugin: Plugin, known: Callable[[], Optional[_T]], step: Callable[[Plugin], object]) -> _T:
        """What is known, after ``step``, which is done if nothing is known and nothing has failed."""
        value = known()
        if value is None and plugin.failure is None:
            with self._lock:
                if known() is None and plugin.failure is None:
                    self._do(plugin, step)
            value = known()
        if value is None or plugin.failure:
            # a new exception each time: raising the kept one again would make its traceback grow
            raise BackendLoadError(str(plugin.failure)) from getattr(plugin.failure, "__cause__", None)
        return value

    def _do(self, plugin: Plugin, step: Callable[[Plugin], object]) -> None:
        if plugin.loading:
            raise BackendLoadError(
                f"backend {plugin.name!r} is being loaded already: its own module, probe or factory asks for it, or "
                "this process was forked while another thread loaded it"
            )
        plugin.loading = True
        try:
            contained(partial(step, plugin), plugin.failed)
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


def _builtin(name: str, module: str) -> Plugin:
    return Plugin(name, module, "spikecore", __version__, True, partial(importlib.import_module, module))


def _plugin(distribution: Any, point: Any) -> Plugin:
    name, version = (distribution.metadata["Name"], distribution.version) if distribution else ("", "")
    return Plugin(point.name, point.value, name or "", version or "", False, point.load)


def _hint(name: str, known: List[str], devices: Mapping[str, str]) -> str:
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
    meant = {**devices, AUTO_NAME: AUTO_NAME, **{each: each for each in known}}
    close = difflib.get_close_matches(plain, meant, n=1, cutoff=0.7)
    return f"did you mean {meant[close[0]]!r}? " if close else ""


# from a plugin to its backend: each step checks what it is given


class _Skew(Exception):
    """Another version of the contract than this spikecore speaks."""


def _described(plugin: Plugin) -> None:
    """Import the plugin's module, and take its description of the backend of that name."""
    # a manager for each plugin: pluggy stops at the first hook that fails, and reports another's misspelt hook
    manager = pluggy.PluginManager("spikecore")
    manager.add_hookspecs(_Hooks)
    manager.register(plugin.load(), name=plugin.name)
    manager.check_pending()
    hooks = manager.hook.spikecore_backends.get_hookimpls()
    if not hooks:
        raise TypeError(f"{plugin.value} implements no hook; mark spikecore_backends() with @spikecore.hookimpl")
    infos: List[BackendInfo] = []
    for hook in hooks:
        result: Any = hook.function()
        if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
            raise TypeError(f"spikecore_backends() must return BackendInfo objects in a list or tuple, got {result!r}")
        infos += result
    for info in infos:
        if not isinstance(info, BackendInfo):
            raise TypeError(f"spikecore_backends() must return BackendInfo objects, got {info!r}")
    mine = [info for info in infos if info.name == plugin.name]
    if len(mine) != 1:
        names = ", ".join(sorted(repr(info.name) for info in infos)) or "none"
        raise ValueError(f"spikecore_backends() must describe {plugin.name!r} once; it describes {names}")
    _check_version(plugin, mine[0].api)  # first: another version of the contract may have other fields
    _check_fields(mine[0])
    plugin.info = mine[0]


def _check_version(plugin: Plugin, api: Any) -> None:
    """A version of the contract is a pair, ``(major, minor)``; an integer N stands for ``(N, 0)``."""
    version = api if isinstance(api, tuple) else (api, 0)
    if len(version) != 2 or not all(isinstance(number, int) and not isinstance(number, bool) for number in version):
        raise TypeError(f"BackendInfo.api must be an integer or two, (major, minor), got {api!r}")
    if not OLDEST_API <= version <= BACKEND_API:
        shown = ".".join(map(str, api)) if isinstance(api, tuple) else str(api)
        speaks = f"{'.'.join(map(str, OLDEST_API))} to {'.'.join(map(str, BACKEND_API))}"
        raise _Skew(
            f"backend {plugin.name!r} ({plugin.provider}) speaks backend API {shown}; this spikecore speaks {speaks}; "
            f"upgrade {plugin.distribution if version < OLDEST_API else 'spikecore'}"
        )


def _check_fields(info: BackendInfo) -> None:
    """TypeError or ValueError for a field that is not what it must be."""

    def are_devices(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(device, str) for device in value)

    if not isinstance(info.factory, str) or not re.fullmatch(r"[\w.]+:[\w.]+", info.factory):
        raise ValueError(f"BackendInfo.factory must be 'package.module:Class', got {info.factory!r}")
    for name, right, what in (
        ("devices", are_devices(info.devices) and info.devices, "a tuple of device types"),
        ("never", are_devices(info.never), "a tuple of device types"),
        ("capabilities", isinstance(info.capabilities, Capabilities), "a Capabilities"),
        ("probe", callable(info.probe), "callable"),
        ("note", info.note is None or callable(info.note), "callable or None"),
        ("install_hint", isinstance(info.install_hint, str), "a string"),
    ):
        if not right:
            raise TypeError(f"BackendInfo.{name} must be {what}, got {getattr(info, name)!r}")


def _asked(plugin: Plugin) -> None:
    """Ask the backend whether it is usable here. An error of the probe is a reason like any other."""
    try:
        plugin.probed = contained(partial(_answer, plugin), lambda error: RuntimeError(described(error)))
    except RuntimeError as error:
        plugin.probed = Probed(f"its probe raised {error}", error.__cause__)


def _answer(plugin: Plugin) -> Probed:
    info: Any = plugin.info
    reason = info.probe()
    if reason is not None and not (isinstance(reason, str) and reason):
        raise TypeError(f"it must return None or a reason in words, got {reason!r}")
    return Probed(reason, None, "" if reason or info.note is None else str(info.note()))


def _made(plugin: Plugin) -> Backend:
    """Import the factory that the description names, call it, and check that it made what the description says."""
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
        there: Any = backend.capabilities_on(device)
        asked = f"{info.factory}.capabilities_on({device!r})"
        if not isinstance(there, Capabilities):
            raise TypeError(f"{asked} must give a Capabilities, got {there!r}")
        more = [name for name in there.names() if name not in info.capabilities.names()]
        if more:
            raise ValueError(f"{asked} has {', '.join(more)}, which its BackendInfo does not declare")
    plugin.backend = backend
    return backend


_defaults = [Registry(BUILTINS)]


def default_registry() -> Registry:
    """The registry of this process: the built-ins and the installed plugins."""
    return _defaults[-1]


def replace_default(registry: Registry) -> Registry:
    """Take another registry for this process; the one before, to be put back."""
    before, _defaults[:] = _defaults[-1], [registry]
    return before
