"""Compiled kernels on disk.

An entry is a file in ``$SPIKECORE_CACHE_DIR/<kind>``, else in ``spikecore/<kind>`` of the user's cache folder. Its name
has a hash of everything that its content depends on, so an entry is never stale and never changed, only written once
and read. Rules of this module:

- Machine code runs with the user's rights, so a folder of entries is the user's alone (mode 0700), and a folder or file
  that others own or can write to is not read.
- An entry ends with a hash of its kind, its name and its content: a file that is cut short, or lies under another
  entry's name, is none.
- Files appear whole or not at all, whatever processes do at the same time. A folder that cannot be used costs the cache
  and nothing else, and the log says why.
- All kinds together take ``SPIKECORE_CACHE_SIZE`` MiB at most (512): what was not used for longest goes first.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import stat
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

_log = logging.getLogger("spikecore")
_DIGEST = 16
#: Says that the files of a folder are entries, to us and to programs that make backups.
_TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# compiled kernels of spikecore\n"
#: Files of ours in such a folder: entries, which have a hash in their names, and those that a process is writing.
_ENTRY, _WRITING = re.compile(r"[\w-]*[0-9a-f]{24,}\.\w+"), ".spikecore-"
#: Seconds after which a file that a process is writing is one that a killed process left.
_LEFT = 3600.0
#: Writes of a process after which the size is looked at again.
_EVERY = 16
_writes = itertools.count()

DEFAULT_SIZE = 512


class Kind(NamedTuple):
    """The entries of one kind."""

    folder: Path
    files: int
    size: int


def base() -> Path:
    """The folder that has a folder for each kind."""
    chosen = os.environ.get("SPIKECORE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # a relative path is invalid there, and to be ignored
    above = xdg if os.path.isabs(xdg) else os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(above) / "spikecore"


def folder(kind: str) -> Path:
    """Where the entries of a kind of kernels lie."""
    return base() / kind


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


def _limit() -> int:
    """As :func:`limit` within a call of a neuron, where a bad setting is a warning and the default is taken."""
    try:
        return limit()
    except ValueError as error:
        warnings.warn(f"{error}; {DEFAULT_SIZE} is taken", RuntimeWarning, stacklevel=2)
        return DEFAULT_SIZE * 2**20


def key_of(*parts: object) -> str:
    """The key of what depends on these parts alone, each by its text."""
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        text = str(part).encode()
        hashed.update(f"{len(text)}:".encode() + text)
    return hashed.hexdigest()


def meaning(text: str, comment: str) -> str:
    """What of a kernel's text decides what it computes: not the comments before its first statement, nor lines that
    hold nothing else (``comment`` is what they begin with), nor a docstring before all.

    Of a C text in which such a line may be something else, a raw string or a line that goes on, all counts.
    """
    if comment == "//" and ('R"' in text or "\\\n" in text):
        return text
    text = re.sub(r'\A\s*""".*?"""', "", text, flags=re.DOTALL)
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith(comment))


def read(kind: str, name: str) -> Optional[bytes]:
    """The content of an entry, or None if there is none that is whole, this one, and the user's own."""
    path = folder(kind) / name
    try:
        reason = _others(os.lstat(path.parent))
        # owner and mode are those of the file that is open: the one of this name could be replaced meanwhile
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            reason = reason or _others(os.fstat(file.fileno()))
            entry = b"" if reason else file.read()
        content, digest = entry[:-_DIGEST], entry[-_DIGEST:]
        if not reason and digest == _digest(kind, name, content):
            _touch(path)
            return content
        _log.debug("kernel %s is not used: %s", name, reason or "its content is not what was written under this name")
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError) as error:
        _log.debug("kernel %s is not readable: %s", name, error)
    return None


def verified(kind: str, name: str) -> Optional[Path]:
    """The file of an entry, for what must be loaded from one; its last 16 bytes are no part of the content."""
    return None if read(kind, name) is None else folder(kind) / name


def write(kind: str, name: str, content: bytes) -> None:
    """Keep an entry, where the folder allows it."""
    _place(kind, name, signed(kind, name, content))


def signed(kind: str, name: str, content: bytes) -> bytes:
    """An entry as it lies on disk."""
    return content + _digest(kind, name, content)


def write_text(kind: str, name: str, text: str) -> None:
    """Keep a text that people read, where the folder allows it."""
    _place(kind, name, text.encode())


