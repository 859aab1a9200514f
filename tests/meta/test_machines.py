"""Cases on what a machine has: memory held a moment longer, threads that never end, streams and other devices."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, List

import pytest
import torch

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


# -- streams and devices, which a CPU plays


class Late(Loop):
    """Reads its input as it was before the current stream wrote to it, as one on another stream does."""

    def read(self, x: Any, t: int) -> Any:
        """Zeros within the block of a stream."""
        return super().read(x, t) * (not STREAMS)


STREAMS: List[int] = []


def played(monkeypatch: Any, count: int = 1) -> List[str]:
    """Let the CPU have streams and so many devices; gives what was asked of them."""
    asked: List[str] = []

    class Within:
        def __enter__(self) -> None:
            STREAMS.append(1)

        def __exit__(self, *error: Any) -> None:
            STREAMS.clear()

    def within(stream: Any) -> Any:
        asked.append("stream")
        return Within()

    made = SimpleNamespace(wait_stream=lambda other: asked.append("wait"))
    replaced = {"Stream": lambda: made, "stream": within, "current_stream": nullcontext, "device_count": lambda: count}
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cpu, name, value, raising=False)
    return asked


def test_the_current_stream_counts(monkeypatch: Any) -> None:
    """A sound backend passes on a stream of its own; one that computes on another stream does not."""
    asked = played(monkeypatch)
    with installed(Plain) as name:
        (result,) = check_backend(name, cases=["robust/stream"])
    assert result.outcome == "passed", result.message
    assert asked == ["wait", "stream"]
    with installed(type("Streams", (Plain,), {"name": "streams", "loop": Late})) as name:
        (result,) = check_backend(name, cases=["robust/stream"])
    assert result.outcome == "failed"
    assert "on a stream of its own" in result.message


class Doubled(Loop):
    """Reads twice its input."""

    def read(self, x: Any, t: int) -> Any:
        """Two times the number."""
        return 2 * super().read(x, t)


@pytest.mark.parametrize(("count", "device"), [(1, "cpu"), (3, "cpu:2")])
def test_the_last_device_is_taken(monkeypatch: Any, count: int, device: str) -> None:
    """Of three the third, by its index; where there is one, that one. The message of a wrong backend names it."""
    played(monkeypatch, count)
    with installed(type("Doubles", (Plain,), {"name": "doubles", "loop": Doubled})) as name:
        (result,) = check_backend(name, cases=["robust/other-device"])
    assert result.outcome == "failed"
    assert f"of a call on {device} of ALIF" in result.message
