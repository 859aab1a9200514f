"""The lock of the emulator across forks."""

from __future__ import annotations

import os
import threading

import pytest

from poptorch_emulator._devices import Lock


def taken_by_another_thread(lock):
    """Whether a thread other than this one can take it."""
    found = []

    def take():
        found.append(lock._lock.acquire(blocking=False))
        if found[0]:
            lock._lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def test_excludes_other_threads_and_not_its_own():
    """It can be entered again by its holder, and by nobody else meanwhile."""
    lock = Lock()
    with lock, lock:
        assert not taken_by_another_thread(lock)
    assert taken_by_another_thread(lock)


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
