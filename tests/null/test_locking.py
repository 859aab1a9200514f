"""Locks across forks: the parent waits, the child finds them free."""

from __future__ import annotations

import os
import threading

import pytest

import warm
from spikecore.backend import Lock

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def run(code: str) -> str:
    done = warm.run("-c", code, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
def test_a_fork_waits_for_the_holder_and_the_child_is_free() -> None:
    """The guarded data is whole in the child: the fork happens after the other thread is done with it."""
    assert (
        run("""
import os, threading
from spikecore.backend import Lock
lock, inside, work = Lock(), threading.Event(), []

def hold():
    with lock:
        work.append("begun")
        inside.set()
        for _ in range(2_000_000):
            pass
        work.append("done")

other = threading.Thread(target=hold)
other.start()
inside.wait()
if os.fork() == 0:
    with lock:
        print(work, flush=True)
    os._exit(0)
os.wait()
with lock:
    print(work)
""").splitlines()
        == ["['begun', 'done']"] * 2
    )
