"""Locks between threads and across forks."""

from __future__ import annotations

import os
import threading

import pytest

import warm
from spikecore._base.caches import Lock

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_a_lock_excludes_other_threads_and_not_its_own() -> None:
    """It can be entered again by its holder, and by nobody else meanwhile."""
    lock, found = Lock(), []
    with lock, lock:
        other = threading.Thread(target=lambda: found.append(lock.acquire(timeout=0)))
        other.start()
        other.join()
    assert found == [False]
    assert lock.acquire(timeout=0)
    lock.release()


@forks
def test_a_lock_is_free_in_a_forked_process() -> None:
    """One that another thread holds, and one that the thread itself holds, which goes on to hold it."""
    done = warm.run(
        "-c",
        """
import os, threading
from spikecore._base.caches import Lock
others, ours, inside, over = Lock(), Lock(), threading.Event(), threading.Event()

def hold():
    with others:
        inside.set()
        over.wait()

threading.Thread(target=hold).start()
inside.wait()
with ours:
    if os.fork() == 0:
        with others, ours:
            print("free", flush=True)
        os._exit(0)
os.wait()
over.set()
""",
        timeout=120,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["free"]), done.stderr
