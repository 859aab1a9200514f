"""Machine code on disk: entries of :mod:`spikecore.kernels.cache`."""

from __future__ import annotations

import json
import logging
from typing import List, NamedTuple, Optional

from spikecore.kernels import cache

_KIND = "numba"
_log = logging.getLogger("spikecore")


class Entry(NamedTuple):
    """A compiled kernel."""

    #: Functions that it calls; they must be in the process before it is loaded.
    symbols: List[str]
    code: bytes


def read(key: str) -> Optional[Entry]:
    """The entry, or None if there is none that is whole."""
    content = cache.read(_KIND, f"{key}.o")
    if content is None:
        return None
    # the first line has the symbols: JSON has no line break, which machine code may have
    line, _, code = content.partition(b"\n")
    try:
        return Entry(list(json.loads(line)), code)
    except (ValueError, TypeError) as error:
        _log.debug("kernel %s is not readable: %s", key, error)
        return None


def write(key: str, entry: Entry) -> None:
    """Keep the entry, where the folder allows it."""
    cache.write(_KIND, f"{key}.o", json.dumps(entry.symbols).encode() + b"\n" + entry.code)
