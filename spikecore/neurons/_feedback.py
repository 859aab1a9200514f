"""All steps of a neuron whose outputs come back, as one call of its backend: whether that can be, and the call.

A call whose signature is that of one that passed every check goes straight to what ran that one, as calls of neurons
do (:mod:`spikecore.core.call`). Parameters are read at each call, and only their shapes are part of a signature.
"""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.running import packed as side_by_side
from spikecore.backend import FEEDBACK_BIAS, FEEDBACK_WEIGHT, Feedback, Runner, Tensors
from spikecore.context import EAGER, PLAIN, autocast_dtype
from spikecore.core import vectors
from spikecore.core.call import NotedCall, arguments, with_values

#: Outputs, states as they were given if they were asked for, and recorded states.
FedResults = Tuple[Tensors, Optional[Tensors], Tensors]


class Looped(Exception):
    """Reason why a call with feedback computes one step after the other."""


class Matrix(NamedTuple):
    """Matrix of a feedback: ``y @ weight.T + bias``."""

    weight: Tensor
    bias: Optional[Tensor]
    #: ``[H]`` whole steps by which an output comes back later, and the longest there may be; None and 0 without.
    delay: Optional[Tensor] = None
    longest: int = 0


#: Of a feedback: the numbers of the inputs that it is added to and of the output, and whether what comes back is a
#: constant.
Ends = Tuple[Tuple[int, ...], int, bool]


def recalled(
    neuron: Any,
    key: Tuple[Any, ...],
    inputs: Tensors,
    state: Optional[Mapping[str, Tensor]],
    matrices: Sequence[Matrix],
) -> Optional[FedResults]:
    """The results of a call like one that passed every check; None for another one."""
    noted: Optional[NotedCall] = neuron._dispatch.noted.get(key)
    values = None if noted is None else noted.values(neuron)
    if noted is None or values is None:
        return None
    return noted.results(inputs, tuple(state.values()) if state else None, values, tensors_of(matrices))


def tensors_of(matrices: Sequence[Matrix]) -> Tensors:
    """Weights and biases, in order."""
    return tuple([value for matrix in matrices for value in matrix[:2] if value is not None])


def fed_back(
    neuron: Any,
    inputs: Tensors,
    state: Optional[Tensors],
    matrices: Sequence[Matrix],
    record: Tuple[str, ...],
    final: bool,
    ends: Tuple[Ends, ...],
    mode: str,
    key: Optional[Tuple[Any, ...]],
    sent: Tensors,
    beside: Tuple[int, ...] = (),
) -> FedResults:
    """All steps of inputs ``[T, ..., H]``; raises :class:`Looped` if they are not one call of the backend.

    ``state``: the states of the program in its order, then the last outputs and the past. ``key``: by which the call is
    noted. ``sent``: the inputs of a runner; where some of them lie side by side in the first of these, ``beside`` has
    their numbers.
    """
    tensors, (delay, longest) = tensors_of(matrices), matrices[0][2:]
    states = vectors.recorded(neuron, neuron.states)
    recorded, count = tuple([name for name in record if name not in states]), len(states)
    if recorded and state is not None:
        state = (*with_values(state[:count], recorded, inputs[0]), *state[count:])
    feedbacks = [
        Feedback(matrix.bias is not None, detach, into[0], output, delay is not None, into[1:])
        for matrix, (into, output, detach) in zip(matrices, ends)
    ]
    check_one_call(neuron, inputs, feedbacks, state or (), matrices, record, mode)
    behind: List[Tuple[str, Any]] = []
    for number, matrix in enumerate(matrices):
        names = (FEEDBACK_WEIGHT, FEEDBACK_BIAS)
        named = names if len(matrices) == 1 else [name.replace("linear", f"feedbacks.{number}") for name in names]
        behind += zip(named, matrix)
    settled = neuron._settled()
    dispatch = settled.recording(recorded)
    asked = arguments(neuron, dispatch, inputs, state, final, EAGER, behind=behind)
    spec, *gradients = asked.kind
    spec = (spec[0], None, *spec[2:5], feedbacks[0], tuple(feedbacks[1:]))
    kind = dispatch.find(inputs[0].device.type, spec, *gradients, bool(record), dispatch.stamp)
    delays: Any = () if delay is None else (delay, longest)
    runner: Runner = side_by_side(dispatch.runners[kind], beside) if beside else dispatch.runners[kind]
    params = (*asked.values, *tensors)
    outputs, end, trace = runner(sent, state, (*params, *delays), record)
    if key is not None:
        noted = NotedCall(runner, asked.named, asked.values, neuron, len(asked.values))
        noted.bind(sent, state, params, params)
        settled.note(key, noted)
    # the last of named values come behind the states of the program
    return outputs, end if end is None else (*end[:count], *end[count + len(recorded) :]), trace


