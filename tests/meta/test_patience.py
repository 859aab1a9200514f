"""Waits of cases: for memory that a runtime holds a moment longer, and threads that never end."""

from __future__ import annotations

import threading
from typing import Any, List

import pytest

from plain_loop import Loop, Plain
from spikecore.testing import check_backend, installed
from spikecore.testing.compare import Mismatch
from spikecore.testing.threads import at_once


@pytest.mark.parametrize(("seconds", "outcome"), [(0.2, "passed"), (600.0, "failed")])
def test_memory_may_be_held_for_a_moment(seconds: float, outcome: str) -> None:
    """A runtime that computes in the background holds memory so: free within a second is free."""
    held: List[Any] = []

    class Holding(Loop):
        def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
            held.append((inputs, state))
            timer = threading.Timer(seconds, held.clear)
            timer.daemon = True
            timer.start()
            return super().__call__(inputs, state, params, record)

    with installed(type("Holds", (Plain,), {"name": "holds", "loop": Holding})) as name:
        (result,) = check_backend(name, cases=["sequences/freed-inference"])
    assert result.outcome == outcome, result.message


@pytest.mark.parametrize(
    ("error", "told", "words"),
    [
        (None, Mismatch, r"1 of 2 threads are still running after 0\.2 s"),
        (ZeroDivisionError("in thread 1"), ZeroDivisionError, "in thread 1"),
    ],
)
def test_a_thread_that_does_not_end_is_a_failure(error: Any, told: Any, words: str) -> None:
    """It says so after a while, and does not keep the process; an error of another thread is told before it."""
    never, threads = threading.Event(), []

    def work(i: int) -> None:
        threads.append(threading.current_thread())
        if i and error:
            raise error
        if not i:
            never.wait()

    with pytest.raises(told, match=words):
        at_once(work, 2, patience=0.2)
    assert all(thread.daemon for thread in threads)
    never.set()
