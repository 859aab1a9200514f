"""Running a plugin's code so that any exception it raises is reported as an error of the plugin.

``SystemExit``, ``GeneratorExit``, pytest's ``Skipped`` and a ``KeyboardInterrupt`` that the code itself raises are
errors of the plugin like any other. An exception that a signal handler raises while the code runs (Ctrl-C, a time
limit) is not an error of the plugin, and is raised unchanged.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Callable, Iterator, Optional, Set, TypeVar

_T = TypeVar("_T")


def contained(call: Callable[[], _T], failure: Callable[[BaseException], Exception]) -> _T:
    """The result of the call. If it raises, ``failure(error)`` is raised from that error."""
    try:
        with _visible_ctrl_c():
            return call()
    except BaseException as error:
        if _by_signal(error):
            raise
        raise failure(error) from error


def described(error: BaseException) -> str:
    """The error in a sentence: its type and its text, where it has one."""
    try:
        text = contained(lambda: str(error), lambda _: ValueError())
    except ValueError:  # even its text is broken
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _on_ctrl_c(number: int, frame: Optional[FrameType]) -> None:
    signal.default_int_handler(number, frame)


@contextmanager
def _visible_ctrl_c() -> Iterator[None]:
    """Within the block Ctrl-C is handled by a Python function, which tracebacks show; Python's own handler is in C."""
    # only the main thread may set handlers, and handlers run in no other
    replaces = threading.current_thread() is threading.main_thread()
    if not replaces or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _on_ctrl_c)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _on_ctrl_c:  # a handler that the plugin has set stays
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _by_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it, as its traceback tells."""
    handlers: Set[Optional[CodeType]] = {_on_ctrl_c.__code__}
    handlers |= {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
