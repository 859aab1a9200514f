"""Which PopTorch is in use, Graphcore's or its emulator (``SPIKECORE_IPU_EMULATOR=1``), and which thread may use it.

Nothing else in this package imports either. The rules of :func:`exclusive` follow from what PopTorch 3.4 does
(CompilerImpl.cpp, createDevice and attachToDevice):

- An executor takes any free device when it is compiled and when it is attached, and raises "Failed to acquire" if there
  is none. Python cannot ask beforehand whether one is free.
- A failed attach leaves the executable without a device, and the next attach would read a null pointer. So a device is
  never asked for on trial: programs without an ``options.useIpuId`` of their own are detached first.
- Tracing has state of the whole process, and no executor is guarded against a second thread. So one thread at a time
  compiles, attaches, runs and detaches, whatever the programs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Iterator, Optional

from spikecore.backend import BackendUnavailable, Lock

#: ``1`` asks for the emulator, ``0`` or nothing for the SDK.
VARIABLE = "SPIKECORE_IPU_EMULATOR"
#: Import name of the emulator. It is a distribution of its own, which is on no package index.
EMULATOR = "poptorch_emulator"
INSTALL_HINT = (
    "the Poplar SDK brings poptorch; its emulator on the CPU is installed by `pip install ./plugins/poptorch-emulator` "
    f"in a checkout of spikecore, and used where {VARIABLE}=1"
)


def emulated() -> bool:
    """True if the emulator was asked for."""
    return os.environ.get(VARIABLE, "").strip() == "1"


def reason() -> Optional[str]:
    """Reason why PopTorch cannot be used here; None if it can."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked not in ("", "0", "1"):
        return f"{VARIABLE}={asked} is neither 1, for the emulator, nor 0 or unset, for the SDK"
    if emulated():
        if importlib.util.find_spec(EMULATOR) is None:
            return f"{VARIABLE}=1 asks for the distribution poptorch-emulator, which is not installed"
        return None
    if importlib.util.find_spec("poptorch") is None:
        return "poptorch is not installed"
    try:
        importlib.import_module("poptorch")
    except (ImportError, AssertionError, OSError) as error:  # without the SDK's environment, or with another torch
        return f"poptorch cannot be imported: {str(error).strip()}"
    return None


def poptorch() -> Any:
    """The module ``poptorch``: Graphcore's, or the emulator if it was asked for.

    Raises :class:`~spikecore.backend.BackendUnavailable` where there is neither.
    """
    why = reason()
    if why is not None:
        raise BackendUnavailable(f"{why} ({INSTALL_HINT})")
    return importlib.import_module(EMULATOR if emulated() else "poptorch")


#: Held while a program is compiled or runs, which may take minutes. A fork does not wait: no child uses the device.
_lock = Lock(patience=0.0)


#: Work that remains for programs that were garbage collected.
_dropped: Deque[Callable[[], None]] = deque()


@contextmanager
def exclusive() -> Iterator[None]:
    """One thread at a time is in such a block, and may enter another; other threads wait."""
    with _lock:
        if _lock.depth == 1:
            _end_dropped()
        try:
            yield
        finally:
            if _lock.depth == 1:
                _end_dropped()


def when_idle(end: Callable[[], None]) -> None:
    """Call ``end`` now, or when the program that is running has returned.

    For finalizers: the garbage collector may run them at any time, in the midst of another program's compilation or on
    another thread, and a finalizer that waits for a lock could wait for ever.
    """
    _dropped.append(end)
    if _lock.acquire(timeout=0):
        try:
            if not _lock.depth:
                _end_dropped()
        finally:
            _lock.release()


def _end_dropped() -> None:
    while _dropped:
        _dropped.popleft()()
