"""Whether this thread runs a region of activation checkpointing, for the first time or again in backward.

:mod:`spikecore.parallel` says so while a region runs. Calls within it ask.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Iterator

FIRST, AGAIN = "first", "again"


class _Region(threading.local):
    run = ""


_region = _Region()


def current() -> str:
    """``FIRST`` or ``AGAIN`` within a region, else ""."""
    return _region.run


@contextmanager
def running(run: str) -> Iterator[None]:
    """The block is a region's first run, or the one in backward; all regions within one that runs again do so, too."""
    before = _region.run
    _region.run = AGAIN if before == AGAIN else run
    try:
        yield
    finally:
        _region.run = before
