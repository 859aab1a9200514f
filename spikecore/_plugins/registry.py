"""Which backends there are, what is known of them, and one object per name.

Rules of this module:

- Importing it reads no metadata; listing reads metadata only; a plugin's module is imported when its name is asked for.
- A broken plugin harms itself alone: its error, whatever it is, is kept, logged once, and is the ``__cause__`` when it
  is asked for.
- No lock is held while a plugin's code runs, but its turn at loading (:mod:`spikecore._plugins.turns`).
- Names are exact. A built-in's name cannot be taken, and a name that two distributions provide belongs to neither.
- ``SPIKECORE_BLOCK`` (backend or distribution names, separated by commas) and ``SPIKECORE_NO_PLUGINS=1`` are read at
  time of use and act before any import.
- What was found and what failed is remembered until :meth:`Registry.refresh`.
"""

from __future__ import annotations

import importlib
import logging
import os
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Callable, Dict, Hashable, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar

from spikecore._base.locking import Lock
from spikecore._base.recent import SAID, Recent
from spikecore._plugins.candidates import AUTO_NAME, Candidate, all_candidates
from spikecore._plugins.loading import Probed, load_info, make_backend, probe
from spikecore._plugins.status import BackendStatus, Known
from spikecore._plugins.turns import Turns
from spikecore._plugins.unknown import hint
from spikecore.backend import Backend, BackendError, BackendInfo, BackendLoadError, BackendUnavailable, UnknownBackend

__all__ = ["AUTO_NAME", "BUILTINS", "BackendStatus", "Registry", "default_registry"]

#: The one table of built-in backends: name -> module with the hook. Strings, so that nothing is imported for them.
BUILTINS: Mapping[str, str] = {"cupy": "spikecore_cupy", "ipu": "spikecore_ipu", "torch": "spikecore_torch"}

