"""The steps of a call with feedback by one launch, on a backend that feeds back within its kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Sequence

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import Spec
from spikecore.kernels._feedback_call import FeedbackCall, Gradients, Results, Wanted
from spikecore.kernels._geometry import Geometry
from spikecore.kernels._launches import Launch, Launcher
from spikecore.kernels._plan import BackwardPlan, ForwardPlan, saved_states
from spikecore.lang import Program


class FeedbackLaunch:
    """One launch for all steps, of a backend that feeds back by itself."""

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        self.backend, self.program = backend, program
        learn = tuple([name for name in spec.learn if name in program.params])
        self.final, self.spec = spec.final, replace(spec, learn=learn)
        self._forwards: Recent[Any, Launch] = Recent(CALLS)
        self._backwards: Recent[Any, Launch] = Recent(CALLS)

    def forward(self, fed: FeedbackCall, x: Tensor, save: bool) -> Results:
        """All steps of ``x``."""
        key = (fed.call.record, save)
        launch = self._forwards.get(key)
        if launch is None:
            plan = ForwardPlan(self.program, self.spec, fed.call.record, True, self.final, save)
            launch = self._forwards.put(key, self.backend.forward(plan))
        compute, shape = self.spec.compute, fed.shape
        x = x.contiguous()
        out = torch.empty_like(x)
        states = len(self.program.states) if self.final else 0
        final = [x.new_empty(shape[1:], dtype=compute) for _ in range(states)]
        trace = [x.new_empty(shape, dtype=compute) for _ in fed.call.record]
        kept = [torch.empty_like(x), *self._checkpoints(x)] if save else []
        bias = () if fed.bias is None else (fed.bias.contiguous(),)
        params = (*fed.params, fed.weight.t().contiguous(), *bias)
        launch(self._geometry(fed), (x,), (*fed.state, fed.first), params, (out,), final, trace, kept)
        return out, final, trace, kept

    def backward(self, fed: FeedbackCall, kept: Sequence[Tensor], asked: Wanted) -> Gradients:
        """All steps, from the last to the first; ``kept`` is what :meth:`forward` kept."""
        us, *checkpoints = kept
        record = fed.call.record
        trace = tuple([name for name, grad in zip(record, asked.trace) if grad is not None])
        final = tuple([name for name, grad in zip(self.program.states, asked.final) if grad is not None])
        tensors = [name for name, kind in zip(self.program.params, self.spec.params) if kind != "number"]
        learn = tuple([name for name, wants in zip(tensors, asked.learn) if wants])
        key = (trace, final, asked.state, learn)
        launch = self._backwards.get(key)
        if launch is None:
            plan = BackwardPlan(
                self.program,
                self.spec,
                has_initial_state=True,
                outputs=(True,),
                trace=trace,
                final=final if len(final) < len(self.program.states) and final else bool(final),
                inputs=(True,),
                state=asked.state,
                learn=learn,
            )
            launch = self._backwards.put(key, self.backend.backward(plan))
        compute, step = self.spec.compute, fed.shape[1:]
        new = us.new_empty
        grad = new(step).zero_().expand(fed.shape) if asked.output is None else _steps(asked.output)
        ends = [new(step, dtype=compute).zero_() if g is None else g.contiguous() for g in asked.final] if final else []
        traces = [_steps(g) for g in asked.trace if g is not None]
        gus = torch.empty_like(us, memory_format=torch.contiguous_format)
        to_state = [new(step, dtype=compute) for _ in self.program.states] if asked.state else []
        params = (*fed.params, fed.weight.contiguous())
        sums = launch(
            self._geometry(fed), (us.contiguous(),), fed.state, params, (None, *checkpoints), (grad,), ends, traces,
            (gus,), to_state,
        )  # fmt: skip
        each = iter(sums if sums is not None else ())
        return gus, to_state, [next(each) if wants else None for wants in asked.learn]

    def _checkpoints(self, x: Tensor) -> List[Tensor]:
        """Memory for the states before every chunk of steps but the first, of a backend with chunks."""
        each = self.backend.chunk_of(self.program, self.spec)
        count = -(-x.shape[0] // each) - 1 if each else 0
        if not each:
            return []
        shape = (max(count, 0), *x.shape[1:])
        return [x.new_empty(shape, dtype=self.spec.compute) for _ in saved_states(self.program, self.spec, True)]

    def _geometry(self, fed: FeedbackCall) -> Geometry:
        steps, neurons, channels = fed.geometry(fed.shape[0])
        # behind the parameters stand weight and bias
        return Geometry(steps, neurons, (*channels, (0, 0), (0, 0)) if channels else channels)


def _steps(grad: Tensor) -> Tensor:
    """A cotangent of all steps, each of them contiguous."""
    return grad if grad.shape[0] and grad[0].is_contiguous() else grad.contiguous()
