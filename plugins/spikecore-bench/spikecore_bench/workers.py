"""Processes with one implementation each, which compute when they are told to; meanwhile all others wait."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from typing import Any, Callable, Optional, Tuple

import torch

from spikecore_bench.timing import failure

#: One thread each for what compiles, for as many processes as there are processors. Torch computes with as many
#: threads as in the main process.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
#: Seconds that a worker has to leave.
LEAVE = 5.0


class Worker:
    """An implementation in a process of its own, started when this is made."""

    def __init__(self, enter: Callable[..., Any], *arguments: Any) -> None:
        """``enter(*arguments)``, of a module, sets up in the process; methods of its result can be asked."""
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        threads, before = torch.get_num_threads(), {name: os.environ.get(name) for name in ENVIRONMENT}
        self._process = context.Process(target=_serve, args=(there, threads, enter, arguments), daemon=True)
        os.environ.update(ENVIRONMENT)  # which the process inherits
        try:
            self._process.start()
        finally:
            for name in ENVIRONMENT:
                del os.environ[name]
            os.environ.update({name: value for name, value in before.items() if value is not None})
        there.close()
        #: Error that :meth:`ask` raises; None: not known yet, empty: none.
        self._problem: Optional[str] = None

    def ready(self, limit: Optional[float] = None) -> None:
        """Wait until it is set up, or could not be. A process that is not ready after ``limit`` seconds is killed."""
        if self._problem is None and not self._pipe.poll(limit):
            self._process.kill()
            self._problem = "its process was not ready in time"
        if self._problem is None:
            self._problem = self._received()[1]

    def ask(self, what: str, *arguments: Any, limit: Optional[float] = None) -> Any:
        """Result of a method of the set-up object in the other process, while all others wait.

        Raises RuntimeError if it could not be set up, if the method raises, and if the process ended; and TimeoutError
        after ``limit`` seconds, when the process is killed.
        """
        self.ready()
        if self._problem:
            raise RuntimeError(self._problem)
        self._pipe.send((what, arguments))
        if not self._pipe.poll(limit):
            self._process.kill()
            raise TimeoutError(f"not done in {limit:g} s; --budget gives it more")
        good, answer = self._received()
        if not good:
            raise RuntimeError(answer)
        return answer

    def _received(self) -> Tuple[bool, Any]:
        try:
            good, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            return False, f"its process ended with {self._process.exitcode}"
        return good, answer

    def end(self) -> None:
        """End the process: it ends by itself where it waits to be asked, and is killed where it is still setting up."""
        self._pipe.close()
        self._process.join(LEAVE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Here:
    """An implementation in this process, which is asked as a :class:`Worker` is; it has no limit."""

    def __init__(self, enter: Callable[..., Any], *arguments: Any) -> None:
        """``enter(*arguments)`` sets up when it is first asked."""
        self._enter = partial(enter, *arguments)
        self._under: Any = None

    def ready(self, limit: Optional[float] = None) -> None:
        """Nothing to wait for."""

    def ask(self, what: str, *arguments: Any, limit: Optional[float] = None) -> Any:
        """Result of a method of the set-up object. Errors pass through."""
        if self._under is None:
            self._under = self._enter()
        return getattr(self._under, what)(*arguments)

    def end(self) -> None:
        """Drop what was set up."""
        self._under = None


def _serve(pipe: Any, threads: int, enter: Callable[..., Any], arguments: Tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    try:
        under = enter(*arguments)
    except Exception as error:
        pipe.send((False, failure(error).reason))
        return
    pipe.send((True, ""))
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(under, what)(*arguments)))
        except Exception as error:
            pipe.send((False, failure(error).reason))
