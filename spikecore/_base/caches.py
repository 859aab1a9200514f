"""Locks and caches of the process: a lock that is free in forked processes, and a cache that keeps what was used last.

- A forked process has one thread, the one that forked. A lock that another thread held would stay locked in the child
  for ever, and what it guards may be half changed. So every lock of spikecore is a :class:`Lock`: a fork waits until no
  other thread holds one, and in the child all of them are free.
- Every cache that grows with use is a :class:`Recent`, or ``functools.lru_cache`` with a size. Who uses a kernel holds
  it, so what a cache forgets goes on to work where it is in use, and is freed when the last user is gone.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from typing import Callable, Generic, Hashable, Iterator, List, Optional, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Programs with a spec that a backend keeps runners of, compiled kernels that it keeps, and kinds of calls of a runner.
RUNNERS, KERNELS, CALLS = 512, 512, 128
#: Number of warnings that a registry remembers, so that it repeats none.
SAID = 512
_locks: weakref.WeakValueDictionary[int, Lock] = weakref.WeakValueDictionary()
_thread = threading.local()


class Lock:
    """A reentrant lock, used in a ``with`` statement.

    patience: seconds for which a fork waits while another thread holds the lock. After that the fork happens, and what
    the lock guards may be half done in the child. With 0 a fork never waits: for what no child uses.
    """

    def __init__(self, patience: float = 30.0) -> None:
        self.patience = patience
        #: Number of ``with`` blocks of the thread that holds it; to be read by that thread.
        self.depth = 0
        self._lock = threading.RLock()
        _locks[id(self)] = self

    def acquire(self, timeout: float = -1) -> bool:
        """Take the lock; False if another thread has held it for ``timeout`` seconds. A negative timeout has no end."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock. Raises ``RuntimeError`` in a thread that does not hold it."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        self._lock.release()

    def free_in_child(self) -> None:
        """Release the lock in a forked process, unless the thread that forked holds it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self.depth = threading.RLock(), 0


def _living() -> List[Lock]:
    return [lock for lock in (reference() for reference in _locks.valuerefs()) if lock is not None]


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


class Recent(Generic[K, V]):
    """At most ``size`` entries: the one that was not used for longest goes first. Any number of threads may use it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def get(self, key: K) -> Optional[V]:
        """The entry, which is now the one that was used last; None if there is none."""
        try:
            value = self._entries[key]
            self._entries.move_to_end(key)
        except KeyError:  # there was none, or another thread has just pushed it out
            return self._entries.get(key)
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value, in place of one that is there."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            # evicted values are freed after the lock is released: their finalizers may run any code
            gone = [self._entries.popitem(last=False) for _ in range(len(self._entries) - self.size)]
        del gone
        return value

    def get_or(self, key: K, make: Callable[[], V]) -> V:
        """The entry, made now if there is none. Two threads that come together may both make one."""
        value = self.get(key)
        return self.put(key, make()) if value is None else value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            gone = list(self._entries.items())
            self._entries.clear()
        del gone
