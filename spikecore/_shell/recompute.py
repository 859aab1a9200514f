"""Activation checkpointing with state: what a checkpointed region began with, and where it runs again from that.

``torch.utils.checkpoint`` runs a function once more during backward. A neuron that carries its state would go on from
the state of now, and advance it. Rules of this module:

- When a region first runs, it records the state that each neuron has when it is first used there.
- When a region runs again, each neuron begins from that record. The state of this run is local to it: it is kept on the
  stack frame of torch that runs the region again, so that it ends with that frame, and the neuron's own is not touched.
- What cannot be identified is refused.

A call at rest needs none of this. The regions around a call are read from the stack: torch has no public way to ask.
With ``use_reentrant=True`` a region is the ``ctx`` of ``CheckpointFunction``; with ``use_reentrant=False`` it is the
``_CheckpointFrame`` that knows what its saved tensors become, or, before torch 2.1, the dictionary of these tensors.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from types import FrameType, GeneratorType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

#: The state of a neuron and what is known about it, by attribute: those of the module, or those of a recomputation.
Slot = Dict[str, Any]

_CHECKPOINT = vars(torch.utils.checkpoint)
#: The number of the backward pass that this thread is in, -1 outside.
_task: Callable[[], int] = torch._C._current_graph_task_id
#: The innermost hooks of tensors saved for backward; None if there are none. Before torch 2.2 one cannot ask.
_hooks: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True)
#: Whether gradients in forward mode are on.
_forward_mode: Callable[[], bool] = getattr(torch._C, "_is_fwd_grad_enabled", bool)
#: Attribute of a region, name on the stack frame of a recomputation.
_RECORD, _RUNS = "_spikecore_record", "_spikecore_runs"
_numbers = itertools.count(1)


class _Began(NamedTuple):
    """One neuron when a region first used it."""

    owner: Callable[[], Optional[nn.Module]]
    carrying: int
    state: Optional[Dict[str, Tuple[Tensor, bool, int]]]


class _Record:
    """What a region began with, by the id of the neuron."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.began: Dict[int, _Began] = {}


class _Around(NamedTuple):
    """Checkpointed regions around a call, from the inside out, up to the first one that runs again."""

    #: Those that run for the first time, each with whether gradients pass its arguments and parameters only.
    first: List[Tuple[_Record, bool]]
    #: The record of the one that runs again, if it has one; and the stack frame of torch that runs it.
    again: Optional[_Record]
    frame: Optional[FrameType]


def possible() -> bool:
    """Whether a call can lie in a checkpointed region, or run one again. Asked at every call, so it is quick."""
    # a region saves its tensors with hooks (use_reentrant=False), or is the forward of an autograd.Function
    # (use_reentrant=True), where torch turns off gradients of both modes; torch.no_grad() turns off one
    return (
        _task() != -1
        or _hooks(True) is not None
        or not (torch.is_grad_enabled() or _forward_mode() or torch.is_inference_mode_enabled())
    )


def near() -> bool:
    """Whether this is in a checkpointed region, or may run one again. For torch.compile."""
    around = _around()
    return bool(around.first) or around.frame is not None or _task() != -1


def again() -> bool:
    """Whether this is in a checkpointed region that runs again."""
    return _around().frame is not None


def slot(module: nn.Module, calls: bool) -> Slot:
    """Where the state of ``module`` is for what runs now: in the module, or in the recomputation around it.

    ``calls``: whether the module is called, rather than looked at or reset. Raises RuntimeError where a recomputation
    cannot be right.
    """
    around = _around()
    if around.frame is not None:
        own = _own(module, around.again, around.frame)
    else:
        if calls and _task() != -1:
            raise RuntimeError(_unknown(module))
        own = module.__dict__
    if calls:
        _check_gradient(module, own, around)
    for record, _ in around.first:
        if id(module) not in record.began:
            record.began[id(module)] = _Began(weakref.ref(module), own["_carrying"], _remembered(own["_state"]))
    ends = [record.number for record, ending in around.first if ending]
    if calls and ends:
        own["_cut"] = ends[-1]
    return own


