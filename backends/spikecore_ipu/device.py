"""Which thread of this process may use PopTorch, and when programs that were dropped are ended.

The rules follow from what PopTorch 3.4 does (CompilerImpl.cpp, createDevice and attachToDevice):

- An executor takes any free device when it is compiled and when it is attached, and raises "Failed to acquire" if there
  is none. Python cannot ask beforehand whether one is free.
- A failed attach leaves the executable without a device, and the next attach would read a null pointer. So a device is
  never asked for on trial: programs without an ``options.useIpuId`` of their own are detached first.
- Tracing has state of the whole process, and no executor is guarded against a second thread. So one thread at a time
  compiles, attaches, runs and detaches, whatever the programs.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import Callable, Deque, Iterator

from spikecore.backend import Lock

#: Held while a program is compiled or runs, which may take minutes. A fork does not wait: no child uses the device.
_lock = Lock(patience=0.0)


class _Thread(threading.local):
    #: How many blocks of :func:`exclusive` this thread is in.
    depth = 0


_thread = _Thread()
#: What remains to be done for programs that were garbage collected.
_dropped: Deque[Callable[[], None]] = deque()


@contextmanager
def exclusive() -> Iterator[None]:
    """One thread at a time is in such a block, and may enter another; other threads wait."""
    with _lock:
        if not _thread.depth:
            _end_dropped()
        _thread.depth += 1
        try:
            yield
        finally:
            _thread.depth -= 1
            if not _thread.depth:
                _end_dropped()


def when_idle(end: Callable[[], None]) -> None:
    """Call ``end`` now, or when the program that is running has returned.

    For finalizers: the garbage collector may run them at any time, in the midst of another program's compilation or on
    another thread, and a finalizer that waits for a lock could wait for ever.
    """
    _dropped.append(end)
    if _lock.acquire(timeout=0):
        try:
            if not _thread.depth:
                _end_dropped()
        finally:
            _lock.release()


def _end_dropped() -> None:
    while _dropped:
        _dropped.popleft()()
