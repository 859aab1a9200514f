"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Iterator, Optional

#: The names of files that are being written begin so, and end with ``.tmp``.
WRITING = ".spikecore-"


@contextmanager
def replacing(path: Path, mode: Optional[int] = None, follow: bool = True) -> Iterator[BinaryIO]:
    """A new file, which takes the place of ``path`` when the block ends. After an error ``path`` is as it was.

    Of a link the target is replaced, and with ``follow=False`` the link itself. Raises OSError for what is there and is
    no file, such as a folder or a named pipe.

    The new file ends with the permissions ``mode``, by default those of the file at ``path``, else those of any new
    file. While it is written, nobody else can read it if its permissions are set so. A killed process may leave a file
    ``.spikecore-*.tmp`` beside it.
    """
    named = str(path)
    if follow:
        path = Path(os.path.realpath(named))
    if path.exists() and not path.is_file():
        code = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(code, "a new file takes the place of a file, and this is none", named)
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
            raise OSError(error.errno, f"{error.strerror} (to write a new file beside it)", named) from None
        with open(handle, "w+b") as file:
            yield file
        if mode is not None:
            os.chmod(str(beside), mode)
        os.replace(str(beside), str(path))
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt may come before there is a file, or when it has moved
            os.unlink(str(beside))
        raise
