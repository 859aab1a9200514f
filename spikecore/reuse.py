"""One neuron at two places of a network, or copied to several devices: its state would be that of both, or lost.

At rest a neuron may be used anywhere, since every call begins anew. A neuron that carries its state belongs to one
place. Two are seen in two ways:

- It is registered twice in one ``nn.Sequential`` or ``nn.ModuleList``, which run what they hold one after the other.
- ``forward`` of a module that contains it calls it from two places of its source. Scripts and other functions may call
  a neuron from wherever they like.

``nn.DataParallel`` runs copies of a network and forgets them: they carry nothing. Unless told otherwise it splits the
first dimension, which is time.
"""

from __future__ import annotations

import itertools
import sys
from types import CodeType, FrameType
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from torch import nn

#: So many frames of the stack are searched for ``forward``.
_DEEPEST = 40
_LIBRARIES = ("torch", "spikecore")


class Calls(NamedTuple):
    """Where a neuron was called since it last began at rest."""

    #: The last call: how far up the stack its code is, and the place in it.
    last: List[Tuple[int, CodeType, int]]
    #: ``forward`` methods that called it, by the id of their code: the place, and ``file:line``.
    forwards: Dict[int, Tuple[CodeType, int, str]]


def check_call(module: nn.Module, calls: Optional[Calls]) -> Calls:
    """Note from where ``module.forward`` is called. Raises RuntimeError for a second place of one ``forward``."""
    if calls is None:
        calls = Calls([], {})
    elif calls.last:
        depth, code, place = calls.last[0]
        try:
            frame = sys._getframe(depth)
        except ValueError:
            pass
        else:
            if frame.f_code is code and frame.f_lasti == place:
                return calls
    depth, found = _forward_of(module)
    code, place = found.f_code, found.f_lasti
    if code.co_name == "forward":
        where = f"{code.co_filename}:{found.f_lineno}"
        _, before, there = calls.forwards.setdefault(id(code), (code, place, where))
        if before != place:
            raise RuntimeError(
                f"{type(module).__name__} carries its state and is called at two places, {there} and {where}: each "
                "would go on from the other's state. Make a neuron for each, call this one at one place with the "
                "input chosen before, or give each its own state: out, state = neuron.run(x, state=state)"
            )
    calls.last[:] = [(depth, code, place)]
    return calls


def _forward_of(module: nn.Module) -> Tuple[int, FrameType]:
    """The nearest ``forward`` of a user's module that contains this one, else the caller; and how far up it is."""
    depth = 1
    frame: Optional[FrameType] = sys._getframe(1)
    caller: Optional[Tuple[int, FrameType]] = None
    while frame is not None and depth < _DEEPEST:
        is_forward = frame.f_code.co_name == "forward"
        if (caller is None or is_forward) and not _is_library(frame):
            if is_forward and _contains(frame, module):
                return depth - 1, frame
            caller = caller or (depth - 1, frame)
        frame, depth = frame.f_back, depth + 1
    return caller or (1, sys._getframe(1))


def _is_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES


def _contains(frame: FrameType, module: nn.Module) -> bool:
    names = frame.f_code.co_varnames
    owner: Any = frame.f_locals.get(names[0]) if names else None
    return isinstance(owner, nn.Module) and any(one is module for one in owner.modules())


def check_replica(module: nn.Module, carries: bool) -> None:
    """Raise RuntimeError if ``nn.DataParallel`` would split time, or lose the state of a replica that carries it."""
    frame: Optional[FrameType] = sys._getframe(1)
    dim: Any = None
    while frame is not None and dim is None:
        if frame.f_globals.get("__name__") == "torch.nn.parallel.data_parallel":
            dim = frame.f_locals.get("dim", getattr(frame.f_locals.get("self"), "dim", None))
        frame = frame.f_back
    if carries:
        raise RuntimeError(
            f"{type(module).__name__} carries its state, and nn.DataParallel forgets that of its replicas after each "
            "call; use nn.parallel.DistributedDataParallel, or step='multi' outside sc.carry_state with dim=1"
        )
    if dim == 0:
        raise RuntimeError(f"{type(module).__name__} is in an {SPLITS_TIME}")


#: What is wrong with the default of ``nn.DataParallel``.
SPLITS_TIME = (
    "nn.DataParallel that splits dimension 0 of its input, which is time; write nn.DataParallel(net, dim=1), which "
    "splits the batch, or use nn.parallel.DistributedDataParallel"
)


def registered_twice(net: nn.Module) -> Dict[nn.Module, Tuple[str, str]]:
    """The modules that one container of ``net`` runs twice, each with two of its names."""
    names: Dict[nn.Module, List[str]] = {}
    for name, module in net.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    found: Dict[nn.Module, Tuple[str, str]] = {}
    for module, places in names.items():
        for first, second in itertools.combinations(places, 2):
            if isinstance(net.get_submodule(_shared(first, second)), (nn.Sequential, nn.ModuleList)):
                found.setdefault(module, (first, second))
    return found


def _shared(first: str, second: str) -> str:
    """The path of the innermost module that contains both."""
    a, b = first.split("."), second.split(".")
    same = 0
    while same < min(len(a), len(b)) - 1 and a[same] == b[same]:
        same += 1
    return ".".join(a[:same])
