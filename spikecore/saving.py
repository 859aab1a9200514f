"""Checkpoints in files that are whole, whenever the program that writes them is killed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Mapping, Union

import torch

#: Under this name the settings are in the file.
_SETTINGS = "settings"


def save_checkpoint(path: Union[str, Path], settings: Mapping[str, Any], **parts: Any) -> None:
    """Write what a training needs to go on, by name, to a file.

    ::

        sc.save_checkpoint("run.pt", {"lr": 1e-3}, step=step.state_dict(), epoch=epoch, random=torch.get_rng_state())

    The file is replaced as a whole: a kill at any moment leaves the old one or the new one. ``settings`` are what must
    be the same when training goes on. Parts are tensors, numbers, texts, and lists, tuples and dicts of these.
    """
    if _SETTINGS in parts:
        raise ValueError("settings is given twice")
    path = Path(path)
    # beside it: a file can be replaced at once within one file system only
    handle, name = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({_SETTINGS: dict(settings), **parts}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, str(path))
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt may come between the replacement and here
            os.unlink(name)
        raise


def load_checkpoint(path: Union[str, Path], settings: Mapping[str, Any]) -> Dict[str, Any]:
    """The parts that :func:`save_checkpoint` wrote, on the CPU.

    Raises FileNotFoundError where there is no file, ValueError for a file that is no checkpoint, and for one that was
    written with other ``settings``, naming them.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}; begin without resuming")
    try:
        # weights_only: a checkpoint from elsewhere must not run code
        found = torch.load(str(path), map_location="cpu", weights_only=True)
        written = found.pop(_SETTINGS)
    except Exception as error:  # what torch raises for a file of something else depends on its bytes
        raise ValueError(f"{path} is no checkpoint of sc.save_checkpoint ({type(error).__name__})") from error
    names = [*written, *(name for name in settings if name not in written)]
    other = [
        f"{name}={written.get(name, 'nothing')!r} (now {settings.get(name, 'nothing')!r})"
        for name in names
        if name not in written or name not in settings or written[name] != settings[name]
    ]
    if other:
        raise ValueError(f"{path} was written with {', '.join(other)}; give the same, or begin without resuming")
    parts: Dict[str, Any] = found
    return parts