def check_one_call(
    neuron: Any,
    inputs: Tensors,
    feedbacks: Sequence[Feedback],
    state: Sequence[Optional[Tensor]],
    matrices: Sequence[Matrix],
    record: Sequence[str],
    mode: str,
) -> None:
    """Raise :class:`Looped` if a call with feedback cannot be one call of the backend.

    ``state``: the states of the neuron in its order, then the last outputs and the past; None for what is at rest.
    """
    x, weights = inputs[feedbacks[0].into], [value for matrix in matrices for value in matrix[:2] if value is not None]
    if mode is not EAGER or type(x) not in PLAIN:
        raise Looped("torch traces or transforms the call, or x is no plain tensor")
    others = (*inputs, *[value for value in (*state, matrices[0].delay) if value is not None], *weights)
    if any(type(value) not in PLAIN or value.device != x.device for value in others):
        raise Looped("weight, bias or state is no plain tensor beside x")
    if any(value.layout is not torch.strided for value in others):
        # a kernel reads memory by strides
        raise Looped("weight, bias, state or x is sparse, or has no strides")
    width = x.shape[-1] if x.ndim > 1 else 0
    for feedback, (weight, bias, *_) in zip(feedbacks, matrices):
        rows = len(feedback.inputs) * width
        if weight.shape != (rows, width) or (bias is not None and bias.shape != (rows,)):
            raise Looped("linear does not keep the shape of a step")
    if not x.numel():
        raise Looped("x is empty")
    device, dtype = x.device.type, weights[0].dtype
    mixed = any(value.dtype != dtype for value in weights) or torch.promote_types(x.dtype, dtype) != x.dtype
    if mixed or dtype not in (x.dtype, autocast_dtype(device)):
        raise Looped(f"the weight is {dtype} and x is {x.dtype}")
    backend = neuron._dispatch.bind(device).backend
    has = backend.capabilities_on(device)
    # what the loop does without: it collects a record itself, and the matrix is no parameter of its calls
    learns = torch.is_grad_enabled() and any(value.requires_grad for value in weights)
    demands = {
        "recurrent": True,
        "feedback_options": any(row != Feedback(row.bias, further=row.further) for row in feedbacks),
        "feedback_gates": len(feedbacks) > 1 or bool(feedbacks[0].further),
        "record": bool(record),
        "parameter_gradients": learns,
    }
    missing = [name for name, wants in demands.items() if wants and not getattr(has, name)]
    if missing:
        raise Looped(f"backend {backend.name!r} does not declare {', '.join(missing)}")


def under_autocast(x: Tensor, matrix: Matrix) -> Matrix:
    """The matrix as autocast would have its product with an output of the dtype of ``x``."""
    dtype = autocast_dtype(x.device.type)
    # autocast leaves float64 as it is
    if dtype is None or torch.float64 in (x.dtype, *[value.dtype for value in matrix[:2] if value is not None]):
        return matrix
    bias = None if matrix.bias is None else matrix.bias.to(dtype)
    return matrix._replace(weight=matrix.weight.to(dtype), bias=bias)
