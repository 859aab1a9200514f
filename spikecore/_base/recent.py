"""The one cache of this project that forgets: a mapping that keeps what was used last.

Every cache of a process that grows with use is one of these, or ``functools.lru_cache`` with a size. Who uses a kernel
holds it, so what a cache forgets goes on to work where it is in use, and is freed when the last user is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Callable, Generic, Hashable, Iterator, Optional, TypeVar

from spikecore._base.locking import Lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Programs with a spec that a backend keeps runners of, compiled kernels that it keeps, and kinds of calls of a runner.
RUNNERS, KERNELS, CALLS = 512, 512, 128
#: How many warnings a registry remembers, in order not to repeat them.
SAID = 512


class Recent(Generic[K, V]):
    """At most ``size`` entries: the one that was not used for longest goes first. Any number of threads may use it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._held))

    def get(self, key: K) -> Optional[V]:
        """The entry, which is now the one that was used last; None if there is none."""
        try:
            value = self._held[key]
            self._held.move_to_end(key)
        except KeyError:  # there was none, or another thread has just pushed it out
            return self._held.get(key)
        return value

    def put(self, key: K, value: V) -> V:
        """Keep a value, in place of one that is there."""
        with self._lock:
            self._held[key] = value
            self._held.move_to_end(key)
            # evicted values are freed after the lock is released: their finalizers may run any code
            gone = [self._held.popitem(last=False) for _ in range(len(self._held) - self.size)]
        del gone
        return value

    def get_or(self, key: K, make: Callable[[], V]) -> V:
        """The entry, made now if there is none. Two threads that come together may both make one."""
        value = self.get(key)
        return self.put(key, make()) if value is None else value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            gone = list(self._held.items())
            self._held.clear()
        del gone
