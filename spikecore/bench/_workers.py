"""Processes that compile at the same time, before anything is timed.

A rehearsal compiles what jobs need into the caches on disk and is over before the first of them is measured. A
:class:`Worker` holds one implementation that was set up in a process of its own, as compiled networks are that share no
code, and makes its turns when it is told to; meanwhile all others wait.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

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


def rehearse(settings: Settings, jobs: Sequence[Any], prepare: Callable[[Settings], Any]) -> str:
    """Compile what these jobs need, in ``settings.workers`` processes; in words how that went.

    ``prepare``, of a module, gives each process a report and the same jobs.
    Those whose rehearsal was not over when ``settings.patience`` was are told so.
    """
    places = [place for place, job in enumerate(jobs) if job.rehearse is not None]
    if not places or settings.workers < 1:
        return ""
    context = multiprocessing.get_context("spawn")
    taken, done = context.Value("i", 0), context.Array("b", len(jobs), lock=False)
    count = min(settings.workers, len(places))
    begin = time.monotonic()
    with _environment():
        arguments = (settings, places, taken, done, prepare)
        started = [context.Process(target=_rehearse, args=arguments, daemon=True) for _ in range(count)]
        for one in started:
            one.start()
    for one in started:
        one.join(max(0.0, begin + settings.patience - time.monotonic()))
    for one in started:
        if one.is_alive():
            one.kill()
        one.join()
    late = [jobs[place] for place in places if not done[place]]
    for job in late:
        if job.late is not None:
            job.late()
    unfinished = f", but for {', '.join(job.label for job in late)}" if late else ""
    return f"{len(places) - len(late)} parts compiled in {time.monotonic() - begin:.0f} s{unfinished}"


def _rehearse(
    settings: Settings, places: Sequence[int], taken: Any, done: Any, prepare: Callable[[Settings], Any]
) -> None:
    _, jobs = prepare(settings)
    while True:
        with taken.get_lock():
            mine = taken.value
            taken.value += 1
        if mine >= len(places):
            return
        # what fails here fails again where it is measured, and says so there
        with contextlib.suppress(Exception):
            jobs[places[mine]].rehearse()
        done[places[mine]] = 1


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


def turn(call: Any, begin: int, calls: int) -> float:
    """A turn made in another process, as :func:`spikecore.bench._timing.interleave` takes them."""
    return float(call.turn(begin, calls))


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
