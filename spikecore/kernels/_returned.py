"""Launches that return their results, as those of array compilers do, instead of filling tensors.

Every tensor comes and goes flat, in one order of neurons: ``[T, N]`` of all steps, ``[N]`` of one, checkpoints
``[K, N]``. A parameter of kind "scalar" is ``[]``, of kind "channel" ``[C]``, of kind "full" ``[N]``. What arrives may
have any distance between its steps, 0 included. What is returned has these shapes, in ``spec.dtype`` (outputs,
gradients of inputs) or ``spec.compute`` (all others), on the device of the call, in memory of its own: a user may
change any of them, and any argument, in place. Number, shape, dtype and device are checked; the conformance suite finds
memory that is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.words import a_kind
from spikecore.backend import BackendError

if TYPE_CHECKING:
    from spikecore.kernels._call import CallPlan, Form, Kernels, Pass
    from spikecore.kernels._layout import Launch

#: What a result must be: its name for an error, its flat shape (None for any number of numbers), its dtype.
Expected = Tuple[str, Optional[Tuple[int, ...]], torch.dtype]


def forward(plan: CallPlan, launch: Launch, groups: Sequence[Any]) -> List[Tensor]:
    """The results of a forward launch of inputs, states and parameters."""
    kernels, (steps, neurons, _) = plan.kernels, plan.geometry
    stored, compute, checkpoints = kernels.spec.dtype, kernels.spec.compute, plan.results[plan.n_results :]
    expected: List[List[Expected]] = [
        [(f"output {i}", (steps, neurons), stored) for i in range(kernels.n_outputs)],
        [(f"final state {i}", (neurons,), compute) for i in range(kernels.n_final)],
        [(f"recorded {name}", (steps, neurons), compute) for name in plan.call.record],
        [(f"checkpoint {i}", (shape[0], neurons), compute) for i, (shape, _, _) in enumerate(checkpoints)],
    ]
    found = launch(plan.geometry, *_flat(kernels, neurons, groups))
    rows = _checked(kernels, "forward", found, expected, groups[0][0].device)
    return [_own(value, form) for value, form in zip([value for row in rows for value in row], plan.results)]


def backward(one: Pass, groups: Sequence[Any]) -> Tuple[List[Tensor], Sequence[Tensor]]:
    """Gradients of inputs and states, and parts of those of parameters, of a backward launch of these groups."""
    plan, kernels = one.plan, one.plan.kernels
    steps, neurons, _ = plan.geometry
    inputs, _, _, checkpoints, outputs, final, trace = groups
    late = [[_rows(value, neurons) for value in group] for group in (checkpoints, outputs)]
    late += [[_row(value, neurons) for value in final], [_rows(value, neurons) for value in trace]]
    stored, compute, parts = kernels.spec.dtype, kernels.spec.compute, one.learnt
    expected: List[List[Expected]] = [
        [(f"gradient of input {i}", (steps, neurons), stored) for i in range(one.n_inputs)],
        [(f"gradient of state {i}", (neurons,), compute) for i in range(len(one.forms) - one.n_inputs)],
        [(f"gradient of parameter {name}", None if kind == "scalar" else (neurons,), compute) for name, kind in parts],
    ]
    found = one.launch(plan.geometry, *_flat(kernels, neurons, groups[:3]), *late)
    to_inputs, to_states, to_params = _checked(kernels, "backward", found, expected, inputs[0].device)
    results = [_own(value, form) for value, form in zip((*to_inputs, *to_states), one.forms)]
    return results, [value.contiguous() for value in to_params]


def _flat(kernels: Kernels, neurons: int, groups: Sequence[Any]) -> Tuple[Any, ...]:
    inputs, state, params = groups
    placed: List[Any] = list(params)
    for index in kernels.tensor_params:
        value = placed[index]
        placed[index] = value.reshape(()) if kernels.spec.params[index] == "scalar" else _row(value, value.numel())
    return tuple([_rows(x, neurons) for x in inputs]), tuple([_row(s, neurons) for s in state]), tuple(placed)


def _checked(
    kernels: Kernels, launch: str, groups: Any, expected: Sequence[Sequence[Expected]], device: torch.device
) -> List[List[Tensor]]:
    who = f"the {launch} launch of backend {kernels.backend.name!r} for {kernels.program.name}"
    rows = [list(group) for group in groups] if isinstance(groups, (tuple, list)) else []
    if [len(row) for row in rows] != [len(row) for row in expected]:
        wanted = ", ".join(str(len(row)) for row in expected)
        raise BackendError(f"{who} must return groups of {wanted} tensors, got {[len(row) for row in rows]}")
    for row, wishes in zip(rows, expected):
        for value, (name, shape, dtype) in zip(row, wishes):
            if not isinstance(value, Tensor):
                raise BackendError(f"{who} returned {a_kind(value)} as {name}, not a tensor")
            fits = shape is None or tuple(value.shape) == shape
            if not fits or value.dtype != dtype or value.device != device:
                raise BackendError(
                    f"{who} returned {value.dtype} {list(value.shape)} on {value.device} as {name}, "
                    f"expected {dtype} {'of any shape' if shape is None else list(shape)} on {device}"
                )
    return rows


def _rows(steps: Tensor, neurons: int) -> Tensor:
    """All steps ``[T, N]`` in the order of memory."""
    return steps.as_strided((steps.shape[0], neurons), (steps.stride(0), 1))


def _row(step: Tensor, neurons: int) -> Tensor:
    """One step ``[N]`` in the order of memory."""
    return step.as_strided((neurons,), (1,))


def _own(flat: Tensor, form: Form) -> Tensor:
    """A flat result as the user sees it: a tensor of its own on that memory, no view of another one, so that autograd
    lets it be changed in place.
    """
    # a library's own graph must not reach the user, whose gradients come from the backward launch
    memory, (shape, strides, _) = flat.detach().contiguous(), form
    return memory.new_empty(0).set_(memory.untyped_storage(), memory.storage_offset(), shape, strides)
