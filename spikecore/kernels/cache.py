"""Compiled kernels on disk.

Entries are files in the folder ``compiled-kernels`` of ``$SPIKECORE_CACHE_DIR``, else of ``spikecore`` in the user's
cache folder. A name has a hash of everything that the content depends on, so an entry is written once and read. Rules:

- The cache never ends a call. Whatever goes wrong costs the cache alone, and the log says what.
- Machine code runs with the user's rights. Folders and entries that others own, or may write to, are not used. What is
  returned are the bytes that were checked, read from one open file.
- An entry begins with its name and a hash of its content: a file that is cut short or renamed is not an entry.
- A folder is used if spikecore made it, which its ``CACHEDIR.TAG`` says, or if it is empty. Only entries are removed.
- All entries take ``SPIKECORE_CACHE_SIZE`` MiB at most (512): what was not used for longest goes first.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from spikecore.files import WRITING, replacing

_log = logging.getLogger("spikecore")
_FOLDER = "compiled-kernels"
#: Says that spikecore made a folder, and to programs that make backups that it is a cache.
_TAG = "CACHEDIR.TAG"
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n# compiled kernels of spikecore\n"
#: First bytes of every entry.
_MAGIC = b"spikecore-kernel "
_DIGEST = 16
#: Seconds after which a file that a process is writing is one that a killed process left.
_LEFT = 3600.0
#: Writes of a process after which the size is looked at again.
_EVERY = 16
_writes = itertools.count()

DEFAULT_SIZE = 512


class Kind(NamedTuple):
    """The entries of one kind."""

    files: int
    size: int


def folder() -> Path:
    """The folder of all entries. Raises ``RuntimeError`` or ``KeyError`` if the user has no home folder."""
    chosen = os.environ.get("SPIKECORE_CACHE_DIR")
    if chosen:
        return Path(chosen) / _FOLDER
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # a relative path is invalid there, and to be ignored
    above = xdg if os.path.isabs(xdg) else os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(above) / "spikecore" / _FOLDER


def limit() -> int:
    """Bytes that all entries take at most. Raises ``ValueError`` for a setting that is no number."""
    text = os.environ.get("SPIKECORE_CACHE_SIZE", "").strip() or str(DEFAULT_SIZE)
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ValueError(f"SPIKECORE_CACHE_SIZE={text!r} must be a number of MiB, 0 or more, such as {DEFAULT_SIZE}")
    return int(size * 2**20)


def key_of(*parts: object) -> str:
    """The key of what depends on these parts alone, each by its text."""
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        text = str(part).encode()
        hashed.update(f"{len(text)}:".encode() + text)
    return hashed.hexdigest()


def meaning(text: str, comment: str) -> str:
    """Text of a kernel without docstring, comments before the first statement and lines that are comments alone (which
    begin with ``comment``): the part that decides its results.

    Of a C text in which such a line may be something else, a raw string or a line that goes on, all counts.
    """
    if comment == "//" and ('R"' in text or "\\\n" in text):
        return text
    text = re.sub(r'\A\s*""".*?"""', "", text, flags=re.DOTALL)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith(comment))


def read(kind: str, name: str) -> Optional[bytes]:
    """The content of an entry, or None if there is none that is whole, this one, and the user's own."""
    entry = f"{kind}.{name}"
    with _Contained(f"kernel {entry} is not read"):
        path = _checked_folder() / entry
        start, whole = _start(entry), _bytes(path)
        content = whole[len(start) + _DIGEST :]
        if whole == start + _digest(entry, content) + content:
            with _Contained(f"{path} is used, which cannot be noted"):
                os.utime(path)  # trim() goes by this time, which no other program's reading changes
            return content
        _log.debug("kernel %s is not read: its content is not what was written under this name", entry)
    return None


def write(kind: str, name: str, content: bytes) -> None:
    """Keep an entry, where the folder allows it. ``kind`` has no dot."""
    entry = f"{kind}.{name}"
    with _Contained(f"kernel {entry} is not kept"):
        if len(content) > _limit():  # trim() would remove it at once
            return
        with replacing(_made_folder() / entry, 0o600, follow=False) as file:
            file.write(_start(entry) + _digest(entry, content) + content)
        if next(_writes) % _EVERY == 0:
            trim()


def reason() -> str:
    """Reason why no new kernels are kept, in words; "" if they are. It tries to write a file."""
    try:
        try:
            path = _checked_folder()
        except FileNotFoundError:  # the first kernel makes it
            path = next(above for above in folder().absolute().parents if above.exists())
        with tempfile.TemporaryFile(dir=path):  # its rights do not say that a disk is read-only
            return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def kinds() -> Dict[str, Kind]:
    """Entries of the cache, by kind."""
    by_kind: Dict[str, Kind] = {}
    for path, stats in _files():
        if not path.name.startswith(WRITING):
            kind = path.name.partition(".")[0]
            files, size = by_kind.get(kind, Kind(0, 0))
            by_kind[kind] = Kind(files + 1, size + stats.st_size)
    return dict(sorted(by_kind.items()))


