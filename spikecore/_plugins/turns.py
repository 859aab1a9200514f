"""Turns at loading backends: one thread at a time loads a backend, and holds no lock but the one of that backend.

A plugin's import and probe may do anything: ask for other backends, wait for threads that do, ask for itself. Requests
that would wait for each other for ever (a deadlock) are errors.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, NamedTuple

from spikecore._base.locking import Lock
from spikecore.backend import BackendLoadError

#: Seconds that a thread waits for another one's loading. Libraries take tens of seconds to import at worst.
PATIENCE = 120.0
#: Seconds that a fork waits for it: a probe may itself fork, on another thread, and wait for that.
_PATIENCE_OF_FORKS = 1.0


class _Loader(NamedTuple):
    thread: int
    process: int


class Turns:
    """Turns at loading, by name."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the dictionaries below; never held while a plugin is loaded
        self._turns: Dict[str, Lock] = {}
        self._loaders: Dict[str, _Loader] = {}
        #: Thread -> the name that it waits for.
        self._waiting: Dict[int, str] = {}
        #: Thread -> the names that it is loading, outermost first.
        self._loading: Dict[int, List[str]] = {}

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Within the block this thread alone loads ``name``; waits while another thread does.

        Raises :class:`BackendLoadError` where waiting would not end: the name is being loaded by this thread, or by one
        that waits for this one; the loader takes longer than ``PATIENCE``; or it was a thread of a process whose fork
        this is.
        """
        me = threading.get_ident()
        with self._lock:
            self._refuse_circles(name, me)
            turn = self._turns.setdefault(name, Lock(_PATIENCE_OF_FORKS))
            self._waiting[me] = name
        taken = False
        try:
            taken = turn.acquire(timeout=PATIENCE)
        except BaseException:
            with suppress(RuntimeError):  # raised if the interrupt came before the lock was acquired
                turn.release()
            raise
        finally:
            self._waiting.pop(me, None)
        if not taken:
            raise BackendLoadError(
                f"backend {name!r} is still being loaded by another thread after {PATIENCE:.0f} s; its import or its "
                "probe may wait for a thread that asks for it"
            )
        try:
            self._begin(name, _Loader(me, os.getpid()))
            yield
        finally:
            self._end(name, me)
            turn.release()

    def _begin(self, name: str, loader: _Loader) -> None:
        before = self._loaders.get(name)
        if before is not None and before.process != loader.process:
            raise BackendLoadError(
                f"backend {name!r} was being loaded by another thread when this process was forked, so it may be half "
                "imported here; load it before forking, or start processes with the method 'spawn'"
            )
        self._loaders[name] = loader
        self._loading.setdefault(loader.thread, []).append(name)

    def _end(self, name: str, me: int) -> None:
        mine = self._loading.get(me, [])
        if name in mine:
            mine.remove(name)
            self._loaders.pop(name, None)
        if not mine:
            self._loading.pop(me, None)

    def _refuse_circles(self, name: str, me: int) -> None:
        path = [name]
        while True:
            loader = self._loaders.get(path[-1])
            if loader is None or (loader.thread != me and loader.process != os.getpid()):
                return
            if loader.thread == me:
                mine = self._loading.get(me, [])
                circle = mine[mine.index(path[-1]) :] + path
                raise BackendLoadError(
                    f"backend {name!r} is asked for while it is being loaded ({' -> '.join(circle)}): importing, "
                    "describing, probing and making a backend must not need that backend"
                )
            wanted = self._waiting.get(loader.thread)
            if wanted is None:
                return
            path.append(wanted)
