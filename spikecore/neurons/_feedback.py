"""All steps of a neuron whose output comes back, as one call of its backend: whether that can be, and the call.

A call whose signature is that of one that passed every check goes straight to what ran that one, as calls of neurons
do (:mod:`spikecore.core.call`). Parameters are read at each call, and only their shapes are part of a signature.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore.backend import FEEDBACK_BIAS, FEEDBACK_WEIGHT, Feedback, Runner, Tensors
from spikecore.context import EAGER, PLAIN, autocast_dtype
from spikecore.core.call import arguments
from spikecore.core.noted import NotedCall

#: Outputs, states as they were given if they were asked for, and recorded states.
FedResults = Tuple[Tensors, Optional[Tensors], Tensors]


class Matrix(NamedTuple):
    """Matrix of a feedback: ``y @ weight.T + bias``."""

    weight: Tensor
    bias: Optional[Tensor]
    #: ``[H]`` whole steps by which an output comes back later, and the longest there may be; None and 0 without.
    delay: Optional[Tensor] = None
    longest: int = 0

    @property
    def tensors(self) -> Tensors:
        """The tensors that there are."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def fed_back(
    neuron: Any,
    inputs: Tensors,
    state: Optional[Tensors],
    matrix: Matrix,
    record: Tuple[str, ...],
    final: bool,
    options: Tuple[bool, int, int],
    mode: str,
) -> Union[FedResults, str]:
    """All steps of inputs ``[T, ..., H]``, or why they are not one call of the backend.

    ``state``: the states of the neuron in its order, then the last output and the past. ``options``: whether what comes
    back is a constant, and the numbers of the input that it is added to and of the output.
    """
    signature = _signature(inputs, state, matrix, mode, (record, final, *options))
    noted: Optional[NotedCall] = None if signature is None else neuron._dispatch.noted.get(signature)
    values = None if noted is None else noted.values(neuron)
    if noted is not None and values is not None:
        return noted.results(inputs, state, values, matrix.tensors, record)
    feedback = Feedback(matrix.bias is not None, *options, matrix.delay is not None)
    reason = why_looped(neuron, inputs, feedback, state or (), matrix, record, mode)
    if reason:
        return reason
    behind = [(FEEDBACK_WEIGHT, matrix.weight), (FEEDBACK_BIAS, matrix.bias)]
    dispatch = neuron._settled()
    asked = arguments(neuron, dispatch, inputs, state, final, EAGER, behind=behind)
    spec, *gradients = asked.kind
    spec = (spec[0], None, *spec[2:5], feedback)
    kind = dispatch.find(inputs[0].device.type, spec, *gradients, bool(record), dispatch.stamp)
    delays: Any = (matrix.delay, matrix.longest) if feedback.delays else ()
    runner: Runner = dispatch.runners[kind]
    params = (*asked.values, *matrix.tensors)
    results = runner(inputs, state, (*params, *delays), record)
    if signature is not None:
        noted = NotedCall(runner, asked.named, asked.values, neuron, len(asked.values))
        if not record:
            noted.bind(inputs, state, params, params)
        dispatch.note(signature, noted)
    return results


def _signature(
    inputs: Tensors, state: Optional[Tensors], matrix: Matrix, mode: str, asked: Tuple[Any, ...]
) -> Optional[Tuple[Any, ...]]:
    """The key of a call beside the neuron's parameters; None for one that is always checked."""
    if mode is not EAGER or matrix.delay is not None:
        return None
    dtype = autocast_dtype(inputs[0].device.type)
    key: List[Any] = [state is None, matrix.bias is None, torch.is_grad_enabled(), dtype, *asked]
    for value in (*inputs, *(state or ()), *matrix.tensors):
        if type(value) not in PLAIN or value.layout is not torch.strided or value.is_nested:
            return None
        key += (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    return tuple(key)


def why_looped(
    neuron: Any,
    inputs: Tensors,
    feedback: Feedback,
    state: Sequence[Optional[Tensor]],
    matrix: Matrix,
    record: Sequence[str],
    mode: str,
) -> str:
    """Reason why a call with feedback cannot be one call of the backend, "" if it can.

    ``state``: the states of the neuron in its order, then the last output and the past; None for what is at rest.
    """
    into = feedback.into
    x = inputs[into]
    if mode is not EAGER or type(x) not in PLAIN:
        return "torch traces or transforms the call, or x is no plain tensor"
    there = [value for value in (*state, matrix.delay) if value is not None]
    others = (*inputs[:into], *inputs[into + 1 :], *there, *matrix.tensors)
    if any(type(value) not in PLAIN or value.device != x.device for value in others):
        return "weight, bias or state is no plain tensor beside x"
    if any(value.layout is not torch.strided for value in (x, *others)):
        # a kernel reads memory by strides
        return "weight, bias, state or x is sparse, or has no strides"
    width = x.shape[-1] if x.ndim > 1 else 0
    if matrix.weight.shape != (width, width) or (matrix.bias is not None and matrix.bias.shape != (width,)):
        return "linear does not keep the shape of a step"
    if not x.numel():
        return "x is empty"
    device, dtype = x.device.type, matrix.weight.dtype
    mixed = any(value.dtype != dtype for value in matrix.tensors) or torch.promote_types(x.dtype, dtype) != x.dtype
    if mixed or dtype not in (x.dtype, autocast_dtype(device)):
        return f"the weight is {dtype} and x is {x.dtype}"
    backend = neuron._dispatch.bind(device).backend
    has = backend.capabilities_on(device)
    # what the loop does without: it collects a record itself, and the matrix is no parameter of its calls
    learns = torch.is_grad_enabled() and any(value.requires_grad for value in matrix.tensors)
    demands = {
        "recurrent": True,
        "feedback_options": feedback != Feedback(feedback.bias),
        "record": bool(record),
        "parameter_gradients": learns,
    }
    missing = [name for name, wants in demands.items() if wants and not getattr(has, name)]
    return f"backend {backend.name!r} does not declare {', '.join(missing)}" if missing else ""


def under_autocast(x: Tensor, matrix: Matrix) -> Matrix:
    """The matrix as autocast would have its product with an output of the dtype of ``x``."""
    dtype = autocast_dtype(x.device.type)
    # autocast leaves float64 as it is
    if dtype is None or torch.float64 in (x.dtype, *[value.dtype for value in matrix.tensors]):
        return matrix
    bias = None if matrix.bias is None else matrix.bias.to(dtype)
    return matrix._replace(weight=matrix.weight.to(dtype), bias=bias)
