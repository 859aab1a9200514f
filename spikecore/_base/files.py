"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Iterator, Optional

#: The names of files that are being written begin so, and end with ``.tmp``.
WRITING = ".spikecore-"


@contextmanager
def replacing(path: Path, mode: Optional[int] = None) -> Iterator[BinaryIO]:
    """A new file, which takes the place of ``path`` when the block ends. After an error ``path`` is as it was.

    The new file ends with the permissions ``mode``, by default those of the file at ``path``, else those of any new
    file. While it is written, nobody else can read it if its permissions are set so. A killed process may leave a file
    ``.spikecore-*.tmp`` beside it.
    """
    # beside it: a file can be replaced at once within one file system only. Short: a file system may limit names
    beside = path.parent / f"{WRITING}{secrets.token_hex(4)}.tmp"
    if mode is None:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            handle = os.open(str(beside), flags, 0o666 if mode is None else 0o600)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (to write a new file beside it)", str(path)) from None
        with open(handle, "w+b") as file:
            yield file
        if mode is not None:
            os.chmod(str(beside), mode)
        os.replace(str(beside), str(path))
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt may come before there is a file, or when it has moved
            os.unlink(str(beside))
        raise
