"""Locks that are released in forked processes.

A forked process has one thread, the one that forked. A lock that another thread held would stay locked in the child
for ever, and the data that it guards may be half changed. So every lock of spikecore is a :class:`Lock`: a fork waits
until no other thread holds one, and in the child all of them are released.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from types import TracebackType
from typing import Dict, List, Optional, Type

_all: Dict[int, weakref.ref[Lock]] = {}
_thread = threading.local()


class Lock:
    """A reentrant lock, used in a ``with`` statement.

    patience: seconds for which a fork waits while another thread holds the lock. After that the fork happens, and what
    the lock guards may be half done in the child. With 0 a fork never waits: for what no child uses.
    """

    def __init__(self, patience: float = 30.0) -> None:
        self.patience = patience
        self._lock = threading.RLock()
        number = id(self)

        def forget(_: weakref.ref[Lock]) -> None:
            _all.pop(number, None)

        _all[number] = weakref.ref(self, forget)

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock; False if another thread has held it for ``timeout`` seconds. A negative timeout has no end."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock. Raises ``RuntimeError`` in a thread that does not hold it."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._lock.release()

    def free_in_child(self) -> None:
        """Release the lock in a forked process, unless the thread that forked holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def _living() -> List[Lock]:
    return [lock for lock in (reference() for reference in list(_all.values())) if lock is not None]


def _before_fork() -> None:
    """Take every lock that a fork waits for, or none: to hold one while waiting for another could wait for ever."""
    began = time.monotonic()
    acquired: List[Lock] = []
    _thread.acquired = acquired
    waiting = True
    while waiting:
        waiting = False
        for lock in _living():
            if lock.acquire(timeout=0):
                acquired.append(lock)
                continue
            if not lock.patience:
                continue
            _release_acquired()
            left = began + lock.patience - time.monotonic()
            if left > 0 and lock.acquire(timeout=left):
                lock.release()
                waiting = True
            break


def _release_acquired() -> None:
    """Release what :func:`_before_fork` acquired in this thread."""
    acquired: List[Lock] = getattr(_thread, "acquired", [])
    while acquired:
        acquired.pop().release()


def _in_child() -> None:
    _release_acquired()
    for lock in _living():
        lock.free_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_release_acquired, after_in_child=_in_child)
