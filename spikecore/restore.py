"""The state of a training step is loaded as a whole or not at all, on every backend.

What can be known before anything changes is checked first. What fails later, in a module's own hook or by Ctrl-C, is
undone: network, optimiser and scaler are then as they were.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore.checks import shown

#: Optimisers of torch that keep other shapes than those of their parameters.
_OTHER_SHAPES = ("Adafactor", "LBFGS")


def check_parts(state: Any, parts: Sequence[str]) -> None:
    """Raise unless ``state`` has these parts and no others."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state={shown(state)} is a {type(state).__name__}; give what state_dict() of a step returned")
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


def check_optimizer_state(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Raise ValueError unless ``state`` is of an optimiser with groups, parameters and shapes like this one's."""
    for name in ("state", "param_groups"):
        if not isinstance(state, Mapping) or name not in state:
            raise ValueError(f"state['optimizer'] has no {name!r}; give what state_dict() of an optimiser returned")
    mine = [group["params"] for group in optimizer.param_groups]
    theirs = [group["params"] for group in state["param_groups"]]
    if [len(group) for group in mine] != [len(group) for group in theirs]:
        raise ValueError(
            f"state['optimizer'] is of groups of {[len(group) for group in theirs]} parameters, and this optimiser has "
            f"groups of {[len(group) for group in mine]}; make network and optimiser as they were when it was saved"
        )
    module = type(optimizer).__module__
    if not module.startswith("torch.optim") or type(optimizer).__name__ in _OTHER_SHAPES:
        return
    parameters = {key: p for group, held in zip(theirs, mine) for key, p in zip(group, held)}
    for key, values in state["state"].items():
        for name, value in values.items() if key in parameters else ():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameters[key].shape:
                raise ValueError(
                    f"state['optimizer'] has {name} of shape {list(value.shape)} for parameter {key} of shape "
                    f"{list(parameters[key].shape)}; make network and optimiser as they were when it was saved"
                )


@contextmanager
def all_or_nothing(net: nn.Module, others: Sequence[Any], scaler: Any = None) -> Iterator[None]:
    """Whatever is raised within, ``net``, ``others`` (optimisers and what holds their settings) and ``scaler`` are then
    as they were.
    """
    undo = [*_held(net, others), _values(net)]
    if scaler is not None:
        undo.append(_state_of(scaler))
    try:
        yield
    except BaseException:
        for put_back in undo:
            put_back()
        raise


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
        held.clear()
        held.update(kept)

    return put_back


def _values(net: nn.Module) -> Callable[[], None]:
    """What puts back the values of parameters and buffers."""
    kept: List[Tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for module in net.modules():
            tensors = [*module._parameters.values(), *module._buffers.values()]
            kept += [(tensor, tensor.detach().clone()) for tensor in tensors if tensor is not None]
    extra = [
        (module, copy.deepcopy(module.get_extra_state()))
        for module in net.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]

    def put_back() -> None:
        with torch.no_grad():
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
