"""The steps of a call with feedback by one product and one launch for each, on any kernel backend."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import MAX_STATIC_STEPS, Spec
from spikecore.kernels._arguments import Call
from spikecore.kernels._exact_product import SpikesTimes, is_quicker
from spikecore.kernels._execution import Execution
from spikecore.kernels._feedback_call import FeedbackCall, Gradients, Results, Wanted, filling_backward, filling_forward
from spikecore.kernels._launches import Launch, Launcher
from spikecore.lang import Program


class FeedbackSteps:
    """One product and one launch for each step."""

    def __init__(self, backend: Launcher, program: Program, spec: Spec) -> None:
        self.backend, self.program = backend, program
        learn = tuple([name for name in spec.learn if name in program.params])
        #: What one step is compiled for.
        self.spec = replace(spec, steps=1, final=True, learn=learn, feedback=None)
        self.final = spec.final
        self._executions: Dict[Optional[int], Execution] = {}

    def _execution(self, steps: int) -> Execution:
        """What runs so many steps without feedback."""
        fixed = steps if steps <= MAX_STATIC_STEPS else None
        found = self._executions.get(fixed)
        if found is None:
            made = Execution(self.backend, self.program, replace(self.spec, steps=fixed))
            found = self._executions.setdefault(fixed, made)
        return found

    def _forward(self, steps: int, call: Call) -> Launch:
        launch = self._execution(steps).forward_launch(call, False)
        return filling_forward(launch) if self.backend.owns_outputs else launch

    def forward(self, fed: FeedbackCall, x: Tensor, save: bool) -> Results:
        """All steps of ``x``."""
        compute, (steps, *shape) = self.spec.compute, fed.shape
        new = x.new_empty
        out = new(fed.shape)
        us = new(fed.shape if save else [1, *shape])
        trace = [new(fed.shape, dtype=compute) for _ in fed.call.record]
        each = chunk_of(steps)
        count = max(1, steps // each) - 1 if save else 0
        states = range(len(self.program.states))
        kept = [new([count, *shape], dtype=compute) for _ in states] if count else []
        now: Sequence[Tensor] = fed.state
        # states come and go in turns in two sets of tensors; the first is that of the caller
        spare = [[new(shape, dtype=compute) for _ in states] for _ in range(min(2, steps))]
        launch, geometry = self._forward(1, fed.call), fed.geometry(1)
        product = _Product(fed, self.program.outputs[0].op == "spike")
        last = fed.first
        for t in range(steps):
            u = us[t if save else 0]
            torch.add(x[t], product(last), out=u)
            chunk, inside = divmod(t + 1, each)
            following = [one[chunk - 1] for one in kept] if kept and not inside and chunk <= count else spare[t % 2]
            last = out[t]
            traced = [one[t : t + 1] for one in trace]
            launch(geometry, (u[None],), now, fed.params, (last[None],), following, traced, ())
            now = following
        return out, list(now) if self.final else [], trace, [us, *kept] if save else []

    def backward(self, fed: FeedbackCall, kept: Sequence[Tensor], asked: Wanted) -> Gradients:
        """All steps, from the last to the first; ``kept`` is what :meth:`forward` kept."""
        compute, (steps, *shape) = self.spec.compute, fed.shape
        us, *checkpoints = kept
        new, program = us.new_empty, self.program
        traced = [k for k, grad in enumerate(asked.trace) if grad is not None]
        arrived = [name for name, grad in zip(program.states, asked.final) if grad is not None]
        live = program.reach((True,), tuple([fed.call.record[k] for k in traced]), arrived).live
        # of these it is read whether they are there: a state that no cotangent reaches has none, at every step
        grads: List[Optional[Tensor]] = [us, *[us if name in live else None for name in program.states]]
        grads += [None if grad is None else us for grad in asked.trace]
        wanted = (True, *[True] * len(program.states), *asked.learn)
        found = self._execution(1).gradients(fed.call, grads, wanted)
        launch = filling_backward(found.launch, len(found.learn)) if self.backend.owns_outputs else found.launch
        gus, to_out = new(us.shape), new([1, *shape])
        sets = [[new(shape, dtype=compute).zero_() for _ in program.states] for _ in range(2)]
        for first, grad in zip(sets[0], asked.final):
            if grad is not None:
                first.copy_(grad)
        sums: List[Optional[Tensor]] = [None] * len(found.learn)
        geometry, back = fed.geometry(1), _Back(fed, to_out)
        before: List[Sequence[Tensor]] = []
        start = steps
        for t in range(steps - 1, -1, -1):
            if t < start:
                start, before = self._again(fed, us, checkpoints, t)
            back(gus[t + 1] if t + 1 < steps else None, None if asked.output is None else asked.output[t])
            traces = [asked.trace[k][t : t + 1].contiguous() for k in traced]  # type: ignore[index]  # these are there
            final, initial = sets[(steps - 1 - t) % 2], sets[(steps - t) % 2]
            parts = launch(
                geometry, (us[t : t + 1],), before[t - start], fed.params, (), (to_out,),
                final if found.final else (), traces, (gus[t : t + 1],), initial,
            )  # fmt: skip
            if sums:
                sums = [part if total is None else total + part for total, part in zip(sums, parts)]
        each = iter(sums)
        return gus, sets[steps % 2], [next(each) if wants else None for wants in asked.learn]

    def _again(
        self, fed: FeedbackCall, us: Tensor, checkpoints: Sequence[Tensor], t: int
    ) -> Tuple[int, List[Sequence[Tensor]]]:
        """The first step of the chunk that step ``t`` ends, and the states before each of its steps."""
        shape = fed.shape[1:]
        each = chunk_of(fed.shape[0])
        # the last chunk has what the others leave over, so that none is short
        chunk = min(t // each, max(1, fed.shape[0] // each) - 1)
        start, new = chunk * each, us.new_empty
        first = [one[chunk - 1] for one in checkpoints] if chunk else fed.state
        steps = t - start
        if not steps:
            return start, [first]
        names, compute = self.program.states, self.spec.compute
        trace = [new([steps, *shape], dtype=compute) for _ in names]
        final = [new(shape, dtype=compute) for _ in names]
        launch = self._forward(steps, fed.call._replace(record=names))
        outputs = (new([steps, *shape]),)
        launch(fed.geometry(steps), (us[start:t],), first, fed.params, outputs, final, trace, ())
        return start, [first, *[[one[k] for one in trace] for k in range(steps)]]


def chunk_of(steps: int) -> int:
    """Steps between two checkpoints: the root of all, so that checkpoints and recomputed states are fewest together;
    more than a kernel is compiled for, so that chunks of all lengths have one kernel.
    """
    return max(MAX_STATIC_STEPS + 2, isqrt(steps))


class _Product:
    """What one step gives to the next: ``y @ W.T + b``, with the bits of ``torch.nn.functional.linear``; where spikes
    are multiplied as exact parts, with its accuracy (:mod:`spikecore.kernels._exact_product`).
    """

    def __init__(self, fed: FeedbackCall, spikes: bool) -> None:
        self.quick: Optional[SpikesTimes] = None
        batch = fed.first.shape[:-1].numel()
        if spikes and fed.first.dtype == fed.weight.dtype and is_quicker(fed.weight, batch, fed.shape[0]):
            self.quick = SpikesTimes(fed.weight, fed.bias, batch)
        # the output before the first step may be no spike
        self.first = fed.first
        self.weight, self.bias = fed.weight.t(), fed.bias
        self.shape, self.rows = fed.shape[1:], (-1, fed.shape[-1])
        like = torch.empty(self.shape, dtype=fed.weight.dtype, device=fed.weight.device)
        self.out = like.view(self.rows)

    def __call__(self, last: Tensor) -> Tensor:
        rows = last.view(self.rows).to(self.weight.dtype)
        if self.quick is not None and last is not self.first:
            return self.quick(rows).view(self.shape)
        if self.bias is None:
            torch.mm(rows, self.weight, out=self.out)
        else:
            torch.addmm(self.bias, rows, self.weight, out=self.out)
        return self.out.view(self.shape)


class _Back:
    """The cotangent of an output: what arrives, and what comes back from the next step."""

    def __init__(self, fed: FeedbackCall, out: Tensor) -> None:
        self.weight, self.rows, self.out = fed.weight, (-1, fed.shape[-1]), out

    def __call__(self, following: Optional[Tensor], arriving: Optional[Tensor]) -> None:
        if following is None:
            if arriving is None:
                self.out.zero_()
            else:
                self.out.copy_(arriving)
            return
        rows, out = following.view(self.rows), self.out.view(self.rows)
        if self.weight.dtype != out.dtype:
            out.copy_(rows.to(self.weight.dtype) @ self.weight)
            if arriving is not None:
                self.out += arriving
        elif arriving is None:
            torch.mm(rows, self.weight, out=out)
        else:
            torch.addmm(arriving.reshape(self.rows), rows, self.weight, out=out)
