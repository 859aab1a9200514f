"""Blocks of neurons on several threads.

A kernel releases the GIL, so Python threads run in parallel. The calling thread works, too; ranges of blocks are handed
out as threads become free, so that a busy core does not delay the others. Results do not depend on the number of
threads.

Kernels write to memory addresses. So a call does not return or raise (Ctrl-C and time limits included) while another
thread still runs a kernel for it, and a batch keeps the tensors alive that its kernels read and write.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any, Callable, Deque, List, Optional, Tuple

import torch

#: Below this many numbers (steps times neurons), handing work over costs more than it saves.
WORTHWHILE = 1 << 17
#: Ranges per thread.
_SHARES = 4
#: Seconds until a caller checks again whether the helpers are done. They notify it; but an interrupt (Ctrl-C) can come
#: between receiving a notification and acting on it, and that notification is lost.
_POLL_SECONDS = 0.05


class _Pool:
    """The other threads, made when they are first needed."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: List[threading.Thread] = []

    def submit(self, job: Callable[[], None], times: int) -> None:
        """Let other threads call the function, so many times."""
        # without a lock: two callers at once may start one thread too many, which does no harm
        while len(self._threads) < min(times, os.cpu_count() or 1):
            number = len(self._threads)
            # daemons, because they wait for jobs for ever; no call returns while one of them computes for it
            thread = threading.Thread(target=_serve, args=(self._jobs,), name=f"spikecore-numba_{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        for _ in range(times):
            self._jobs.put(job)

    def forget(self) -> None:
        """Forget threads and jobs: a forked process has none of its parent's threads."""
        self.__init__()  # type: ignore[misc]  # no subclass has another signature


def _serve(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()  # no variable: it would keep the tensors of a call alive until the next job


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


def over_blocks(work: Callable[[int, int], None], blocks: int, size: int, tensors: Any = ()) -> None:
    """Call ``work(begin, end)`` for ranges that cover ``range(blocks)``; ``size`` says how much work it is.

    ``tensors`` holds what ``work`` reads and writes by address. When this function returns or raises, no thread runs
    ``work`` any more; after an exception on any thread no further range is begun, and it is raised here.
    """
    threads = min(torch.get_num_threads(), blocks) if size >= WORTHWHILE else 1
    if threads == 1:
        work(0, blocks)
        return
    shares = min(threads * _SHARES, blocks)
    cuts = [blocks * k // shares for k in range(shares + 1)]
    batch = _Batch(work, list(zip(cuts, cuts[1:])), tensors)
    try:
        _pool.submit(batch.help, threads - 1)
        batch.take()
    finally:
        batch.end()
    if batch.errors:
        raise batch.errors[0]


class _Batch:
    """The ranges of one call, and who works on them.

    An interrupt (Ctrl-C) may raise between any two steps of the calling thread, so that thread keeps no counter, which
    would be wrong then. Helpers append to two lists when they enter and when they leave, and the caller compares the
    lengths as often as it likes.
    """

    def __init__(self, work: Callable[[int, int], None], ranges: List[Tuple[int, int]], tensors: Any) -> None:
        self.errors: List[BaseException] = []
        self._work: Optional[Callable[[int, int], None]] = work
        self._ranges: Deque[Tuple[int, int]] = deque(ranges)
        self._tensors = tensors
        self._entered: List[int] = []
        self._left: List[int] = []
        self._closed = False
        #: One item for each helper that has left.
        self._notifications: SimpleQueue[None] = SimpleQueue()

    def help(self) -> None:
        """Take ranges on another thread."""
        self._entered.append(threading.get_ident())
        # _closed is read after entering, and end() reads _entered after closing: one of the two sees the other
        try:
            if not self._closed:
                self.take()
        except BaseException as error:
            self._closed = True
            self.errors.append(error)
        finally:
            self._left.append(threading.get_ident())
            self._notifications.put(None)

    def take(self) -> None:
        """Take ranges until there is none."""
        work = self._work
        while work is not None and not self._closed:
            try:
                begin, end = self._ranges.popleft()
            except IndexError:
                return
            work(begin, end)

    def end(self) -> None:
        """Begin no further range, and return when no helper is at work. An interrupt meanwhile is raised after that.

        Helpers that have not entered yet are not waited for; they find the batch closed.
        """
        try:
            self._closed = True
            while len(self._left) < len(self._entered):
                try:
                    self._notifications.get(timeout=_POLL_SECONDS)
                except Empty:
                    continue
        except BaseException:
            self.end()  # after an interrupt go on waiting
            raise
        self._work = self._tensors = None  # a helper that enters later must not keep tensors alive


class Scratch(threading.local):
    """Memory that a thread's kernels compute in, kept between calls."""

    def __init__(self) -> None:
        self._held = _bytes(0)

    def memory(self, size: int) -> torch.Tensor:
        """At least ``size`` bytes, whose content is anything.

        The caller keeps the tensor until its kernel is done: a signal's handler may run a larger kernel on this thread
        between this call and the kernel.
        """
        if self._held.numel() < size:
            self._held = _bytes(size)
        return self._held


def _bytes(size: int) -> torch.Tensor:
    # named, because torch.set_default_device may say "meta" or "cuda"
    return torch.empty(size, dtype=torch.uint8, device="cpu")
