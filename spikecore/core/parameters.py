"""Neuron parameters: what a value may be, how it is set, and how it lies over the neurons of one time step.

A parameter is a Python number, or a tensor, learnable or not: one value (0-d or ``[1]``), one value per channel
(``[C]``), or of a shape that broadcasts to one time step. Numbers stay Python floats (a run-time constant of a kernel);
tensors become buffers; learnable ones ``nn.Parameter``.
"""

from __future__ import annotations

import math
from numbers import Real
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore._base.misnamed import hint_of_value
from spikecore.core import modules, ranges, vectors
from spikecore.core.checks import is_a
from spikecore.lang.transform import Transform

Value = Union[float, Tensor]

#: The way out for a parameter with a value for each step.
_AS_INPUT = "make it an input of the neuron, inputs = (..., {!r})"


def declare(module: Any, name: str, value: Any, learn: bool, shape: Tuple[int, ...] = ()) -> None:
    """Store a parameter's value, which was checked, on its neuron under its name; ``shape``: of a number to learn."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    elif learn:
        tensor = value.detach().clone() if isinstance(value, Tensor) else torch.full(shape, value)
        module.register_parameter(name, nn.Parameter(tensor))
    elif isinstance(value, Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def current(neuron: Any) -> Dict[str, Any]:
    """The parameters of a neuron, without those that were deleted: torch.nn.utils takes one away and sets another."""
    return {name: getattr(neuron, name) for name in neuron.params if hasattr(neuron, name)}


def ranges_with(neuron: Any, values: Mapping[str, Any]) -> Dict[str, ranges.Interval]:
    """The ranges with these values of the parameters; without some of them, the ranges that follow no values."""
    cls = type(neuron)
    bounds = neuron._declared_bounds(values) if len(values) == len(neuron.params) else ranges.declared(cls)
    return ranges.overridden(cls.__name__, neuron.params, bounds, neuron._given_bounds)


def adopt(neuron: Any, intervals: Dict[str, ranges.Interval]) -> None:
    """Have a neuron hold these ranges, which its values are inside. ``bounds`` is to be read: it changes as a whole."""
    neuron.__dict__.update(_ranges=intervals, bounds=MappingProxyType(intervals))


def settle(neuron: Any, values: Mapping[str, Any], intervals: Dict[str, ranges.Interval]) -> None:
    """Have a neuron hold these ranges, and the transforms that follow these values of its parameters."""
    if neuron.transforms:
        project(neuron)  # ranges of what is learnt follow the values that calls compute with
        neuron.__dict__["transforms"], intervals = following(neuron, values, intervals)
    adopt(neuron, intervals)


def following(
    neuron: Any, values: Mapping[str, Any], intervals: Dict[str, ranges.Interval], stored: Any = None
) -> Tuple[Tuple[Transform, ...], Dict[str, ranges.Interval]]:
    """The transforms of a neuron for these values of its parameters, and the ranges; ``stored``: of a checkpoint."""
    transforms: List[Transform] = []
    for transform in neuron.transforms:
        transform, intervals = transform.following(neuron, values, intervals, stored)
        transforms.append(transform)
    return tuple(transforms), intervals


def set_bounds(neuron: Any, bounds: Any) -> None:
    """Change the ranges of a neuron as a whole; its values must be inside, learnt ones are put there."""
    project(neuron)
    before = neuron._given_bounds
    neuron.__dict__["_given_bounds"] = dict(bounds) if isinstance(bounds, Mapping) else bounds
    try:
        values = current(neuron)
        intervals = ranges_with(neuron, values)
        for name, value in values.items():
            require_inside(neuron, name, value, intervals)
        settle(neuron, values, intervals)
    except BaseException:
        neuron.__dict__["_given_bounds"] = before
        raise
    neuron._redefine()


def checked_value(neuron: Any, name: str, value: Any) -> Any:
    """A parameter's new value, which is inside its range and leaves the other parameters inside theirs."""
    owner = type(neuron).__name__
    value = checked(owner, name, vectors.checked(neuron, name, value))
    # a neuron that is being made or loaded gets several values, which only together need to be inside
    if neuron._loading or "_dispatch" not in neuron.__dict__:
        require_inside(neuron, name, value, neuron._ranges)
        return value
    values = {**current(neuron), name: value}
    intervals = ranges_with(neuron, values)
    require_inside(neuron, name, value, intervals)
    if intervals != neuron._ranges or neuron.transforms:
        for other in neuron.params:
            if other != name and intervals.get(other) != neuron._ranges.get(other):
                try:
                    require_inside(neuron, other, getattr(neuron, other), intervals)
                except ValueError as error:
                    raise ValueError(f"{owner}: {name} cannot be set to this value first; {error}") from None
        settle(neuron, values, intervals)
    return value


def require_inside(neuron: Any, name: str, value: Any, intervals: Mapping[str, ranges.Interval]) -> None:
    """Raise ValueError for a value outside its range of these."""
    ranges.require(type(neuron).__name__, name, value, intervals.get(name), neuron.follows.get(name, ""))


