"""Checkpoints: files that are whole whenever the program is killed, and states that are loaded whole or not at all.

A file is read without running code from it (``weights_only``), which knows fewer types than a file can hold. So a new
one is read before it takes the place of the old one.
"""

from __future__ import annotations

import copy
import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Union

import torch
from torch import nn

from spikecore.batches import flattened
from spikecore.core.modules import is_shard
from spikecore.files import replacing
from spikecore.words import a_kind, shown

#: Under this name the settings are in the file.
_SETTINGS = "settings"
#: First bytes of a file of ``torch.save``.
_ZIP = b"PK\x03\x04"


# -- files


def save_checkpoint(path: Union[str, Path], settings: Mapping[str, Any], **parts: Any) -> None:
    """Write what a training needs to go on, by name, to a file.

    ::

        sc.save_checkpoint("run.pt", {"lr": 1e-3}, step=step.state_dict(), epoch=epoch, random=torch.get_rng_state())

    The file is replaced as a whole: a kill at any moment leaves the old one or the new one, and maybe a hidden file
    ``.spikecore-*.tmp`` beside it, which may be deleted. It keeps its permissions, also while it is written, and a link
    stays one.
    ``settings`` are what must be the same when training goes on. They and the parts are None, truth values, numbers,
    texts, and lists, tuples and dicts of these; parts may hold tensors, too. A setting that is NaN equals none.

    Raises TypeError for a value that :func:`load_checkpoint` could not read back, and OSError (FileNotFoundError,
    PermissionError, ...) if there can be no such file, or no place for it. The old file stays then.
    """
    unchecked: Any = path
    if not isinstance(unchecked, (str, os.PathLike)):
        way_out = "the order is save_checkpoint(path, settings, step=step.state_dict())"
        raise TypeError(f"path={shown(path)} is {a_kind(path)}; give a file's path: {way_out}")
    content = {_SETTINGS: _checked(settings), **parts}
    if any(map(is_shard, flattened(parts))):
        raise TypeError(
            "a part has a shard of a tensor (DTensor): the file of one process would hold a part of it only. "
            "Give whole tensors, which get_state_dict of torch.distributed.checkpoint.state_dict gathers with "
            "options=StateDictOptions(full_state_dict=True, cpu_offload=True), called in every process"
        )
    folder = Path(os.path.realpath(str(path))).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder} for the checkpoint", str(path))
    with replacing(Path(path)) as file:
        try:
            torch.save(content, file)
            file.seek(0)
            torch.load(file, map_location="meta", weights_only=True)
        except Exception as error:  # what torch and pickle raise depends on the value
            reason = error.__context__ if isinstance(error, RuntimeError) else error
            if isinstance(reason, OSError):  # torch ends its zip after an error of the file, and raises one of its own
                raise OSError(reason.errno, reason.strerror, str(path)) from error
            lines = str(error).splitlines()
            why = next((line.strip() for line in lines if "Unsupported" in line), lines[0])
            raise TypeError(
                f"sc.load_checkpoint could not read this back ({why}); give numbers, texts and tensors that say the "
                "same: str(value), of numpy value.item() or torch.from_numpy(value)"
            ) from error
        os.fsync(file.fileno())


def load_checkpoint(path: Union[str, Path], settings: Mapping[str, Any], parts: Sequence[str] = ()) -> Dict[str, Any]:
    """The parts that :func:`save_checkpoint` wrote, on the CPU; the settings are not among them.

    ``parts`` are the names that the caller goes on to read.

    Raises FileNotFoundError where there is no file, and ValueError for a file that is no checkpoint, for one that was
    written with other ``settings``, naming them, and for one that lacks some of ``parts``, naming these: another
    version of the program wrote it.
    """
    settings = _checked(settings)
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
            content: Dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        written = _checked(content.pop(_SETTINGS))
    except PermissionError:
        raise
    except Exception as error:  # what torch raises for a file of something else depends on its bytes
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        way_out = "torch.load reads what torch.save wrote"
        raise ValueError(f"{path} is no checkpoint of sc.save_checkpoint ({line}); {way_out}") from error
    differing = [
        f"{name}={written.get(name, 'nothing')!r} (now {settings.get(name, 'nothing')!r})"
        for name in {**written, **settings}
        if name not in written or name not in settings or written[name] != settings[name]
    ]
    if differing:
        raise ValueError(
            f"{path} was written with {', '.join(differing)}; give the same, or begin without this checkpoint"
        )
    missing = [name for name in parts if name not in content]
    if missing:
        raise ValueError(
            f"{path} has no {' and no '.join(map(repr, missing))}, but {', '.join(map(repr, content)) or 'nothing'}: "
            "another version of the program wrote it; go on with that version, or begin without this checkpoint"
        )
    return content


