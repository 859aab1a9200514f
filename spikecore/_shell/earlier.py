"""Calls that passed every check: a later one of the same signature goes straight to its plan.

A call has the signature of one that passed (:func:`signature`) and its parameters are as those were
(:func:`values_as_before`), or it goes through every check again. Nothing here raises.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, Collection, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._base.running import BoundCall, bound
from spikecore.backend import BackendError, ParamValue, Runner, Tensors
from spikecore.dtypes import compute_dtype
from spikecore.lang._plain import is_followed


class PlacedTensor(NamedTuple):
    """A parameter that is a tensor, as it was, and how it was viewed over the neurons of one time step."""

    position: int
    name: str
    #: The table of its neuron that has it.
    table: str
    shape: torch.Size
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    learnt: bool
    view: Tuple[int, ...]


class Earlier(NamedTuple):
    """A call that passed every check."""

    runner: Runner
    #: What reads the settings and the parameters that are numbers from the attributes of a neuron, and what it read.
    read: Callable[[Mapping[str, Any]], Tuple[Any, ...]]
    seen: Tuple[Any, ...]
    #: The parameters: numbers, and None for each of ``tensors``.
    values: Tuple[Any, ...]
    tensors: Tuple[PlacedTensor, ...]
    #: One time step of the input, which tensors were placed on; None if all parameters are numbers.
    shape: Optional[torch.Size]
    #: Whether the input is the first parameter of the program, because it is the same at every step.
    constant: bool
    #: What runs the call; None where that is the runner.
    call: Optional[BoundCall] = None


def signature(x: Tensor, start: Optional[Tensors], final: bool, steps: Optional[int]) -> Tuple[Any, ...]:
    """What decides how a call with one input and without a record is computed, beside the parameters.

    ``steps``: for how many the input is repeated, 0 for a call of one step, None where the input has time.
    """
    grad = torch.is_grad_enabled()
    state = None if start is None else tuple([(value.stride(), grad and value.requires_grad) for value in start])
    return (
        x.shape,
        x.stride(),
        x.dtype,
        x.device,
        grad and x.requires_grad,
        grad,
        final,
        steps,
        state,
    )


def only_input(inputs: Sequence[Any]) -> Optional[Tensor]:
    """The input of a call if it has one, a dense tensor that nothing but reverse-mode autograd follows; else None."""
    x = inputs[0] if len(inputs) == 1 else None
    if is_followed() or type(x) is not Tensor or x.layout is not torch.strided or x.is_nested:
        return None
    return x


def state_as_before(names: Collection[str], state: Mapping[str, Any], x: Tensor, single: bool) -> Optional[Tensors]:
    """A state in the order of ``names`` if there is nothing to check or convert about it, else None.

    ``single``: the input is one time step.
    """
    if type(state) is not dict or len(state) != len(names):
        return None
    shape, dtype, device = x.shape if single else x.shape[1:], compute_dtype(x.dtype), x.device
    start = tuple([state.get(name) for name in names])
    for value in start:
        if type(value) is not Tensor or value.shape != shape or value.dtype != dtype or value.device != device:
            return None
        if value.layout is not torch.strided:
            return None
    return start  # type: ignore[return-value]  # no None among them


def noted(
    runner: Runner,
    named: Sequence[Tuple[str, ParamValue]],
    values: Tuple[ParamValue, ...],
    x: Tensor,
    module: Any,
    constant: bool = False,
) -> Earlier:
    """A call that passed every check, with its parameters as they are and as they were placed."""
    tensors = tuple(
        PlacedTensor(
            position,
            name,
            "_parameters" if name in module._parameters else "_buffers",
            value.shape,
            value.stride(),
            value.dtype,
            value.device,
            value.requires_grad,
            tuple(placed.shape),
        )
        for position, ((name, value), placed) in enumerate(zip(named, values))
        if isinstance(value, Tensor) and isinstance(placed, Tensor)
    )
    own = [*module.configuration, *[name for name in module.params if not isinstance(getattr(module, name), Tensor)]]
    read = itemgetter(*[name for name in own if name in module.__dict__])
    numbers = tuple(None if isinstance(value, Tensor) else value for value in values)
    shape = x.shape[1:] if tensors else None
    return Earlier(runner, read, read(module.__dict__), numbers, tensors, shape, constant)


def first_call(
    found: Earlier,
    inputs: Tensors,
    start: Optional[Tensors],
    constant: Tensors,
    named: Sequence[Tuple[str, ParamValue]],
    values: Tuple[ParamValue, ...],
    single: bool,
) -> Tuple[Optional[Earlier], Optional[Tuple[Tensors, Optional[Tensors]]]]:
    """The call bound to its plan, and its results; without them where it is the runner's. ``constant``: the input, if
    it is a parameter of the program in front of these.
    """
    params = (*constant, *[value for _, value in named])
    views = [tuple(value.shape) if isinstance(value, Tensor) else None for value in (*constant, *values)]
    try:
        call = bound(found.runner, inputs, start, params, views, single)
        return (found, None) if call is None else (found._replace(call=call), call(inputs, start, params))
    except BackendError:  # the runner meets it, too, and does what is to be done then
        return None, None


def values_as_before(found: Earlier, module: nn.Module, x: Tensor, single: bool) -> Optional[Tuple[ParamValue, ...]]:
    """The parameters as the neuron holds them; None if one is not as it was.

    ``single``: the input is one time step.
    """
    held = module.__dict__
    try:
        if found.read(held) != found.seen:
            return None
    except KeyError:  # one was deleted, or is a tensor now
        return None
    if not found.tensors:
        return found.values
    if (x.shape if single else x.shape[1:]) != found.shape:
        return None
    values = list(found.values)
    for position, name, table, own, strides, dtype, device, learnt, _ in found.tensors:
        value: Optional[Tensor] = held[table].get(name)
        if value is None or value.shape != own or value.dtype is not dtype:
            return None
        if value.stride() != strides or value.device != device or value.requires_grad is not learnt:
            return None
        values[position] = value
    return tuple(values)


def placed(found: Earlier, values: Tuple[ParamValue, ...]) -> Tuple[ParamValue, ...]:
    """The parameters that :func:`values_as_before` found, as the runner takes them."""
    if not found.tensors:
        return values
    seen: List[Any] = list(values)
    for one in found.tensors:
        if one.view != one.shape:
            seen[one.position] = seen[one.position].view(one.view)
    return tuple(seen)
