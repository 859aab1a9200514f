"""Direct calls: the shortest way from a neuron to its kernels and back.

In a small layer a call costs what the host does for it. A direct call begins at rest, has one plain contiguous input
and gives one output and nothing else, as nearly all calls of a network do. What such calls of a neuron have in common
is found once. A call that is not of this kind is left to the runner, and a backward pass that is not (other tensors
from saved-tensor hooks, a cotangent that is not dense, ``create_graph=True``) to what serves every call.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendError, ParamValue, Tensors
from spikecore.kernels._execution import Execution
from spikecore.kernels._layout import Layout
from spikecore.kernels._straight import Sizes, Straight, whole
from spikecore.lang._plain import is_transformed

#: Gradients of a call's tensors, of what autograd saved and the cotangents, however these are: see ``_boundary``.
Derive = Callable[[Any, Any, Tensors, Sequence[Optional[Tensor]]], Sequence[Optional[Tensor]]]


class Direct(Straight):
    """Direct calls of neurons whose parameters have one form.

    instead: see :mod:`spikecore.kernels._again`. derive: what computes gradients of every call. other: those of inputs
    in another order of memory.
    """

    def __init__(
        self,
        execution: Execution,
        instead: Any,
        views: Sequence[Optional[Tuple[int, ...]]],
        derive: Derive,
        other: Optional[Callable[[Tensor, Tuple[ParamValue, ...]], Optional[Tensors]]] = None,
    ) -> None:
        super().__init__(execution, views)
        self.instead, self.derive, self.other = instead, derive, other
        self._full = [index for index, kind in enumerate(execution.spec.params) if kind == "full"]
        self._learns = bool(execution.spec.learn)

    def __call__(self, x: Tensor, params: Tuple[ParamValue, ...]) -> Optional[Tensors]:
        """Outputs of a call with these parameters as the neuron holds them; None if it is for the runner."""
        if is_transformed():
            return None
        for index in self._full:
            if params[index].shape != x.shape[1:]:  # type: ignore[union-attr]  # a tensor
                return None
        if self.reads and not whole(x):
            return None if self.other is None else self.other(x, params)
        sizes = self.sizes(x)
        if sizes is None:
            return None
        try:
            if not self.tensors:
                if x.requires_grad and torch.is_grad_enabled():
                    return (_apply((self, sizes, params), x),)
                return (self.forward(sizes, x, params, ()),)
            tensors = [params[index] for index in self.tensors]
            if not self.takes(tensors):
                return self._permuted(x, params)
            if torch.is_grad_enabled() and (x.requires_grad or self._learns):
                return (_apply((self, sizes, params), x, *tensors),)
            return (self.forward(sizes, x, params, ()),)
        except BackendError:  # the runner meets it, too, and does what is to be done then
            return None

    def _permuted(self, x: Tensor, params: Tuple[ParamValue, ...]) -> Optional[Tensors]:
        """Outputs for one step in another order of memory, such as channels-last, in the place of the input: no
        dimension of a step means anything to the program. None for other calls.
        """
        step = params[0]
        if self.reads or self.tensors != (0,) or not isinstance(step, Tensor) or step.is_contiguous():
            return None
        order = sorted(range(step.ndim), key=step.stride, reverse=True)
        ordered = step.permute(order)
        if not whole(ordered):
            return None
        out = self(x.permute(0, *[1 + dim for dim in order]), (ordered, *params[1:]))
        back = [0, *[1 + order.index(dim) for dim in range(step.ndim)]]
        return None if out is None else (out[0].permute(back),)

    def checkpoints(self, sizes: Sizes, x: Tensor) -> Sequence[Tensor]:
        """Checkpoints for backward, as allocated."""
        if sizes.kept is None:
            return ()
        count = self.execution.n_checkpoints(self.at_rest)
        return [torch.empty(sizes.kept, dtype=self.compute, device=x.device) for _ in range(count)]

    def placed(self, values: Sequence[Tensor]) -> List[Tensor]:
        """Parameters that are tensors, as they lie over the neurons of one time step."""
        views = [None if index in self._full else self.views[index] for index in self.tensors]
        return [value if view is None else value.view(view) for view, value in zip(views, values)]


class _Crossing(torch.autograd.Function):
    """Where autograd ends and kernels begin, for direct calls."""

    @staticmethod
    def forward(ctx: Any, context: Any, x: Tensor, *tensors: Tensor) -> Tensor:
        # one argument beside the tensors: torch looks at each one, and wants a gradient back for it
        direct, sizes, params = ctx.context = context
        checkpoints = direct.checkpoints(sizes, x) if sizes.kept is not None else ()
        out: Tensor = direct.forward(sizes, x, params, checkpoints)
        # of the parameters backward reads only numbers from the context
        ctx.save_for_backward(x, *tensors, *checkpoints)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        direct, sizes, numbers = ctx.context
        saved = ctx.saved_tensors
        if grad is not None and not torch.is_grad_enabled():
            try:
                found = direct.gradients(ctx.needs_input_grad[1:], sizes, numbers, saved, grad)
            except BackendError:  # the other way meets it, too, and knows what to do then
                found = None
            if found is not None:
                return (None, *found)
        return (None, *_by_the_runner(ctx, saved, grad))


def _by_the_runner(ctx: Any, saved: Tensors, grad: Optional[Tensor]) -> List[Optional[Tensor]]:
    direct, sizes, numbers = ctx.context
    end = 1 + len(direct.tensors)
    values = saved[1:end]
    tensors = (saved[0], *direct.placed(values), *saved[end:])
    call = direct.at_rest._replace(numbers=tuple([None if isinstance(value, Tensor) else value for value in numbers]))
    context = direct.execution, direct.instead, call, end, Layout(sizes.shape[1:], None)
    x, *found = direct.derive(context, ctx.needs_input_grad[1:], tensors, (grad,))
    return [x, *[one if one is None else one.view(value.shape) for one, value in zip(found, values)]]


#: ``_Crossing.apply`` without what torch does there for tensors of ended functorch transforms, which are not whole.
_apply = super(torch.autograd.Function, _Crossing).apply
