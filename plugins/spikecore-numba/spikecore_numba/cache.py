"""Machine code on disk.

An entry is a file ``<key>.o``: one line of JSON, then an object file. The key is a hash of everything that the
machine code depends on, so an entry is never stale and never changed, only written once and read. Files appear whole
or not at all; a folder that cannot be written to costs the cache and nothing else. Beside each entry lies the text it
was compiled from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import List, NamedTuple, Optional

_log = logging.getLogger("spikecore")


class Entry(NamedTuple):
    """A compiled kernel."""

    #: Functions that it calls; they must be in the process before it is loaded.
    symbols: List[str]
    code: bytes


def folder() -> Path:
    """``$SPIKECORE_CACHE_DIR``, or ``spikecore`` in the user's cache folder."""
    chosen = os.environ.get("SPIKECORE_CACHE_DIR")
    if chosen:
        return Path(chosen) / "numba"
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "spikecore" / "numba"


def read(key: str) -> Optional[Entry]:
    """The entry, or None if there is none that is whole."""
    try:
        content = (folder() / f"{key}.o").read_bytes()
        line, _, code = content.partition(b"\n")
        head = json.loads(line)
        if head["digest"] == hashlib.blake2b(code, digest_size=16).hexdigest():
            return Entry(list(head["symbols"]), code)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        _log.debug("kernel %s is not readable: %s", key, error)
    return None


def write(key: str, entry: Entry, text: str) -> None:
    """Keep the entry and its text, where the folder allows it."""
    digest = hashlib.blake2b(entry.code, digest_size=16).hexdigest()
    head = json.dumps({"symbols": entry.symbols, "digest": digest}).encode()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        _place(folder() / f"{key}.py", text.encode())
        _place(folder() / f"{key}.o", head + b"\n" + entry.code)
    except (OSError, RuntimeError) as error:
        _log.debug("kernel %s is not kept: %s", key, error)


def _place(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
