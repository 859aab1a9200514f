"""Registry of backends: their names, their loading, and one object per name.

Rules of this module:

- Importing it reads no metadata and imports no torch; listing reads metadata only; a plugin's module is imported when
  its name is asked for.
- A broken plugin harms itself alone (:mod:`spikecore.plugins.plugin`). One lock is held while a plugin loads, and none
  for lists.
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
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from spikecore._base.caches import SAID, Lock, Recent
from spikecore._base.contract import (
    BackendError,
    BackendInfo,
    BackendLoadError,
    BackendStatus,
    BackendUnavailable,
    UnknownBackend,
)
from spikecore._version import __version__
from spikecore.plugins.plugin import PLUGINS, Plugin, Probed, normal_name

if TYPE_CHECKING:
    from spikecore.backend import Backend

#: The one table of built-in backends: name -> module with the hook. Strings, so that nothing is imported for them.
BUILTINS: Mapping[str, str] = {"cupy": "spikecore_cupy", "ipu": "spikecore_ipu", "torch": "spikecore_torch"}
#: Module of a built-in backend -> the libraries of which it needs one. A plugin's come with it.
LIBRARIES: Mapping[str, Tuple[str, ...]] = {
    "spikecore_cupy": ("cupy",),
    "spikecore_ipu": ("poptorch", "poptorch_emulator"),
}
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

_log = logging.getLogger("spikecore")


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
        info: BackendInfo = self._loaded(self._pick(name, source), "info")
        return info

    def probe(self, name: str, source: str) -> Optional[str]:
        """None when the backend is usable here, else the reason in words. Raises as :meth:`info` does."""
        probed: Probed = self._loaded(self._pick(name, source), "info", "probed")
        return probed.reason

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
        probed: Probed = self._loaded(plugin, "info", "probed")
        if probed.reason:
            explicit = "; no other backend was tried because the choice was explicit: 'auto' takes one that works here"
            why = f"is not usable here: {plugin.unusable()}{'' if source == AUTO_NAME else explicit}"
            raise BackendUnavailable(f"backend {name!r} (from {source}) {why}") from probed.error
        return self.unprobed(name, source)

    def unprobed(self, name: str, source: str) -> Backend:
        """The backend, usable here or not, for what needs no device; the same object as :meth:`get`. Raises as
        :meth:`info` does.
        """
        backend: Backend = self._loaded(self._pick(name, source), "info", "backend")
        return backend

    @contextmanager
    def fresh(self, name: str, source: str) -> Iterator[Backend]:
        """Within the block the name stands for a new object of the backend, made by its factory, which has compiled
        nothing yet; neurons made in the block use it. For tests, from one thread. Raises as :meth:`get` does.
        """
        before, plugin = self.get(name, source), self._pick(name, source)
        plugin.results["backend"] = made = plugin.run("backend")
        try:
            yield made
        finally:
            plugin.results["backend"] = before

    def refresh(self) -> None:
        """Look again: forget what was found, what failed and what was said once. Backends in use are kept."""
        importlib.invalidate_caches()
        with self._lock:
            self._used = [plugin for plugin in self._all() if "backend" in plugin.results]
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
        verdict, detail = self._verdict(plugin)
        if probe and not verdict:
            with suppress(BackendLoadError):  # remembered in plugin.failure
                if not self._loaded(plugin, "info", "probed").reason:
                    self._loaded(plugin, "backend")
        info, state = plugin.results.get("info"), verdict or "installed"
        if not verdict and plugin.failure:
            state, detail = "failed", str(plugin.failure)
        elif not verdict and "probed" in plugin.results:
            unusable = plugin.unusable()
            state, detail = ("unavailable", unusable) if unusable else ("ready", plugin.results["probed"].note)
        elif not verdict and plugin.value in LIBRARIES and not any(map(find_spec, LIBRARIES[plugin.value])):
            library = LIBRARIES[plugin.value][0]
            state, detail = "not installed", f"it needs {library}: spikecore backends --probe says how to install it"
        api, devices, names = (info.api, info.devices, info.capabilities.names()) if info else (None, (), ())
        chosen = automatic if plugin.ours and not verdict else ()
        who = plugin.name, state, plugin.distribution, plugin.version
        return BackendStatus(*who, api, devices, names, detail, chosen)

    def _loaded(self, plugin: Plugin, *steps: str) -> Any:
        """Result of the last of these steps; each one is done once."""
        for step in steps:
            if step not in plugin.results and plugin.failure is None:
                with self._lock:
                    if step not in plugin.results and plugin.failure is None:
                        plugin.advance(step)
        if plugin.failure:
            # a new exception each time: raising the same one again would make its traceback grow
            raise BackendLoadError(str(plugin.failure)) from plugin.failure.__cause__
        return plugin.results[steps[-1]]


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


_defaults = [Registry(BUILTINS)]


def default_registry() -> Registry:
    """The registry of this process: the built-ins and the installed plugins."""
    return _defaults[-1]


def replace_default(registry: Registry) -> Registry:
    """Take another registry for this process; the one before, to be put back."""
    before, _defaults[:] = _defaults[-1], [registry]
    return before
