"""Direct calls with a constant input: the shortest way where one step stands for all.

As :mod:`spikecore.kernels._direct`, for the program whose one input is a parameter (:mod:`spikecore.kernels._constant`)
and whose other parameters are numbers. Kernels read no input then, and a launch gets a tensor of all steps in its place
that is there anyway: the output, and in backward the cotangent.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendError, Tensors
from spikecore.kernels._arguments import Call
from spikecore.kernels._direct import Derive
from spikecore.kernels._execution import Execution
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import BackwardLaunch, ForwardLaunch
from spikecore.kernels._layout import Layout
from spikecore.kernels._straight import whole
from spikecore.lang._plain import is_followed


class DirectConstant:
    """Direct calls of a program whose first parameter is its constant input."""

    def __init__(self, execution: Execution, instead: Any, derive: Derive) -> None:
        self.execution, self.instead, self.derive = execution, instead, derive
        self.compute = execution.spec.compute
        self._channels = ((0, 0),) * len(execution.spec.params)
        self._call = Call((), False, (None,) * len(execution.spec.params))
        self._forward: Dict[bool, ForwardLaunch] = {}
        self._backward: Optional[BackwardLaunch] = None

    def __call__(self, step: Tensor, steps: int, numbers: Sequence[Any]) -> Optional[Tensor]:
        """The output for ``steps`` steps that are ``step``; None if this call is for the runner."""
        if is_followed() or not step.numel():
            return None
        if not whole(step):
            return self._permuted(step, steps, numbers)
        try:
            if torch.is_grad_enabled() and step.requires_grad:
                out: Tensor = _Crossing.apply(self, steps, numbers, step)
                return out
            return self.forward(step.to(self.compute), steps, numbers, False)[0]
        except BackendError:  # the runner meets it, too, and does what is to be done then
            return None

    def _permuted(self, step: Tensor, steps: int, numbers: Sequence[Any]) -> Optional[Tensor]:
        """The output of a step whose dimensions lie in another order, as channels-last: none of them means anything."""
        order = sorted(range(step.ndim), key=step.stride, reverse=True)
        ordered = step.permute(order)
        out = self(ordered, steps, numbers) if whole(ordered) else None
        back = [0, *[1 + order.index(dim) for dim in range(step.ndim)]]
        return None if out is None else out.permute(back)

    def geometry(self, step: Tensor, steps: int) -> Geometry:
        """Sizes of a call."""
        return Geometry(steps, step.numel(), self._channels)

    def forward(self, step: Tensor, steps: int, numbers: Sequence[Any], save: bool) -> Tuple[Tensor, List[Tensor]]:
        """The output, and checkpoints for backward; the step in the arithmetic's dtype."""
        chunk = self.execution.chunk
        out = step.new_empty((steps, *step.shape), dtype=self.execution.spec.dtype)
        saved: List[Tensor] = []
        if save and 0 < chunk < steps:
            size = ((steps - 1) // chunk, *step.shape)
            saved = [step.new_empty(size) for _ in range(self.execution.n_checkpoints(self._call))]
        launch = self._forward.get(bool(saved))
        if launch is None:
            launch = self._forward[bool(saved)] = self.execution.forward_launch(self._call, bool(saved))
        launch(self.geometry(step, steps), (out,), (), (step, *numbers), (out,), (), (), saved)
        return out, saved

    def backward(self, steps: int, numbers: Sequence[Any], saved: Tensors, grad: Tensor) -> Optional[Tensor]:
        """The gradient of the step from a cotangent of the output; None if it is not for this way."""
        step, device = saved[0], grad.device
        # what a saved-tensor hook gave back may be anything
        for one in saved:
            if one.dtype is not self.compute or one.device != device or not whole(one):
                return None
        chunk = self.execution.chunk
        kept = ((steps - 1) // chunk, *step.shape) if chunk else ()
        if grad.shape != (steps, *step.shape) or not whole(grad) or any(one.shape != kept for one in saved[1:]):
            return None
        launch = self._backward
        if launch is None:
            launch = self._backward = self.execution.gradients(self._call, (grad,), (False, True)).launch
        params = (step, *numbers)
        sums = launch(self.geometry(step, steps), (grad,), (), params, saved[1:], (grad,), (), (), (), ())
        return None if sums is None else sums[0].view(step.shape)

    def by_the_runner(
        self, steps: int, numbers: Sequence[Any], saved: Tensors, grad: Optional[Tensor]
    ) -> Optional[Tensor]:
        """The gradient of the step by what serves every call."""
        step = saved[0]
        x = step.detach().to(self.execution.spec.dtype).expand(steps, *step.shape)
        call = self._call._replace(numbers=(None, *numbers))
        context = self.execution, self.instead, call, 2, Layout(tuple(step.shape), None)
        return self.derive(context, (False, True), (x, *saved), (grad,))[1]


class _Crossing(torch.autograd.Function):
    """Where autograd ends and kernels begin, for direct calls with a constant input."""

    @staticmethod
    def forward(ctx: Any, direct: DirectConstant, steps: int, numbers: Any, step: Tensor) -> Tensor:
        out, checkpoints = direct.forward(step.to(direct.compute), steps, numbers, True)
        ctx.context = direct, steps, numbers
        # as it is: in the arithmetic's dtype one of 16 bits would take twice the memory
        ctx.save_for_backward(step, *checkpoints)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        direct, steps, numbers = ctx.context
        given, *checkpoints = ctx.saved_tensors
        # autograd puts the gradient into the dtype of the step
        saved = (given.to(direct.compute) if given.dtype is direct.execution.spec.dtype else given, *checkpoints)
        if grad is not None and not torch.is_grad_enabled():
            try:
                found = direct.backward(steps, numbers, saved, grad)
            except BackendError:  # the other way meets it, too, and knows what to do then
                found = None
            if found is not None:
                return None, None, None, found
        return None, None, None, direct.by_the_runner(steps, numbers, saved, grad)
