"""Processes with one implementation each, which compute when they are told to; meanwhile all others wait."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from typing import Any, Callable, Iterator, Optional, Tuple

from spikecore.bench._settings import Settings
from spikecore.bench._timing import Failure, failure

#: One thread each, for as many processes as there are processors.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
#: Seconds that a worker has to leave.
LEAVE = 5.0


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What processes that start meanwhile inherit."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Worker:
    """An implementation in a process of its own, started when this is made."""

    def __init__(self, settings: Settings, enter: Callable[..., Any], *arguments: Any) -> None:
        """``enter(settings, *arguments)``, of a module, sets up in the process; ``told()`` of its result comes back."""
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        with _environment():
            self._process = context.Process(target=_serve, args=(there, settings, enter, arguments), daemon=True)
            self._process.start()
        there.close()
        self._ready: Optional[Tuple[str, Any]] = None

    def ready(self, limit: Optional[float] = None) -> Tuple[str, Any]:
        """``("ready", what ``told()`` gave there)``, or ``("failed", a Failure)``; waits for it.

        A process that is not ready after ``limit`` seconds is killed.
        """
        if self._ready is None and not self._pipe.poll(limit):
            self.kill()
            self._ready = ("failed", Failure("its process was not ready in time"))
        if self._ready is None:
            try:
                self._ready = self._pipe.recv()
            except EOFError:
                self._process.join()
                self._ready = ("failed", failure(RuntimeError(f"its process ended with {self._process.exitcode}")))
        return self._ready

    def ask(self, what: str, *arguments: Any, limit: Optional[float] = None) -> Any:
        """What a method of what was set up gives there, while all others wait.

        Raises RuntimeError if it raises, and TimeoutError after ``limit`` seconds; the process is killed then. Raises
        EOFError if the process ended.
        """
        self._pipe.send((what, arguments))
        if not self._pipe.poll(limit):
            self.kill()
            raise TimeoutError(f"not done in {limit:g} s")
        good, answer = self._pipe.recv()
        if not good:
            raise RuntimeError(answer)
        return answer

    def end(self) -> None:
        """End the process: it ends by itself where it waits for a turn, and is killed where it is still setting up."""
        self._pipe.close()
        self._process.join(LEAVE)
        if self._process.is_alive():
            self.kill()

    def kill(self) -> None:
        """End the process in the middle of what it does."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Any, settings: Settings, enter: Callable[..., Any], arguments: Tuple[Any, ...]) -> None:
    try:
        under = enter(settings, *arguments)
    except Exception as error:
        pipe.send(("failed", failure(error)))
        return
    pipe.send(("ready", under.told()))
    while True:
        try:
            what, given = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(under, what)(*given)))
        except Exception as error:
            pipe.send((False, failure(error).reason))
