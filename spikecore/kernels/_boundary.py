"""The autograd boundary as ``autograd.Function``: calls cross it forward, and their gradients backward.

A backward pass whose kernel cannot be had, and a second derivative, are computed by :mod:`spikecore.kernels._again`.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendError, Tensors
from spikecore.kernels._again import Again, Instead
from spikecore.kernels._arguments import Call
from spikecore.kernels._execution import Execution
from spikecore.kernels._layout import Layout

#: A call: its execution, what computes it instead, the call, how many tensors it has, and their layout.
Context = Tuple[Execution, Instead, Call, int, Layout]


class Boundary(torch.autograd.Function):
    """Where autograd ends and kernels begin."""

    @staticmethod
    def forward(ctx: Any, execution: Execution, instead: Instead, call: Call, *tensors: Tensor) -> Tuple[Tensor, ...]:
        passing = execution.passing
        save = passing is None or passing.reads(ctx.needs_input_grad[3:])
        results = execution.forward(call, tensors, save=save)
        count = execution.n_outputs + execution.n_final + len(call.record)
        ctx.context = execution, instead, call, len(tensors), execution.layout(tensors)
        # tensors go through torch, which frees them after backward and finds those that were changed in place
        kept = tensors if passing is None else passing.kept(tensors) if save else ()
        ctx.save_for_backward(*kept, *results[count:])
        # a cotangent that does not arrive is None, and the backward kernel has no argument for it
        ctx.set_materialize_grads(False)
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        saved, passing = ctx.saved_tensors, ctx.context[0].passing
        saved = saved if passing is None else passing.restored(saved)
        return (None, None, None, *derived(ctx.context, ctx.needs_input_grad[3:], saved, grads))


class OneStep(Boundary):
    """The boundary for one time step, whose inputs and outputs ``[*N]`` have no dimension of time."""

    @staticmethod
    def forward(ctx: Any, execution: Execution, instead: Instead, call: Call, *tensors: Tensor) -> Tuple[Tensor, ...]:
        results = execution.one_step(call, tensors)
        ctx.context = execution, instead, call, len(tensors), Layout(tuple(tensors[0].shape), None)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        n, m = ctx.context[0].arguments.n_inputs, ctx.context[0].n_outputs
        saved = _timed(ctx.saved_tensors, n)
        found = derived(ctx.context, ctx.needs_input_grad[3:], saved, _timed(grads, m))
        inputs = [None if grad is None else grad.squeeze(0) for grad in found[:n]]
        return (None, None, None, *inputs, *found[n:])


def _timed(tensors: Sequence[Any], count: int) -> Tuple[Any, ...]:
    """The tensors, the first ``count`` of them with a dimension of time."""
    return (*[None if one is None else one.unsqueeze(0) for one in tensors[:count]], *tensors[count:])


def derived(
    context: Context, wanted: Sequence[bool], saved: Tensors, grads: Sequence[Optional[Tensor]]
) -> Sequence[Optional[Tensor]]:
    """Gradients of a call's tensors, with a graph of their own under ``create_graph=True``."""

    def find(left: Sequence[bool]) -> Sequence[Optional[Tensor]]:
        return _derived(context, left, saved, grads)

    passing = context[0].passing
    return find(wanted) if passing is None else passing.through(find, wanted, grads)


def _derived(
    context: Context, wanted: Sequence[bool], saved: Tensors, grads: Sequence[Optional[Tensor]]
) -> Sequence[Optional[Tensor]]:
    """The same of those that are no cotangents."""
    if not torch.is_grad_enabled():
        return _gradients(context, wanted, saved, grads)
    with torch.no_grad():
        found = _gradients(context, wanted, saved, grads)
    return _again(context, wanted, grads).differentiable(found, grads, saved[: context[3]])


def _gradients(
    context: Context, wanted: Sequence[bool], saved: Tensors, grads: Sequence[Optional[Tensor]]
) -> Sequence[Optional[Tensor]]:
    """Gradients of a call's tensors, by the kernel, or by another runner where the kernel cannot be had."""
    execution, _, call, count, layout = context
    try:
        return execution.backward(call, saved[:count], saved[count:], grads, wanted, layout)
    except BackendError as error:
        return _again(context, wanted, grads).gradients(error, grads, saved[:count])


def _again(context: Context, wanted: Sequence[bool], grads: Sequence[Optional[Tensor]]) -> Again:
    execution, instead, call, _, _ = context
    return Again(execution, instead, call, tuple(grad is not None for grad in grads), wanted)
