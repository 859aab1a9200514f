"""A lock that a forked process finds free.

A forked process has one thread, the one that forked. A lock that another thread held at the fork would stay locked in
the child for ever, since the thread that would release it is not there.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Optional, Type


class Lock:
    """A reentrant lock, used in a ``with`` statement. Made once, in a module: it is never forgotten."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._free_in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._lock.release()

    def _free_in_child(self) -> None:
        # the thread that forked goes on in the child, and releases what it holds itself
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()
