"""Stages and their devices, as a user gives them: checked before any of them is moved."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.errors import a_kind
from spikecore._shell.checks import shown

Stages = List[Tuple[nn.Module, torch.device]]


def checked_stages(stages: Any) -> Stages:
    """The stages with their devices. Raises TypeError or ValueError that names the stage and what is wrong with it."""
    if isinstance(stages, (str, nn.Module)) or not isinstance(stages, Iterable):
        raise TypeError(f"Pipeline: stages={shown(stages)} must be a list of pairs, [(stage, device), ...]")
    pairs = list(stages)
    if not pairs:
        raise ValueError("Pipeline: stages=[] has no stage; give a list of pairs, [(stage, device), ...]")
    found: Stages = []
    for position, pair in enumerate(pairs):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise TypeError(
                f"Pipeline: stages[{position}]={shown(pair)} must be a pair (stage, device), as in (net, 'cuda:0')"
            )
        stage, device = pair
        if not isinstance(stage, nn.Module):
            given = f"the class {stage.__name__}" if isinstance(stage, type) else a_kind(stage)
            raise TypeError(f"Pipeline: stage {position} is {given}; give a module (an nn.Module)")
        found.append((stage, _device(position, device)))
    _check_shared(found)
    return found


def _device(position: int, device: Any) -> torch.device:
    """A device that is here. ``"cuda"`` is the current one, whose number is kept."""
    if not isinstance(device, (str, torch.device)):
        raise TypeError(
            f"Pipeline: the device of stage {position}, {device!r}, must be a torch.device or its name, such as "
            f"'cuda:0' or 'cpu'; {_here()}"
        )
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"Pipeline: the device of stage {position}, {device!r}, is none that torch knows; {_here()}"
        ) from error
    if wanted.type == "ipu":
        raise ValueError(
            f"Pipeline: stage {position} asks for {str(wanted)!r}; PopTorch places the layers of a network on IPUs "
            "itself: spikecore_ipu.pipeline(net, {name: ipu})"
        )
    if wanted.type == "cuda":
        # not by trying: a wrong number is an error of the driver
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = wanted.index if wanted.index is not None else (torch.cuda.current_device() if count else 0)
        if index >= count:
            raise ValueError(f"Pipeline: stage {position} asks for {str(wanted)!r}, which is not there; {_here()}")
        return torch.device("cuda", index)
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError, ImportError) as error:  # torch raises any of these for what is not there
        raise ValueError(
            f"Pipeline: stage {position} asks for {str(wanted)!r}, which is not there; {_here()}"
        ) from error


def _here() -> str:
    """The devices of this machine, in words."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ["cpu", *(f"cuda:{index}" for index in range(count))]
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)} here"


def _check_shared(stages: Stages) -> None:
    """Raise if two stages have a module in common, or a tensor while they are on two devices."""
    owners: Dict[int, int] = {}
    tensors: Dict[int, Tuple[int, str]] = {}
    for position, (stage, device) in enumerate(stages):
        for name, module in stage.named_modules():
            first = owners.setdefault(id(module), position)
            if first != position:
                where = "" if not name else f", {name!r} in stage {position},"
                raise ValueError(
                    f"Pipeline: stages {first} and {position} share {a_kind(module)}{where} which can be on "
                    "one device and have one state only; make one for each stage, or put both places in one stage"
                )
        for name, tensor in _tensors(stage):
            first, other = tensors.setdefault(id(tensor), (position, name))
            if stages[first][1] != device:
                raise ValueError(
                    f"Pipeline: {other!r} of stage {first} and {name!r} of stage {position} are one tensor, which "
                    f"cannot be on {stages[first][1]} and {device}; give both stages one device, or each its own"
                )


def _tensors(stage: nn.Module) -> Sequence[Tuple[str, Tensor]]:
    return [*stage.named_parameters(), *stage.named_buffers()]