def _around() -> _Around:
    first: List[Tuple[_Record, bool]] = []
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is _CHECKPOINT:
            name, held = frame.f_code.co_name, frame.f_locals
            if name == "backward" and "ctx" in held:
                return _Around(first, getattr(held["ctx"], _RECORD, None), frame)
            if name in ("unpack_hook", "unpack") and ("frame" in held or "storage" in held):
                region = held["frame"] if "frame" in held else held["storage"]
                return _Around(first, getattr(region, _RECORD, None), frame)
            if name == "forward" and "ctx" in held:
                if held["ctx"].next_functions:  # else there is no backward pass that would run it again
                    first.append((_record(held["ctx"]), True))
            else:
                region = _started(name, held)
                if region is not None:
                    first.append((_record(region), False))
        frame = frame.f_back
    return _Around(first, None, None)


def _started(name: str, held: Dict[str, Any]) -> Any:
    """The region that a frame of torch runs for the first time with use_reentrant=False, or None."""
    if name == "_checkpoint_without_reentrant":
        return held.get("storage")
    generator = held.get("gen")
    if isinstance(generator, GeneratorType) and generator.gi_frame is not None:
        return generator.gi_frame.f_locals.get("new_frame")
    return None


def _record(region: Any) -> _Record:
    found: Optional[_Record] = getattr(region, _RECORD, None)
    if found is None:
        found = _Record()
        setattr(region, _RECORD, found)
    return found


def _own(module: nn.Module, again: Optional[_Record], frame: FrameType) -> Slot:
    """The state of ``module`` within the recomputation around it."""
    # kept by the frame beside its own variables: it ends with the frame, and the graph of the recomputation with it
    runs: Dict[int, Tuple[nn.Module, Slot]] = frame.f_locals.setdefault(_RUNS, {})
    if id(module) not in runs:
        fresh: Slot = {"_cut": 0, "_passed": None}
        began = None if again is None else again.began.get(id(module))
        if began is not None and began.owner() is module:
            own: Slot = {"_carrying": began.carrying, "_state": _restored(module, began), **fresh}
        elif getattr(module, "step", "") == "single" or module.__dict__["_carrying"]:
            raise RuntimeError(_unknown(module))
        else:
            own = {"_carrying": 0, "_state": None, **fresh}
        runs[id(module)] = module, own
    return runs[id(module)][1]


def _check_gradient(module: nn.Module, own: Slot, around: _Around) -> None:
    """Raise if this call goes on from a state whose gradient a region with use_reentrant=True would lose."""
    state = own["_state"]
    if state is None:
        return
    inside = [record.number for record, _ in around.first]
    ends = any(ending for _, ending in around.first)
    wanted = ends or torch.is_grad_enabled()
    lost = own["_cut"] and own["_cut"] not in inside
    if (lost and wanted) or (ends and any(value.requires_grad for value in state.values())):
        raise RuntimeError(
            f"{type(module).__name__} goes on from a state whose gradient cannot pass torch.utils.checkpoint with "
            "use_reentrant=True, which passes those of the function's arguments and of parameters only: it would be "
            "lost. Use use_reentrant=False, or call sc.detach(net) between checkpointed calls to end the gradient there"
        )


def _remembered(state: Any) -> Any:
    """Values of a state without their graph, and what tells whether they are still the same."""
    if not isinstance(state, dict):
        return None
    return {name: (value.detach(), value.requires_grad, _version(value)) for name, value in state.items()}


def _restored(module: nn.Module, began: _Began) -> Optional[Dict[str, Tensor]]:
    if began.state is None:
        return None
    for name, (value, _, version) in began.state.items():
        if _version(value) != version:
            raise RuntimeError(
                f"{type(module).__name__}: the carried state {name!r} was changed in place after a checkpointed call "
                "began with it, which can therefore not be computed again; change a copy of it instead"
            )
    return {name: value.detach().requires_grad_(wanted) for name, (value, wanted, _) in began.state.items()}


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def _unknown(module: nn.Module) -> str:
    return (
        f"{type(module).__name__} carries its state and is called during a backward pass, as activation checkpointing "
        "does to compute a part of the network again, and the state that this part began with is not known. Use "
        "torch.utils.checkpoint.checkpoint, and enter sc.carry_state around forward and backward alike; or make the "
        "state an argument of the checkpointed function: out, state = neuron.run(x, state=state)"
    )