def kinds() -> Dict[str, Kind]:
    """What there is, by kind."""
    found = {}
    for path in _folders():
        files = [stats.st_size for _, stats in _files(path)]
        found[path.name] = Kind(path, len(files), sum(files))
    return found


def clear() -> Tuple[int, int]:
    """Remove all entries: how many files, and their bytes. A folder that is empty then goes, too."""
    gone, size = 0, 0
    for path in _folders():
        for file, stats in _files(path):
            gone, size = gone + _removed(file), size + stats.st_size
        if {left.name for left in path.iterdir()} <= {_TAG}:
            _removed(path / _TAG)
            try:
                path.rmdir()
            except OSError as error:  # another process has just begun anew
                _log.debug("%s stays: %s", path, error)
    return gone, size


def trim() -> None:
    """Remove what killed processes left, and what was not used for longest of what is beyond the limit."""
    # other processes may remove files meanwhile, which costs nothing: _removed() and _files() allow for it
    now, files = time.time(), []
    for path in _folders():
        for file, stats in _files(path):
            if not file.name.startswith(_WRITING):
                files.append((stats.st_atime, stats.st_size, file))
            elif now - stats.st_mtime > _LEFT:
                _removed(file)
    left = _limit()
    for _, size, file in sorted(files, reverse=True):
        left -= size
        if left < 0:
            _removed(file)


def _digest(kind: str, name: str, content: bytes) -> bytes:
    hashed = hashlib.blake2b(f"{len(kind)}:{kind}{len(name)}:{name}".encode(), digest_size=_DIGEST)
    hashed.update(content)
    return hashed.digest()


def _others(stats: os.stat_result) -> str:
    """What others can do with a file or folder, in words; nothing if it is the user's alone."""
    if not hasattr(os, "getuid"):  # Windows, where a user's folders are private
        return ""
    if stat.S_ISLNK(stats.st_mode):
        return "it is a link"
    if stats.st_uid != os.getuid():
        return f"it belongs to user {stats.st_uid}"
    return "others may write to it" if stats.st_mode & 0o022 else ""


def _touch(path: Path) -> None:
    """Note that an entry was used now. Its time of access is set, since most file systems do not keep it."""
    try:
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
    except OSError as error:
        _log.debug("%s is used, which cannot be noted: %s", path, error)


def _ready(path: Path) -> None:
    """Make the folder of a kind, or take it over from an earlier version; raises ``OSError`` if it cannot be used."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.mkdir(exist_ok=True, mode=0o700)
    stats = os.lstat(path)
    if hasattr(os, "getuid") and stats.st_uid == os.getuid() and stat.S_IMODE(stats.st_mode) & 0o077:
        path.chmod(0o700)
        stats = os.lstat(path)
    reason = _others(stats)
    if reason:
        raise PermissionError(f"{path} is not used: {reason}")
    if not (path / _TAG).exists():
        (path / _TAG).write_text(_SIGNATURE, encoding="utf-8")


def _place(kind: str, name: str, content: bytes) -> None:
    try:
        # trim() would remove it at once
        if len(content) > _limit():
            return
        path = folder(kind) / name
        _ready(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):  # an interrupt may come between the replacement and here
                os.unlink(temporary)
            raise
        if next(_writes) % _EVERY == 0:
            trim()
    except (OSError, RuntimeError) as error:
        _log.debug("kernel %s is not kept: %s", name, error)


def _folders() -> List[Path]:
    """The folders of entries: those with our tag, which belong to the user."""
    found = []
    try:
        for path in sorted(base().iterdir()):
            tag = path / _TAG
            ours = tag.is_file() and tag.read_text(encoding="utf-8", errors="replace") == _SIGNATURE
            if ours and not _others(os.lstat(path)):
                found.append(path)
    except (OSError, RuntimeError) as error:
        _log.debug("no kernels are kept: %s", error)
    return found


def _files(path: Path) -> List[Tuple[Path, os.stat_result]]:
    """The files of ours in a folder of entries."""
    found = []
    for file in path.iterdir():
        if file.name.startswith(_WRITING) or _ENTRY.fullmatch(file.name):
            try:
                stats = os.lstat(file)
            except OSError:  # another process has just removed it
                continue
            if stat.S_ISREG(stats.st_mode):
                found.append((file, stats))
    return found


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError as error:
        _log.debug("%s stays: %s", path, error)
        return False
    return True