def clear() -> Tuple[int, int]:
    """Remove all entries: how many files, and their bytes."""
    gone = [stats.st_size for path, stats in _files() if _removed(path)]
    return len(gone), sum(gone)


def trim() -> None:
    """Delete leftovers of killed processes, and the least recently used entries above the size limit."""
    time_now, left = time.time(), _limit()
    for path, stats in sorted(_files(), key=lambda file: file[1].st_mtime, reverse=True):
        if path.name.startswith(WRITING):
            if time_now - stats.st_mtime > _LEFT:
                _removed(path)
            continue
        left -= stats.st_size
        if left < 0:
            _removed(path)


class _Contained:
    """Errors of the cache end here, whatever they are: the log has them, and the caller goes on.

    A class: from Python 3.12 on, an error that ends in a generator of ``contextmanager`` keeps the frames of all
    callers, with their tensors, until Python collects garbage.
    """

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: Optional[BaseException], traceback: object) -> bool:
        if isinstance(error, Exception):
            _log.debug("%s: %s: %s", self.what, type(error).__name__, error)
        return isinstance(error, Exception)


def _limit() -> int:
    """Value of :func:`limit` within a call of a neuron: a bad setting is a warning, and the default is taken."""
    try:
        return limit()
    except ValueError as error:
        warnings.warn(f"{error}; {DEFAULT_SIZE} is taken", RuntimeWarning, stacklevel=3)
        return DEFAULT_SIZE * 2**20


def _start(entry: str) -> bytes:
    return _MAGIC + entry.encode() + b"\n"


def _digest(entry: str, content: bytes) -> bytes:
    hashed = hashlib.blake2b(_start(entry), digest_size=_DIGEST)
    hashed.update(content)
    return hashed.digest()


def _check(path: Path, stats: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Raise unless it is a file, or a folder, that is the user's alone."""
    is_ours = not hasattr(os, "getuid") or stats.st_uid == os.getuid()
    if not is_kind(stats.st_mode):
        raise PermissionError(f"{path} is not used: it is a link, or another kind of file")
    if not is_ours:
        raise PermissionError(f"{path} is not used: it belongs to user {stats.st_uid}")
    if hasattr(os, "getuid") and stats.st_mode & 0o022:  # not on Windows, where a user's folders are private
        raise PermissionError(f"{path} is not used: others may write to it (chmod go-w forbids it)")


def _bytes(path: Path, count: int = -1) -> bytes:
    """The first bytes of a file that is the user's alone. A link is not followed, a named pipe is not waited for."""
    flags = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    # owner and mode are those of the open file: the file at this path may be another one by now
    with open(os.open(path, flags), "rb") as file:
        _check(path, os.fstat(file.fileno()), stat.S_ISREG)
        return file.read(count)


def _checked_folder() -> Path:
    """The folder of entries. Raises ``OSError`` if it is not there, or not spikecore's and this user's alone."""
    path = folder()
    _check(path.parent, os.stat(path.parent), stat.S_ISDIR)
    _check(path, os.lstat(path), stat.S_ISDIR)
    if not (path / _TAG).exists() or _bytes(path / _TAG) != _SIGNATURE:
        raise PermissionError(f"{path} is not used: spikecore did not make it, as its {_TAG} would say")
    return path


def _made_folder() -> Path:
    """Checked folder of entries, which is made if it is missing or empty. The tag appears with the folder."""
    path = folder()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check(path.parent, os.stat(path.parent), stat.S_ISDIR)
    if not path.exists() or not any(path.iterdir()):
        staged = Path(tempfile.mkdtemp(prefix=WRITING, dir=path.parent))
        try:
            with replacing(staged / _TAG, 0o600) as file:
                file.write(_SIGNATURE)
            with suppress(OSError):  # another process was first
                staged.rename(path)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return _checked_folder()


def _files() -> List[Tuple[Path, os.stat_result]]:
    """Entries, and those that processes are writing. Other files in the folder are nobody's business here."""
    files = []
    with _Contained("there are no kernels"):
        for path in _checked_folder().iterdir():
            with _Contained(f"{path} is left alone"):
                start = _start(path.name)
                read = _bytes(path, len(start))
                written = path.name.startswith(WRITING) and (read.startswith(_MAGIC) or not read)
                if read == start or (written and path.suffix == ".tmp"):
                    files.append((path, os.lstat(path)))
    return files


def _removed(path: Path) -> bool:
    with _Contained(f"{path} stays"):
        path.unlink()
    return not os.path.lexists(path)
