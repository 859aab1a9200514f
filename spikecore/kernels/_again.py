"""Derivatives of a call that its kernels do not give: another runner computes the call anew.

- First derivatives, where the backward kernel cannot be had: it is compiled when backward first needs it.
- Second derivatives, which kernels have none of. A backward pass with ``create_graph=True`` is the kernel's; only where
  its result is differentiated again, it is computed anew.

The other runner is there where the backend was chosen automatically; one that was asked for by name refuses.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendError, ParamValue, Runner, Unsupported
from spikecore.kernels._arguments import Arguments, Call
from spikecore.kernels._launches import Launcher

#: Gives the runner of another backend for the error of this one; None where this one was asked for by name.
Instead = Optional[Callable[[BackendError], Runner]]


class Executed(Protocol):
    """What must be known of what executed a call."""

    backend: Launcher
    arguments: Arguments
    n_final: int


class Again(NamedTuple):
    """One backward pass, as it is needed to compute its call anew."""

    execution: Executed
    instead: Instead
    call: Call
    #: For each result of the call, whether a cotangent arrived.
    arrived: Tuple[bool, ...]
    #: For each tensor of the call, whether its gradient is wanted.
    wanted: Sequence[bool]

    def gradients(
        self, error: BackendError, grads: Sequence[Optional[Tensor]], tensors: Sequence[Tensor]
    ) -> List[Optional[Tensor]]:
        """The wanted gradients of the call's tensors, from the cotangents that arrived, after an error of the kernel.

        Raises that error where there is no other runner.
        """
        if self.instead is None:
            raise error
        runner = self.instead(error)
        with torch.enable_grad():
            # leaves of a graph of their own: what the tensors were computed from is not for this pass to differentiate
            local = [tensor.detach().requires_grad_(wants) for tensor, wants in zip(tensors, self.wanted)]
            results = self._results(runner, local)
        pairs = [(a, b) for a, b in zip(results, grads) if b is not None and a.requires_grad]
        of = [tensor for tensor in local if tensor.requires_grad]
        found = iter(
            torch.autograd.grad([a for a, _ in pairs], of, [b for _, b in pairs], allow_unused=True)
            if pairs
            else [None] * len(of)
        )
        # no path to an input gives None here; kernels give zeros
        each = [(tensor, next(found) if tensor.requires_grad else None) for tensor in local]
        return [torch.zeros_like(t) if t.requires_grad and grad is None else grad for t, grad in each]

    def differentiable(
        self, found: Sequence[Optional[Tensor]], grads: Sequence[Optional[Tensor]], tensors: Sequence[Tensor]
    ) -> List[Optional[Tensor]]:
        """The gradients that were found, as functions of the cotangents and of the call's tensors."""
        # kernels compute the gradients of all states if that of any is wanted; drop the others
        there = [grad for grad, wants in zip(found, self.wanted) if wants]
        sources = [grad for grad in grads if grad is not None]
        results = iter(_Found.apply(self, len(there), *there, *sources, *tensors))
        return [next(results) if wants else None for wants in self.wanted]

    def derivatives(self, sources: Sequence[Tensor], cotangents: Sequence[Tensor]) -> List[Optional[Tensor]]:
        """Gradients of the sources (arrived cotangents, then the call's tensors) from those of the found gradients."""
        name = self.execution.backend.name
        error = Unsupported(f"backend {name!r} derives first derivatives only; for a second one choose backend='torch'")
        if self.instead is None:
            raise error
        runner, further = self.instead(error), torch.is_grad_enabled()
        with torch.enable_grad():
            # views, so that derivatives end here even where one source was computed from another
            local = [source.view_as(source) for source in sources]
            count = sum(self.arrived)
            grads, tensors = local[:count], local[count:]
            results = [result for result, there in zip(self._results(runner, tensors), self.arrived) if there]
            pairs = [(result, grad) for result, grad in zip(results, grads) if result.requires_grad]
            of = [tensor for tensor, wants in zip(tensors, self.wanted) if wants]
            first = torch.autograd.grad(
                [result for result, _ in pairs], of, [grad for _, grad in pairs], create_graph=True, allow_unused=True
            )
            again = [(a, b) for a, b in zip(first, cotangents) if a is not None and a.requires_grad]
            moving = [source for source in local if source.requires_grad]
            second = iter(
                torch.autograd.grad(
                    [a for a, _ in again], moving, [b for _, b in again], create_graph=further, allow_unused=True
                )
                if again
                else [None] * len(moving)
            )
        return [next(second) if source.requires_grad else None for source in local]

    def _results(self, runner: Runner, tensors: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        execution, call = self.execution, self.call
        n, m = execution.arguments.n_inputs, execution.arguments.n_moving(call)
        each = iter(tensors[m:])
        params: Tuple[ParamValue, ...] = tuple(next(each) if p is None else p for p in call.numbers)
        outputs, final, trace = runner(
            tuple(tensors[:n]), tuple(tensors[n:m]) if call.has_initial_state else None, params, call.record
        )
        return (*outputs, *((final or ()) if execution.n_final else ()), *trace)


class _Found(torch.autograd.Function):
    """Gradients that a kernel found, and what they depend on."""

    @staticmethod
    def forward(ctx: Any, again: Again, count: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        ctx.again, ctx.count = again, count
        # the gradients themselves are not needed: a second derivative is computed from what they depend on
        ctx.save_for_backward(*tensors[count:])
        return tuple([tensor.clone() for tensor in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tuple[Optional[Tensor], ...]:
        return (None, None, *[None] * ctx.count, *ctx.again.derivatives(ctx.saved_tensors, cotangents))
