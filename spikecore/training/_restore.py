"""The state of a training step is loaded as a whole or not at all, on every backend.

What can be known before anything changes is checked first, and needs no copy to be undone. A network with a module that
loads in a way of its own, or has hooks, is put back from a copy.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, List, Mapping, Sequence

import torch
from torch import nn

from spikecore._base.errors import a_kind
from spikecore._shell.checks import shown
from spikecore.training._rehearsal import can_be_rehearsed, rehearse, tensors_of, uninterrupted, versions_kept


def check_parts(state: Any, parts: Sequence[str]) -> None:
    """Raise unless ``state`` has these parts and no others."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state={shown(state)} is {a_kind(state)}; give what state_dict() of a step returned")
    missing = [name for name in parts if name not in state]
    unknown = [str(name) for name in state if name not in parts]
    hint = "; give it TrainingOptions(scaler=...), or leave that out" if unknown == ["scaler"] else ""
    if missing or unknown:
        faults = [f"has no {name!r}" for name in missing] + [
            f"has {name!r}, which this step has not" for name in unknown
        ]
        raise ValueError(
            f"state {' and '.join(faults)}: a step's state_dict() has {', '.join(parts)}{hint}. Nothing was loaded"
        )
    for name in parts:
        if not isinstance(state[name], Mapping):
            raise ValueError(f"state[{name!r}] is {a_kind(state[name])}, and no dict. Nothing was loaded")


def check_scaler_state(scaler: Any, state: Any) -> None:
    """Raise ValueError unless ``state`` has what the state of this gradient scaler has."""
    mine = scaler.state_dict()
    if not mine:  # of a disabled one, which takes anything
        return
    if not isinstance(state, Mapping):
        raise ValueError(f"state['scaler'] is {a_kind(state)}; give what state_dict() of a scaler returned")
    faults = [f"has no {name!r}" for name in mine if name not in state]
    faults += [f"has {name!r}, which this scaler has not" for name in state if name not in mine]
    if faults:
        raise ValueError(f"state['scaler'] {' and '.join(faults)}: it has {', '.join(mine)}. Nothing was loaded")


@contextmanager
def all_or_nothing(net: nn.Module, others: Sequence[Any], scaler: Any = None, state: Any = None) -> Iterator[None]:
    """Whatever is raised within, ``net``, ``others`` (optimisers and what holds their settings) and ``scaler`` are then
    as they were.

    With ``state``, what the network is to load, that is tried first and the network's values are not copied, where this
    is possible (:mod:`spikecore.training._rehearsal`); the network must then be what is loaded last.
    """
    held = _held(net, others)
    rehearsed = can_be_rehearsed(net, state)
    if rehearsed:
        try:
            rehearse(net, state)
        finally:
            _all(held)
    undo = [*held] if rehearsed else [*held, _values(net)]
    if scaler is not None:
        undo.append(_state_of(scaler))
    with uninterrupted() if rehearsed else nullcontext():
        try:
            yield
        except BaseException:
            _all(undo)
            raise


def _all(undo: Sequence[Callable[[], None]]) -> None:
    for put_back in undo:
        put_back()


def _held(net: nn.Module, others: Sequence[Any]) -> List[Callable[[], None]]:
    """What puts back which tensors, numbers and settings are held."""
    live: List[Any] = [held for module in net.modules() for held in (vars(module), module._parameters, module._buffers)]
    for other in others:
        live.append(vars(other))
        if isinstance(other, torch.optim.Optimizer):
            live += [other.state, *other.state.values(), *other.param_groups]
    return [_put_back(held, dict(held)) for held in live]


def _put_back(held: Any, kept: Mapping[Any, Any]) -> Callable[[], None]:
    def put_back() -> None:
        # one by one: another thread may be calling the network, and finds everything at any time
        for name, value in kept.items():
            if name not in held or held[name] is not value:
                held[name] = value
        for name in [name for name in held if name not in kept]:
            del held[name]
        # names that had been deleted are at the end now; `is not`, since names may be tensors, which compare by value
        if any(name is not before for name, before in zip(held, kept)):
            held.clear()
            held.update(kept)

    return put_back


def _values(net: nn.Module) -> Callable[[], None]:
    """What puts back the values of parameters and buffers."""
    tensors = tensors_of(net)
    with torch.no_grad():
        kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    versions = versions_kept(tensors)
    extra = [
        (module, copy.deepcopy(module.get_extra_state()))
        for module in net.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]

    def put_back() -> None:
        with torch.no_grad(), versions:
            for tensor, value in kept:
                tensor.copy_(value)
        for module, state in extra:
            module.set_extra_state(state)

    return put_back


def _state_of(scaler: Any) -> Callable[[], None]:
    kept = copy.deepcopy(scaler.state_dict())

    def put_back() -> None:
        if kept:  # that of a disabled scaler is empty, and loading it raises
            scaler.load_state_dict(kept)

    return put_back