def _checked(settings: Any) -> Dict[str, Any]:
    """The settings. Raises TypeError unless they are named values that can be compared."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings={shown(settings)} is {a_kind(settings)}; give a dict of name: value")
    for name, value in settings.items():
        if flattened(value):
            raise TypeError(
                f"settings[{name!r}]={shown(value)} has a tensor, which equals no one value; give .tolist()"
            )
    return dict(settings)


# -- the state of a step


def check_parts(state: Any, parts: Sequence[str]) -> None:
    """Raise unless ``state`` has these parts and no others."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state={shown(state)} is {a_kind(state)}; give what state_dict() of a step returned")
    unknown = [str(name) for name in state if name not in parts]
    faults = [f"has no {name!r}" for name in parts if name not in state]
    faults += [f"has {name!r}, which this step has not" for name in unknown]
    hint = "; give it TrainingOptions(scaler=...), or leave that out" if unknown == ["scaler"] else ""
    if faults:
        raise ValueError(
            f"state {' and '.join(faults)}: a step's state_dict() has {', '.join(parts)}{hint}. Nothing was loaded"
        )
    for name in parts:
        if not isinstance(state[name], Mapping):
            raise ValueError(f"state[{name!r}] is {a_kind(state[name])}, and no dict. Nothing was loaded")


@contextmanager
def all_or_nothing(net: nn.Module, others: Sequence[Any]) -> Iterator[None]:
    """Whatever is raised within, ``net`` and ``others`` (optimisers and what holds their settings) are then as they
    were. Weights are copied meanwhile.
    """
    modules = list(net.modules())
    put_back = snapshot_of_tables(modules, others)
    tensors = [t for m in modules for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    except BaseException:
        put_back()
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        raise


def snapshot_of_tables(modules: Sequence[nn.Module], others: Sequence[Any]) -> Callable[[], None]:
    """A function that puts back which tensors, numbers and settings these hold; values of tensors are not touched."""
    tables: List[Any] = [table for m in modules for table in (vars(m), m._parameters, m._buffers)]
    for other in others:
        tables.append(vars(other))
        if isinstance(other, torch.optim.Optimizer):
            tables += [other.state, *other.state.values(), *other.param_groups]
    before = [(table, dict(table)) for table in tables]

    def put_back() -> None:
        # in place, since modules and optimisers hold these dicts themselves
        for table, content in before:
            table.clear()
            table.update(content)

    return put_back


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a copy of ``state``, which training on would change. Raises ValueError for one of another optimiser."""
    foreign = sorted(map(repr, set(state) - {"state", "param_groups", *optimizer.state_dict()}))
    if foreign:
        raise ValueError(
            f"state['optimizer'] does not fit: it has {', '.join(foreign)}, which this optimiser has not; for an "
            "optimiser that a backend ran in a form of its own, net.load_state_dict(state['net']) goes on from the "
            "weights, with a fresh optimiser"
        )
    options = optimizer.defaults.keys() & optimizer.param_groups[0].keys()
    try:
        optimizer.load_state_dict(copy.deepcopy(dict(state)))
        # torch gives options that an older version did not write a value
        missing = {name for group in optimizer.param_groups for name in options if name not in group}
        if missing:
            raise ValueError(f"its groups have no {' and no '.join(sorted(map(repr, missing)))}")
    except (KeyError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"state['optimizer'] does not fit this {type(optimizer).__name__}: {reason}. Make network and optimiser as "
            "they were when it was saved, schedulers after it is loaded. Nothing was loaded"
        ) from error