_log = logging.getLogger("spikecore")
_T = TypeVar("_T")


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
        self._lock = Lock()  # held for moments only
        self._turns = Turns()
        self._found: Optional[Tuple[Candidate, ...]] = None
        self._table: Dict[Candidate, Known] = {}
        self._said: Recent[Hashable, bool] = Recent(SAID)

    def names(self) -> List[str]:
        """Names that can be asked for, sorted: not the blocked, shadowed, ill-named or doubly provided ones."""
        return sorted({candidate.name for candidate in self._candidates() if not self._verdict(candidate)[0]})

    def status(
        self, probe: bool = False, automatic: Mapping[str, Tuple[str, ...]] = MappingProxyType({})
    ) -> List[BackendStatus]:
        """Every backend of every distribution. Imports nothing, unless ``probe`` asks to load and try all it may.

        ``automatic`` has the device types for which a name is chosen automatically, if it is one of the project's own.
        """
        found = sorted(self._candidates(), key=lambda c: (c.name, not c.builtin, c.distribution))
        return [self._row(candidate, probe, automatic.get(candidate.name, ())) for candidate in found]

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
        return any(c.builtin or (c.ours and not self._blocked(c)) for c in self._candidates() if c.name == name)

    def check(self, name: str, source: str) -> None:
        """Raise as :meth:`info` does for a name that cannot be asked for, without importing what provides it."""
        self._pick(name, source)

    def get(self, name: str, source: str) -> Backend:
        """The backend, ready to use; the same object every time.

        Raises as :meth:`info` does, and :class:`BackendUnavailable` when it is not usable here.
        """
        candidate = self._pick(name, source)
        probed = self._probed(candidate)
        if probed.reason:
            explicit = "; no other backend was tried because the choice was explicit: 'auto' takes one that works here"
            tail = "" if source == AUTO_NAME else explicit
            why = f"is not usable here: {self._known(candidate).unusable()}{tail}"
            raise BackendUnavailable(f"backend {name!r} (from {source}) {why}") from probed.error
        return self._backend(candidate)

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
        before, candidate = self.get(name, source), self._pick(name, source)
        known = self._known(candidate)
        known.backend = made = make_backend(candidate, self._info(candidate))
        try:
            yield made
        finally:
            known.backend = before

    def refresh(self) -> None:
        """Look again: forget what was found, what failed and what was said once. Backends in use are kept."""
        importlib.invalidate_caches()
        with self._lock:
            self._found = None
            self._table = {candidate: known for candidate, known in self._table.items() if known.backend}
            self._said.clear()

    def first(self, key: Hashable) -> bool:
        """True the first time it is asked for this key, among the last :data:`SAID`: for what is said only once."""
        said = hash(key)  # the text of an error may be long
        with self._lock:
            new = self._said.get(said) is None
            self._said.put(said, True)
            return new

    # what there is: metadata and environment, nothing imported

    def _candidates(self) -> Tuple[Candidate, ...]:
        flag = self._env("SPIKECORE_NO_PLUGINS")
        if flag not in ("", "0", "1"):
            raise BackendError(f"SPIKECORE_NO_PLUGINS={flag!r} must be 1, which blocks plugins, or 0, empty or unset")
        with self._lock:
            if self._found is None:
                self._found = all_candidates(self.builtins, self._entry_points)
            return self._found

    def _verdict(self, candidate: Candidate) -> Tuple[str, str]:
        """State and detail of a candidate that must not be loaded, else two empty strings."""
        blocked = self._blocked(candidate)
        if blocked:
            return "blocked", blocked
        name, provider = candidate.name, candidate.provider
        if candidate.builtin:
            return "", ""
        if candidate.ill_named:
            return "failed", f"backend name {name!r} ({provider}) {candidate.ill_named}; {provider} must choose another"
        if name in self.builtins:
            return "shadowed", f"{name!r} is a built-in backend and stays so; {provider} must choose another name"
        rivals = [c for c in self._candidates() if c.name == name and not self._blocked(c)]
        if len(rivals) > 1:
            rivals.sort(key=lambda c: (not c.ours, c.provider))  # the last is blocked: not the project's own
            providers = " and ".join(c.provider for c in rivals)
            way_out = f"uninstall one, or set SPIKECORE_BLOCK={rivals[-1].distribution}"
            return "failed", f"backend name {name!r} is provided by {providers}; {way_out}"
        return "", ""

    def _blocked(self, candidate: Candidate) -> str:
        for word in filter(None, (word.strip() for word in self._env("SPIKECORE_BLOCK").split(","))):
            if candidate.answers_to(word):
                return f"blocked by SPIKECORE_BLOCK; take {word!r} out of it to use this backend"
        if not candidate.builtin and self._env("SPIKECORE_NO_PLUGINS") == "1":
            return "blocked by SPIKECORE_NO_PLUGINS; unset it to use this backend"
        return ""

    def _env(self, key: str) -> str:
        return (os.environ if self._environ is None else self._environ).get(key, "").strip()

    def _pick(self, name: str, source: str) -> Candidate:
        """The one candidate that provides this name."""
        details: Dict[str, str] = {}
        for candidate in self._candidates():
            if candidate.name == name:
                state, detail = self._verdict(candidate)
                if not state:
                    return candidate
                details[state] = detail
        if "failed" in details:
            raise BackendLoadError(details["failed"])
        if "blocked" in details:
            raise BackendUnavailable(f"backend {name!r} (from {source}) is {details['blocked']}")
        raise UnknownBackend(self._unknown(name, source))

    def _unknown(self, name: str, source: str) -> str:
        known = self.names()
        devices: Dict[str, str] = {}
        for builtin in (n for n in known if n in self.builtins):
            try:  # whoever asks for 'cudda' means the built-in that computes there
                devices.update((d, builtin) for d in self.info(builtin, source).devices if d != "cpu")
            except BackendError:
                continue
        meant = hint(name, known, devices)
        return f"unknown backend {name!r} (from {source}); {meant}Known: {', '.join(known)}"

    def _row(self, candidate: Candidate, probe: bool, automatic: Tuple[str, ...]) -> BackendStatus:
        verdict = self._verdict(candidate)
        if probe and not verdict[0]:
            try:
                if not self._probed(candidate).reason:
                    self._backend(candidate)
            except BackendLoadError:
                pass  # kept, and shown from there
        chosen = automatic if candidate.ours and not verdict[0] else ()
        return self._known(candidate).row(candidate, verdict, chosen)

    # loading, step by step; each step is done once, and its failure kept

    def _known(self, candidate: Candidate) -> Known:
        with self._lock:
            return self._table.setdefault(candidate, Known())

    def _once(self, candidate: Candidate, done: Callable[[Known], Optional[_T]], step: Callable[[Known], _T]) -> _T:
        """What ``done`` finds; if there is nothing, and no failure, what ``step`` makes on this thread's turn."""
        known = self._known(candidate)
        found = done(known)
        if known.failure is None and found is not None:
            return found
        if known.failure is None:
            with self._turns.taken(candidate.name):
                found = done(known)
                if known.failure is None:
                    try:
                        return step(known) if found is None else found
                    except BackendLoadError as error:
                        known.failure = error
                        _log.warning("%s", error)
        # a new exception each time: raising the kept one again would make its traceback grow
        raise BackendLoadError(str(known.failure)) from getattr(known.failure, "__cause__", None)

    def _info(self, candidate: Candidate) -> BackendInfo:
        def step(known: Known) -> BackendInfo:
            known.info = load_info(candidate)
            return known.info

        return self._once(candidate, lambda known: known.info, step)

    def _probed(self, candidate: Candidate) -> Probed:
        info = self._info(candidate)

        def step(known: Known) -> Probed:
            known.probed = probe(info)
            return known.probed

        return self._once(candidate, lambda known: known.probed, step)

    def _backend(self, candidate: Candidate) -> Backend:
        info = self._info(candidate)

        def step(known: Known) -> Backend:
            known.backend = make_backend(candidate, info)
            return known.backend

        return self._once(candidate, lambda known: known.backend, step)


_defaults = [Registry(BUILTINS)]


def default_registry() -> Registry:
    """The registry of this process: the built-ins and the installed plugins."""
    return _defaults[-1]


def replace_default(registry: Registry) -> Registry:
    """Take another registry for this process; the one before, to be put back."""
    before, _defaults[:] = _defaults[-1], [registry]
    return before
