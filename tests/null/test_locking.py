"""Locks across forks: the parent waits, the child finds them free."""

from __future__ import annotations

import os
import threading

import pytest

import warm
from spikecore._base.caches import Lock

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
    """What the lock guards is whole in the child: the fork happens after the other thread is done with it."""
    assert (
        run("""
import os, threading
from spikecore._base.caches import Lock
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


#: A fork while another thread holds ``lock``, and then what the parent does; the child says which locks are free there.
HELD = """
import os, threading
from spikecore._base.caches import Lock
lock, second, inside, go = Lock(patience={patience}), Lock(), threading.Event(), threading.Event()

def hold():
    with lock:
        inside.set()
        go.wait()

other = threading.Thread(target=hold)
other.start()
inside.wait()
if os.fork() == 0:
    print(lock.acquire(timeout=0), second.acquire(timeout=0), flush=True)
    os._exit(0)
os.wait()
{parent}
"""


@forks
def test_a_fork_waits_no_longer_than_it_must() -> None:
    """A lock that is held for ever delays a fork by its patience; the child finds it free, the parent as it was."""
    parent = """
print(lock.acquire(timeout=0), second.acquire(timeout=0))
go.set()
other.join()
print(lock.acquire(timeout=0))
"""
    found = run(HELD.format(patience=0.05, parent=parent)).splitlines()
    assert found == ["True True", "False True", "True"]


@forks
def test_a_thread_that_forks_inside_keeps_its_locks() -> None:
    """A fork within the block of a lock leaves the block valid in both processes."""
    assert run("""
import os
from spikecore._base.caches import Lock
lock = Lock()
with lock:
    child = os.fork()
free = lock.acquire(timeout=0)
if child == 0:
    print(free, flush=True)
    os._exit(0)
os.wait()
print(free)
""").splitlines() == ["True", "True"]
