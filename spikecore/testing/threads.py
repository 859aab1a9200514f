"""Threads that do the same at once, and that nothing waits for without an end."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List

from spikecore.testing.compare import Mismatch

#: Seconds that the threads of a case have, from their start to their end.
PATIENCE = 60.0


def at_once(work: Callable[[int], Any], count: int = 4, patience: float = PATIENCE) -> None:
    """Call ``work(i)`` in so many threads at once; raise what one of them raises, and :class:`Mismatch` if one is still
    running after ``patience`` seconds. Such a thread is left behind; it does not keep the process from ending.
    """
    gate = threading.Barrier(count)
    wrong: List[BaseException] = []

    def body(i: int) -> None:
        try:
            gate.wait(patience)
            work(i)
        except BaseException as error:
            wrong.append(error)

    crew = [threading.Thread(target=body, args=(i,), daemon=True) for i in range(count)]
    end = time.monotonic() + patience
    try:
        for thread in crew:
            thread.start()
    except BaseException:
        gate.abort()  # those that have begun would wait for those that could not
        raise
    for thread in crew:
        thread.join(max(0.0, end - time.monotonic()))
    running = sum(thread.is_alive() for thread in crew)
    if wrong:
        error = next((error for error in wrong if not isinstance(error, threading.BrokenBarrierError)), wrong[0])
        raise error
    if running:
        raise Mismatch(
            f"{running} of {count} threads are still running after {patience:g} s\n"
            "  hint: a lock that is taken twice or in two orders, or a queue that one thread alone empties"
        )
