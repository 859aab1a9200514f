"""The devices of the emulated machine, which executor holds which, and a lock that a forked process finds free.

Rules of this module:

- The machine has one device, with as many IPUs as a model asks for; ``POPTORCH_EMULATOR_DEVICES=2`` gives it two.
  ``options.useIpuId(n)`` names a device besides those.
- An executor holds its device from compilation on, until ``detachFromDevice``, ``destroy``, or its end. Another that
  is compiled or attached meanwhile gets PopTorch's error.
- A forked process has one thread. A lock that another thread held at the fork would stay locked there for ever.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any, MutableMapping, Optional

from ._errors import cpp_error, py_error


class Lock:
    """A reentrant lock, used in a ``with`` statement. Made once, in a module: it is never forgotten."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._free_in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _free_in_child(self) -> None:
        # the thread that forked goes on in the child, and releases what it holds itself
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


#: How many devices there are.
VARIABLE = "POPTORCH_EMULATOR_DEVICES"

#: Executor -> the ID that it asked for, if any.
_held: MutableMapping[Any, Optional[int]] = weakref.WeakKeyDictionary()
_lock = Lock()


def _count() -> int:
    text = os.environ.get(VARIABLE, "").strip() or "1"
    if not text.isdigit() or int(text) < 1:
        raise py_error(f"{VARIABLE}={text} must be a number of devices, 1 or above")
    return int(text)


def acquire(executor: Any, ipus: int, ipu_id: Optional[int]) -> None:
    """Give a device to ``executor``; raises poptorch.Error if all that could serve it are held by others."""
    most = 1 if ipu_id is not None else _count()
    with _lock:
        if _number_held(ipu_id) >= most:
            # an unreachable executor holds no device, and one in a reference cycle may not have been collected yet
            gc.collect()
            if _number_held(ipu_id) >= most:
                what = f"{ipus} IPU(s)" if ipu_id is None else f"device Id {ipu_id}"
                raise cpp_error(
                    f"Failed to acquire {what}\nAnother PoplarExecutor holds it: call its detachFromDevice() or "
                    f"destroy() first. The emulator's machine has {_count()} device(s); {VARIABLE}=2 models one with "
                    "two."
                )
        _held[executor] = ipu_id


def _number_held(ipu_id: Optional[int]) -> int:
    return sum(asked == ipu_id for asked in list(_held.values()))


def release(executor: Any) -> None:
    """Take the device of ``executor`` back, if it has one."""
    _held.pop(executor, None)
