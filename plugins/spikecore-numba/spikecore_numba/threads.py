"""Blocks of neurons on several threads.

A kernel releases the GIL, so Python threads do. The calling thread takes part; ranges of blocks are handed out as
threads become free, so that a busy core does not hold up the rest. What is computed does not depend on the number of
threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Deque, Optional, Tuple

import torch

#: Below this many numbers (steps times neurons), handing work over costs more than it saves.
WORTHWHILE = 1 << 17
#: Ranges per thread.
_SHARES = 4


class _Pool:
    """The other threads, made when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: Optional[ThreadPoolExecutor] = None

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        """Let another thread call the function."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="spikecore-numba")
            return self._executor.submit(function, *arguments)

    def forget(self) -> None:
        """Begin anew: a forked process has none of its parent's threads."""
        self.__init__()  # type: ignore[misc]


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def over_blocks(work: Callable[[int, int], None], blocks: int, size: int) -> None:
    """Call ``work(begin, end)`` for ranges that cover ``range(blocks)``; ``size`` says how much work it is."""
    threads = min(torch.get_num_threads(), blocks) if size >= WORTHWHILE else 1
    if threads == 1:
        work(0, blocks)
        return
    shares = min(threads * _SHARES, blocks)
    cuts = [blocks * k // shares for k in range(shares + 1)]
    waiting: Deque[Tuple[int, int]] = deque(zip(cuts, cuts[1:]))
    others = [_pool.submit(_until_done, work, waiting) for _ in range(threads - 1)]
    _until_done(work, waiting)
    for other in others:
        other.result()


def _until_done(work: Callable[[int, int], None], waiting: Deque[Tuple[int, int]]) -> None:
    while True:
        try:
            begin, end = waiting.popleft()
        except IndexError:
            return
        work(begin, end)


class Scratch(threading.local):
    """Memory that a thread's kernels compute in, kept between calls."""

    def __init__(self) -> None:
        self._held: Any = torch.empty(0, dtype=torch.uint8)

    def address(self, size: int) -> int:
        """The address of at least ``size`` bytes; valid until this thread asks again."""
        if self._held.numel() < size:
            self._held = torch.empty(size, dtype=torch.uint8)
        address: int = self._held.data_ptr()
        return address
