"""Compiled kernels on disk.

An entry is a file in ``$SPIKECORE_CACHE_DIR/<kind>``, else in ``spikecore/<kind>`` of the user's cache folder. Its key
is a hash of everything that its content depends on, so an entry is never stale and never changed, only written once
and read. Files appear whole or not at all; a folder that cannot be written to costs the cache and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Optional

_log = logging.getLogger("spikecore")
_DIGEST = 16


def folder(kind: str) -> Path:
    """Where the entries of a kind of kernels lie."""
    chosen = os.environ.get("SPIKECORE_CACHE_DIR")
    if chosen:
        return Path(chosen) / kind
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "spikecore" / kind


def key_of(*parts: object) -> str:
    """The key of what depends on these parts alone, each by its text."""
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        text = str(part).encode()
        hashed.update(f"{len(text)}:".encode() + text)
    return hashed.hexdigest()


def read(kind: str, name: str) -> Optional[bytes]:
    """The content of an entry, or None if there is none that is whole."""
    try:
        entry = (folder(kind) / name).read_bytes()
        digest, content = entry[:_DIGEST], entry[_DIGEST:]
        if digest == hashlib.blake2b(content, digest_size=_DIGEST).digest():
            return content
        _log.debug("kernel %s is broken", name)
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError) as error:
        _log.debug("kernel %s is not readable: %s", name, error)
    return None


def write(kind: str, name: str, content: bytes) -> None:
    """Keep an entry, where the folder allows it."""
    _place(kind, name, hashlib.blake2b(content, digest_size=_DIGEST).digest() + content)


def write_text(kind: str, name: str, text: str) -> None:
    """Keep a text that people read, where the folder allows it."""
    _place(kind, name, text.encode())


def _place(kind: str, name: str, content: bytes) -> None:
    try:
        path = folder(kind) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, RuntimeError) as error:
        _log.debug("kernel %s is not kept: %s", name, error)
