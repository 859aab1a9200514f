"""What cases wait for: memory that a runtime holds a moment longer, and threads that never end."""

from __future__ import annotations

import threading
from typing import Any, List

import pytest

from spikecore.testing import check_backend
from spikecore.testing._compare import Mismatch
from spikecore.testing._loopback import Loop, Loopback, installed
from spikecore.testing._threads import at_once

FREED = ["sequences/freed-inference", "robust/nothing-kept"]


class Holding(Loop):
    """Holds the inputs of a call, as a runtime does that computes in the background; frees them after some seconds."""

    seconds = 0.2
    held: List[Any] = []

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        """The same, with a timer."""
        self.held.append((inputs, state))
        timer = threading.Timer(self.seconds, self.held.clear)
        timer.daemon = True
        timer.start()
        return super().__call__(inputs, state, params, record)


@pytest.mark.parametrize(("seconds", "outcome"), [(0.2, "passed"), (600.0, "failed")])
def test_memory_may_be_held_for_a_moment(seconds: float, outcome: str) -> None:
    """What is free within a second is free; what is not is kept."""
    loop = type("Holding", (Holding,), {"seconds": seconds, "held": []})
    with installed(type("Holds", (Loopback,), {"name": "holds", "loop": loop})) as name:
        results = check_backend(name, cases=FREED)
    assert [result.outcome for result in results] == [outcome] * len(FREED), [result.message for result in results]


def test_a_thread_that_does_not_end_is_a_failure() -> None:
    """It says so after a while, and goes on without it."""
    never = threading.Event()
    with pytest.raises(Mismatch, match=r"1 of 2 threads are still running after 0\.2 s"):
        at_once(lambda i: never.wait() if i else None, 2, patience=0.2)
    never.set()


def test_what_is_wrong_without_other_threads_is_no_affair_of_threads() -> None:
    """The hint that threads share something is for calls that are right one after the other."""
    calls: List[int] = []

    def work(i: int) -> None:
        calls.append(i)
        if always or len(calls) <= 2:
            raise Mismatch("output of a thread differs")

    always = False
    with pytest.raises(
        Mismatch, match=r"(?s)differs\n  hint: one after the other these calls are right: threads share"
    ):
        at_once(work, 2)
    assert calls[2:] == [0, 1]
    always = True
    with pytest.raises(Mismatch, match=r"differs$"):
        at_once(work, 2)


def test_an_error_is_told_before_a_thread_that_does_not_end() -> None:
    """It is the cause, for all that one knows."""
    never = threading.Event()

    def work(i: int) -> None:
        if i:
            raise ZeroDivisionError("in thread 1")
        never.wait()

    with pytest.raises(ZeroDivisionError, match="in thread 1"):
        at_once(work, 2, patience=0.2)
    never.set()


def test_threads_that_began_do_not_wait_for_one_that_cannot(monkeypatch: Any) -> None:
    """The error is that of the start, and the others end."""
    started: List[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        at_once(lambda i: None, 2)
    started[0].join(60)
    assert not started[0].is_alive()


def test_threads_do_not_keep_the_process() -> None:
    """They are daemons."""
    seen: List[bool] = []
    at_once(lambda i: seen.append(threading.current_thread().daemon), 3)
    assert seen == [True] * 3
