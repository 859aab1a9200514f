"""Neuron parameters: what a value may be, and how it lies over the neurons of one time step.

A parameter is a Python number, or a tensor, learnable or not: one value (0-d or ``[1]``), one value per channel
(``[C]``), or of a shape that broadcasts to one time step. Numbers stay Python floats (a run-time constant of a kernel);
tensors become buffers; learnable ones ``nn.Parameter``.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Iterable, List, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore._shell.misnamed import hint_of_value

Value = Union[float, Tensor]


def declare(module: Any, name: str, value: Any, learn: bool) -> None:
    """Store a parameter's value, which was checked, on its neuron under its name."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    elif learn:
        tensor = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)
        module.register_parameter(name, nn.Parameter(tensor))
    elif isinstance(value, Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def checked(owner: str, name: str, value: Any) -> Value:
    """The value as a float or a floating-point tensor; anything else raises, naming it."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(
                f"{owner}: {name} has dtype {value.dtype}; give a floating-point tensor, e.g. {name}.float()"
            )
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        meant = hint_of_value(name, value)
        raise TypeError(f"{owner}: {name}={value!r} must be a number or a floating-point tensor{meant}")
    if math.isnan(float(value)):
        raise ValueError(f"{owner}: {name} is NaN")
    return float(value)


def shown(value: Value) -> str:
    """The value in a few characters: a number, or the shape of a tensor."""
    if isinstance(value, Tensor) and (value.ndim or value.device.type != "cpu"):
        return f"tensor{list(value.shape)}"
    return f"{value.item() if isinstance(value, Tensor) else value:g}"


def for_parametrization(module: nn.Module, name: str, value: Value) -> Value:
    """A new value of a parameter, as ``torch.nn.utils.parametrize`` takes it if it computes this one."""
    if not parametrize.is_parametrized(module, name):
        return value
    chain: Any = module.get_submodule(f"parametrizations.{name}")
    for step in chain:
        if not hasattr(step, "right_inverse"):
            raise RuntimeError(
                f"{type(module).__name__}: {name} is computed by the parametrization {type(step).__name__}, which has "
                f"no right_inverse to compute its original from a value; give it one, or set "
                f"neuron.parametrizations.{name}.original"
            )
    return value if isinstance(value, Tensor) else torch.full_like(getattr(module, name).detach(), value)


def require(owner: str, condition: str, holds: Any, **values: Any) -> None:
    """Raise ``ValueError`` unless ``holds(value)`` for each, where that can be known without waiting for a device."""
    for name, value in values.items():
        if isinstance(value, Tensor):
            fine = value.device.type != "cpu" or bool(holds(value.detach()).all())
        else:
            fine = bool(holds(checked(owner, name, value)))
        if not fine:
            raise ValueError(f"{owner}: {name}={value!r} must be {condition}")


def names_to_learn(owner: str, learn: Any, params: Sequence[str]) -> Tuple[str, ...]:
    """The ``learn`` argument as a tuple of parameter names."""
    if isinstance(learn, str) or not isinstance(learn, Iterable):
        example = f"learn=({learn if isinstance(learn, str) else params[0] if params else 'tau'!r},)"
        raise TypeError(f"{owner}: learn={learn!r} must be a tuple of parameter names, such as {example}")
    names = tuple(learn)
    for name in names:
        if name not in params:
            raise ValueError(f"{owner}: learn names {name!r}, which is no parameter; parameters: {', '.join(params)}")
    return names


def place(
    owner: str, named: Sequence[Tuple[str, Value]], step_shape: Sequence[int], channel_dim: int
) -> Tuple[Tuple[Value, ...], Tuple[str, ...]]:
    """Values viewed so that they broadcast against one time step, and the kind of each (see ``Spec.params``)."""
    values: List[Value] = []
    kinds: List[str] = []
    for name, value in named:
        if not isinstance(value, Tensor):
            values.append(value)
            kinds.append("number")
        elif value.ndim == 0:
            values.append(value)
            kinds.append("scalar")
        else:
            value, kind = _spread(owner, name, value, tuple(step_shape), channel_dim)
            values.append(value)
            kinds.append(kind)
    return tuple(values), tuple(kinds)


def _spread(owner: str, name: str, value: Tensor, shape: Tuple[int, ...], channel_dim: int) -> Tuple[Tensor, str]:
    dims = len(shape)
    if value.ndim == 1 and -dims <= channel_dim < dims and value.shape[0] == shape[channel_dim]:
        view = [1] * dims
        view[channel_dim] = value.shape[0]
        return value.view(view), "channel"
    lead = dims - value.ndim
    fits = lead >= 0 and all(have in (1, want) for have, want in zip(value.shape, shape[lead:]))
    if fits and (value.ndim > 1 or dims == 1):
        return value, "full"
    if value.ndim == 1 and value.shape[0] == 1:  # fully_shard takes no 0-d parameters
        return value.view(()), "scalar"
    if value.ndim == 1:
        where = f"dimension channel_dim={channel_dim} of one time step, shape {list(shape)}"
        raise ValueError(f"{owner}: {name} has {value.shape[0]} values, which does not fit {where}")
    raise ValueError(
        f"{owner}: {name} of shape {list(value.shape)} does not broadcast to one time step, shape {list(shape)}"
    )
