"""Checkpoints in files that are whole, whenever the program that writes them is killed.

What cannot be read back is refused before anything is written: a file is read without running code from it
(``weights_only``), which knows fewer types than a file can hold.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, Mapping, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore._base.errors import a_kind
from spikecore._base.files import replacing
from spikecore._shell.checks import shown
from spikecore._shell.processes import is_shard

#: Under this name the settings are in the file.
_SETTINGS = "settings"
#: What a file of ``torch.save`` begins with.
_ZIP = b"PK\x03\x04"
#: Types that every torch reads back; exactly these, since a subclass (numpy.float64 is one of float) may not be.
_PLAIN = (type(None), bool, int, float, str)


def save_checkpoint(path: Union[str, Path], settings: Mapping[str, Any], **parts: Any) -> None:
    """Write what a training needs to go on, by name, to a file.

    ::

        sc.save_checkpoint("run.pt", {"lr": 1e-3}, step=step.state_dict(), epoch=epoch, random=torch.get_rng_state())

    The file is replaced as a whole: a kill at any moment leaves the old one or the new one, and maybe a hidden file
    ``.spikecore-*.tmp`` beside it, which may be deleted. It keeps its permissions, also while it is written, and a link
    stays one.
    ``settings`` are what must be the same when training goes on. They and the parts are None, truth values, numbers,
    texts, and lists, tuples and dicts of these; parts may hold tensors, too.

    Raises TypeError for a value that :func:`load_checkpoint` could not read back and ValueError for a setting that is
    NaN, both with the key, and OSError (FileNotFoundError, PermissionError, ...) if there can be no such file. Nothing
    is written then.
    """
    _check_settings(settings)
    for name, part in parts.items():
        for key, value in _leaves(name, part):
            if is_shard(value):
                raise TypeError(
                    f"{key} is a shard of a tensor (DTensor): the file of one process would hold a part of it only. "
                    "Give whole tensors, which get_state_dict of torch.distributed.checkpoint.state_dict gathers with "
                    "options=StateDictOptions(full_state_dict=True, cpu_offload=True), called in every process"
                )
            if not _is_read_back(value):
                raise TypeError(f"{key}={shown(value)} {_cannot(value)}")
    folder = Path(os.path.realpath(str(path))).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder} for the checkpoint", str(path))
    with replacing(Path(path)) as file:
        _save({_SETTINGS: dict(settings), **parts}, file)
        file.flush()
        os.fsync(file.fileno())


def _save(content: Any, file: BinaryIO) -> None:
    """``torch.save``, which raises what ended it: if writing fails or is interrupted, torch closes its archive, which
    raises RuntimeError in the place of KeyboardInterrupt or OSError.
    """
    around = sys.exc_info()[1]  # the caller may write its checkpoint because of an error
    try:
        torch.save(content, file)
    except Exception as error:
        first: BaseException = error
        while first.__context__ is not None and first.__context__ is not around:
            first = first.__context__
        if first is error:
            raise
        raise first from None


def load_checkpoint(path: Union[str, Path], settings: Mapping[str, Any], parts: Sequence[str] = ()) -> Dict[str, Any]:
    """The parts that :func:`save_checkpoint` wrote, on the CPU; the settings are not among them.

    ``parts`` are the names that the caller goes on to read.

    Raises FileNotFoundError where there is no file, and ValueError for a file that is no checkpoint, for one that was
    written with other ``settings``, naming them, and for one that lacks some of ``parts``, naming these: another
    version of the program wrote it.
    """
    _check_settings(settings)
    if isinstance(parts, str):
        raise TypeError(f"parts={parts!r} is one text; give a list of names, [{parts!r}]")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}; begin without one, or name another file")
    try:
        with path.open("rb") as file:
            # torch.load also takes older formats, which in torch before 2.6 can run code (CVE-2025-32434)
            if file.read(len(_ZIP)) != _ZIP:
                raise ValueError("it is no zip file")
            file.seek(0)
            # weights_only: a checkpoint from elsewhere must not run code
            found = torch.load(file, map_location="cpu", weights_only=True)
        written = dict(found.pop(_SETTINGS))
        _check_settings(written)
    except PermissionError:
        raise
    except Exception as error:  # what torch raises for a file of something else depends on its bytes
        raise ValueError(f"{path} is no checkpoint of sc.save_checkpoint ({_said(error)})") from error
    names = [*written, *(name for name in settings if name not in written)]
    other = [
        f"{name}={written.get(name, 'nothing')!r} (now {settings.get(name, 'nothing')!r})"
        for name in names
        if name not in written or name not in settings or written[name] != settings[name]
    ]
    if other:
        raise ValueError(f"{path} was written with {', '.join(other)}; give the same, or begin without this checkpoint")
    lacking = [name for name in parts if name not in found]
    if lacking:
        raise ValueError(
            f"{path} has no {' and no '.join(map(repr, lacking))}, but {', '.join(map(repr, found)) or 'nothing'}: "
            "another version of the program wrote it; go on with that version, or begin without this checkpoint"
        )
    read: Dict[str, Any] = found
    return read


def _said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_settings(settings: Any) -> None:
    """Raise unless these can be read back and compared."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings={shown(settings)} is {a_kind(settings)}; give a dict of name: value")
    for key, value in _leaves(_SETTINGS, dict(settings)):
        if isinstance(value, Tensor):
            raise TypeError(
                f"{key}={shown(value)} is a tensor, which does not compare as one value; give value.tolist()"
            )
        if not _is_read_back(value):
            raise TypeError(f"{key}={shown(value)} {_cannot(value)}")
        if value != value:
            raise ValueError(f"{key} is NaN, which equals no setting, itself included; leave it out, or give None")


def _leaves(key: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """What is in lists, tuples and dicts, with the way there; keys of dicts that are no plain values, too."""
    seen = set()
    waiting = [(key, value)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            inner = [(f"{key}[{shown(name)}]", one) for name, one in value.items()]
            yield from ((f"a key of {key}", name) for name in value)
        elif type(value) in (list, tuple, torch.Size):
            inner = [(f"{key}[{place}]", one) for place, one in enumerate(value)]
        else:
            yield key, value
            continue
        if type(value) not in (dict, list, tuple):
            yield key, type(value)()  # a defaultdict is not read back, whatever is in it
        if id(value) not in seen:  # it may hold itself
            seen.add(id(value))
            waiting += reversed(inner)


def _is_read_back(value: Any) -> bool:
    """Whether ``weights_only`` takes it. What is no number, text or usual tensor is tried on its own."""
    if type(value) in _PLAIN or (type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided):
        return not (isinstance(value, Tensor) and value.device.type == "meta")
    file = io.BytesIO()
    try:
        _save(value, file)
        file.seek(0)
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # what torch and pickle raise depends on the type
        return False
    return True


def _cannot(value: Any) -> str:
    """Why a value is refused, and what to give."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "numpy":
        give = "value.item()" if not getattr(value, "shape", ()) else "torch.from_numpy(value) or value.tolist()"
    else:
        give = "str(value)" if isinstance(value, (os.PathLike, str)) else "numbers, texts and tensors that say the same"
    home = kind.__module__.partition("._")[0]  # pathlib, where Python 3.13 says pathlib._local
    return f"is a {home}.{kind.__qualname__}, which sc.load_checkpoint could not read back; give {give}"
