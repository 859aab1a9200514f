"""The lock of the emulator across forks."""

from __future__ import annotations

import os
import threading

import pytest

from poptorch_emulator.devices import Lock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_is_free_in_a_child():
    """A child finds the lock free that another thread held, and goes on with one that its own thread held."""
    others, mine, holds, ends = Lock(), Lock(), threading.Event(), threading.Event()

    def hold():
        with others:
            holds.set()
            ends.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(60)
    with mine:
        child = os.fork()
        if not child:
            os._exit(0 if others._lock.acquire(blocking=False) and mine._lock.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    ends.set()
    thread.join()
    assert status == 0