def set_parameter(neuron: Any, name: str, value: Any) -> None:
    """Set a parameter of a neuron. One that is learnt or a tensor takes the value in its own memory."""
    owner, before = type(neuron).__name__, neuron._parameters.get(name, neuron._buffers.get(name))
    is_parameter = isinstance(value, nn.Parameter)
    if is_parameter and (modules.is_shard(value) or modules.is_shard(before)):
        # FSDP puts its gathered copy in the place of a shard before a call, and the shard back: nobody's new value
        value = checked(owner, name, value)
        nn.Module.__setattr__(neuron, name, value)
        return
    is_buffer = isinstance(value, Tensor) and not is_parameter
    if is_buffer and isinstance(before, nn.Parameter):
        require_inside(neuron, name, checked(owner, name, value), neuron._ranges)
        raise TypeError(
            f"{owner}: {name} is learnt, and a tensor cannot take its place; give a number, which fills it, "
            f"nn.Parameter(value), or neuron.{name}.data.copy_(value)"
        )
    value = checked_value(neuron, name, value)
    if isinstance(value, float) and parametrize.is_parametrized(neuron, name):
        value = torch.full_like(getattr(neuron, name).detach(), value)  # a parametrization takes tensors
    if isinstance(value, float) and before is not None:
        with torch.no_grad():
            before.fill_(value)
    elif is_buffer and isinstance(neuron.__dict__.get(name), float):
        del neuron.__dict__[name]  # a number before; as a buffer it moves with the neuron
        neuron.register_buffer(name, value)
    else:
        # a program takes its parameters as arguments, so nothing is traced again
        nn.Module.__setattr__(neuron, name, value)
    neuron._redefine()


def project(neuron: Any) -> None:
    """Put every learnt parameter of a neuron that left its range back to the nearest value inside, in place."""
    ranges.project(neuron._parameters, neuron._ranges)


def checked(owner: str, name: str, value: Any) -> Value:
    """The value as a float or a floating-point tensor; anything else raises, naming it."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(
                f"{owner}: {name} has dtype {value.dtype}; give a floating-point tensor, e.g. {name}.float()"
            )
        return value
    if not is_a(value, Real):
        meant = hint_of_value(name, value) or ("; give torch.tensor(values)" if hasattr(value, "__len__") else "")
        raise TypeError(f"{owner}: {name}={value!r} must be a number or a floating-point tensor{meant}")
    if math.isnan(float(value)):
        raise ValueError(f"{owner}: {name} is NaN")
    return float(value)


def shown(value: Value) -> str:
    """The value in a few characters: a number, or the shape of a tensor."""
    if isinstance(value, Tensor) and (value.ndim or value.device.type != "cpu"):
        return f"tensor{list(value.shape)}"
    return f"{value.item() if isinstance(value, Tensor) else value:g}"


def require(owner: str, name: str, value: Any, condition: str, holds: Callable[[Any], Any]) -> None:
    """Raise ``ValueError`` unless ``holds(value)``, where that can be known without waiting for a device."""
    if not ranges.fits(checked(owner, name, value), holds):
        raise ValueError(f"{owner}: {name}={value!r} must be {condition}")


def names_to_learn(owner: str, learn: Any, params: Sequence[str]) -> Tuple[str, ...]:
    """The ``learn`` argument as a tuple of parameter names."""
    if isinstance(learn, str) or not isinstance(learn, Iterable):
        example = f"learn=({learn if isinstance(learn, str) else params[0] if params else 'tau'!r},)"
        raise TypeError(f"{owner}: learn={learn!r} must be a tuple of parameter names, such as {example}")
    names = tuple(learn)
    ranges.require_parameters(owner, "learn", names, params)
    return names


def place(
    owner: str, named: Sequence[Tuple[str, Value]], step_shape: Sequence[int], channel_dim: int
) -> Tuple[Tuple[Value, ...], Tuple[str, ...]]:
    """Values viewed so that they broadcast against one time step, and the kind of each (see ``Spec.params``)."""
    placed = [_spread(owner, name, value, tuple(step_shape), channel_dim) for name, value in named]
    return tuple([value for value, _ in placed]), tuple([kind for _, kind in placed])


def _spread(owner: str, name: str, value: Value, shape: Tuple[int, ...], channel_dim: int) -> Tuple[Value, str]:
    if not isinstance(value, Tensor):
        return value, "number"
    if not value.ndim:
        return value, "scalar"
    dims = len(shape)
    if value.ndim == 1 and -dims <= channel_dim < dims and value.shape[0] == shape[channel_dim]:
        view = [1] * dims
        view[channel_dim] = value.shape[0]
        return value.view(view), "channel"
    fits = value.ndim <= dims and all(have in (1, want) for have, want in zip(value.shape[::-1], shape[::-1]))
    if fits and (value.ndim > 1 or dims == 1):
        return value, "full"
    if value.shape == (1,):  # fully_shard takes no 0-d parameters
        return value.view(()), "scalar"
    if value.ndim == 1:
        where = f"dimension channel_dim={channel_dim} of one time step, shape {list(shape)}"
        fitting = [at for at, size in enumerate(shape) if size == value.shape[0]]
        way = f"for one value a step, [T], {_AS_INPUT.format(name)}"
        if fitting:
            at = -1 if fitting[-1] == dims - 1 else fitting[-1]
            way = f"for values along that of this size, give the neuron channel_dim={at}"
        raise ValueError(f"{owner}: {name} has {value.shape[0]} values, which does not fit {where}; {way}")
    hint = f"; a parameter has no dimension of time: {_AS_INPUT.format(name)}" if value.ndim == dims + 1 else ""
    raise ValueError(
        f"{owner}: {name} of shape {list(value.shape)} does not broadcast to one time step, shape {list(shape)}{hint}"
    )
