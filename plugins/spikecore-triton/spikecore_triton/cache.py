"""Kernels as files on disk: Triton reads the text of what it compiles from a file.

An entry of :mod:`spikecore.kernels.cache` is a file ``<name>-<key>.py`` whose key is a hash of its text. Where that
folder cannot be written to, the file lies in one that ends with the process. Machine code is kept by Triton itself.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from spikecore.kernels import cache

_KIND = "triton"


def placed(name: str, text: str) -> Path:
    """A file with this text: the one that is there, or one written now."""
    path = cache.folder(_KIND) / f"{name}-{cache.key_of(text)}.py"
    # the whole text is compared: it runs with the user's rights, and a name proves nothing about a content
    if not _has(path, text):
        cache.write_text(_KIND, path.name, text)
    if not _has(path, text):
        path = Path(_passing().name) / path.name
        path.write_text(text, encoding="utf-8")
    return path


@functools.lru_cache(maxsize=None)
def _passing() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process."""
    # lru_cache keeps the object: the folder is removed with it
    return tempfile.TemporaryDirectory(prefix="spikecore-triton-")


def _has(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False
