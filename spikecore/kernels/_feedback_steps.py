"""The steps of a call with feedback: one launch of a backend for all of them, or a product and a launch for each.

:class:`FeedbackCall` is what a call has, :class:`Cotangents` what arrives for its backward pass.
:class:`FeedbackLaunch` and :class:`FeedbackSteps` compute both directions, and know nothing of autograd
(:mod:`spikecore.kernels._recurrent`).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt, prod
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import MAX_STATIC_STEPS, Feedback, Spec
from spikecore.kernels._call import Call, Kernels
from spikecore.kernels._delays import Delays
from spikecore.kernels._layout import Launch
from spikecore.kernels._plan import Geometry, saved_states
from spikecore.kernels._spike_products import SpikesTimes, Split, is_quicker
from spikecore.lang import Program

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend


class Memory(NamedTuple):
    """Memory of the fed-back output: with delays it lies behind the outputs before the call."""

    history: Any
    output: Optional[Tensor]

    def outputs(self, fed: FeedbackCall, like: Tensor, count: int) -> List[Tensor]:
        """The outputs of a call, to be filled."""
        outputs = [like.new_empty(fed.shape) for _ in range(count)]
        if self.output is not None:
            outputs[fed.feedback.output] = self.output
        return outputs


class FeedbackCall(NamedTuple):
    """A call with feedback: its tensors, in natural layout."""

    #: The call of its steps, from a given state.
    call: Call
    #: ``[T, ..., H]``.
    shape: Tuple[int, ...]
    #: Inputs as given. Backward does not read the input that the feedback is added to.
    inputs: Sequence[Tensor]
    #: The first states of the program, and the output before the first step; contiguous. None of them at rest, if a
    #: launch takes all steps and there are no delays.
    state: Sequence[Tensor]
    first: Any
    #: Parameters as a kernel takes them.
    params: Tuple[Any, ...]
    channels: Tuple[Tuple[int, int], ...]
    weight: Tensor
    bias: Optional[Tensor]
    feedback: Feedback
    delays: Optional[Delays] = None

    def memory(self, steps: Optional[int] = None) -> Memory:
        """Memory that the fed-back output is written to."""
        if self.delays is None:
            return Memory(None, None)
        history = self.delays.history(self.first, self.shape[0] if steps is None else steps)
        # no view, which autograd would treat in a way of its own
        at, shape = self.delays.rows * history[0].numel(), (history.shape[0] - self.delays.rows, *self.shape[1:])
        return Memory(history, history.new_empty(0).set_(history.untyped_storage(), at, shape, history.stride()))

    def with_ends(
        self, to_out: Optional[Tensor], ends: Sequence[Optional[Tensor]]
    ) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The cotangent of the output that comes back, with those of the states that are outputs, too; and, in rows,
        what is for outputs before the call.
        """
        last, past = (*ends, None, None)[:2]
        if last is None and past is None:
            return to_out, None
        steps, total = (
            self.shape[0],
            self.inputs[self.feedback.into].new_zeros(self.shape) if to_out is None else to_out.contiguous().clone(),
        )
        if last is not None:
            total[-1] += last
        if past is None:
            return total, None
        rows = past.movedim(-1, 0)
        inside = min(steps - 1, len(rows))
        total[steps - 1 - inside : steps - 1] += rows[len(rows) - inside :]
        return total, rows[: len(rows) - inside]

    def to_first(self, gu: Optional[Tensor], of_past: Optional[Tensor], needed: bool) -> List[Optional[Tensor]]:
        """The gradients of the last output before the call and, with delays, of those before it. ``gu`` are those of
        the drive, None where the output is a constant.
        """
        if self.first is None:
            return []
        if self.delays is None:
            return [None if gu is None or not needed else _through(gu[0], self.weight)]
        if not needed or (gu is None and of_past is None):
            return [None, None]
        came = (
            self.first.new_zeros((1, *self.shape[1:])) if gu is None else _through(gu[: self.delays.rows], self.weight)
        )
        total = self.delays.to_earlier(came, of_past)
        return [total[-1], total[:-1].movedim(0, -1)]

    def geometry(self, steps: int) -> Geometry:
        """The sizes of a launch of so many steps."""
        return Geometry(steps, prod(self.shape[1:]), self.channels)


class Cotangents(NamedTuple):
    """The cotangents of a call, and which gradients are wanted."""

    outputs: Sequence[Optional[Tensor]]
    #: Of the program's states, and of those that were recorded.
    final: Tuple[Optional[Tensor], ...]
    trace: Tuple[Optional[Tensor], ...]
    #: True if the gradients of the first states are wanted; and flags of parameters that are tensors.
    state: bool
    learn: Tuple[bool, ...]
    #: Flags of the tensors of the call whose gradient is wanted, inputs first.
    needs: Sequence[bool]

    def needed_inputs(self, count: int, into: int) -> Tuple[bool, ...]:
        """Of which of so many inputs a kernel finds the gradient: always of that which is added to."""
        return tuple([wants or k == into for k, wants in enumerate(self.needs[:count])])


#: Outputs, final states, recorded states, and what is saved for backward.
Results = Tuple[List[Tensor], List[Tensor], List[Tensor], List[Tensor]]
#: Gradients of the inputs, of the first states, and of the parameters that are learnt, in parts; and the sum over the
#: steps of that of the input which is added to, if a launch gives it.
Gradients = Tuple[List[Any], Sequence[Tensor], List[Optional[Tensor]], Optional[Tensor]]


def filling(launch: Launch, count: int) -> Launch:
    """A launch of a backend with ``owns_outputs`` as one that fills its last ``count`` groups of contiguous tensors."""

    def fills(geometry: Geometry, *groups: Any) -> Any:
        steps, neurons = geometry[:2]
        flat = list(groups[:-count])
        for index, sizes in (
            (0, (steps, neurons)),
            (1, (neurons,)),
            (4, (steps, neurons)),
            (5, (neurons,)),
            (6, (steps, neurons)),
        ):
            if index < len(flat):
                flat[index] = tuple([value.view(sizes) for value in flat[index]])
        results = launch(geometry, *flat)
        for targets, values in zip(groups[-count:], results):
            for target, value in zip(targets, values):
                target.copy_(value.view_as(target))
        return results[count] if len(results) > count else None

    return fills


class FeedbackLaunch:
    """One launch for all steps, of a backend that feeds back by itself."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.kernels = Kernels(backend, program, replace(spec, learn=spec.learnt(program)))
        #: By what of a call decides its plan, which is quicker to compare than a plan.
        self._launches: Recent[Any, Launch] = Recent(CALLS)

    def forward(self, fed: FeedbackCall, inputs: Sequence[Tensor], memory: Memory, save: bool) -> Results:
        """All steps of the inputs."""
        kernels, geometry, shape = self.kernels, self._geometry(fed), fed.shape
        launch = self._launches.get_or(
            (fed.call, save), lambda: kernels.launch(kernels.forward_plan(fed.call, save), geometry)
        )
        compute, chunk = kernels.spec.compute, kernels.chunk
        inputs = [value.contiguous() for value in inputs]
        x = inputs[fed.feedback.into]
        outputs = memory.outputs(fed, x, kernels.n_outputs)
        final = [x.new_empty(shape[1:], dtype=compute) for _ in range(kernels.n_final)]
        trace = [x.new_empty(shape, dtype=compute) for _ in fed.call.record]
        to_save = [torch.empty_like(x)] if save else []
        if save and chunk and not fed.feedback.detach:
            states = saved_states(kernels.program, kernels.spec, fed.call.has_initial_state)
            to_save += [x.new_empty(((shape[0] - 1) // chunk, *shape[1:]), dtype=compute) for _ in states]
        bias = () if fed.bias is None else (fed.bias.contiguous(),)
        params = (*fed.params, fed.weight.contiguous(), *bias, *self._lags(fed))
        state = (*fed.state, fed.first) if fed.call.has_initial_state else ()
        launch(geometry, inputs, state, params, outputs, final, trace, to_save)
        return outputs, final, trace, to_save

    def backward(self, fed: FeedbackCall, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        """All steps, from the last to the first; ``saved`` is what :meth:`forward` saved."""
        (us, *checkpoints), kernels, geometry = saved, self.kernels, self._geometry(fed)
        into, output = fed.feedback.into, fed.feedback.output
        every = (*cotangents.outputs, *cotangents.final, *cotangents.trace)
        present = tuple([grad is not None or k == output for k, grad in enumerate(every)])
        needs_inputs = cotangents.needed_inputs(kernels.n_inputs, into)
        needs = (*needs_inputs, *[cotangents.state] * len(fed.state), *cotangents.learn)
        launch = self._launches.get_or(
            (fed.call, present, needs),
            lambda: kernels.launch(kernels.backward_plan(fed.call, present, needs), geometry),
        )
        compute, step, new = kernels.spec.compute, fed.shape[1:], us.new_empty
        grads = [None if grad is None else _steps(grad) for grad in cotangents.outputs]
        if grads[output] is None:
            grads[output] = new(step).zero_().expand(fed.shape)
        final = cotangents.final if any(grad is not None for grad in cotangents.final) else ()
        ends = [new(step, dtype=compute).zero_() if g is None else g.contiguous() for g in final]
        traces = [_steps(g) for g in cotangents.trace if g is not None]
        gus = [torch.empty_like(us, memory_format=torch.contiguous_format) if wants else None for wants in needs_inputs]
        to_state = [new(step, dtype=compute) for _ in range(kernels.n_states)] if cotangents.state else []
        params = (*fed.params, fed.weight.contiguous(), *self._lags(fed))
        filled: List[Any] = [*to_state]
        if fed.delays is not None:
            absent = [] if to_state else [None] * kernels.n_states
            filled += [*absent, new((fed.delays.rows, *step), dtype=compute).zero_()]
        sums = launch(
            geometry, _with(fed.inputs, into, us.contiguous()), fed.state, params, (None, *checkpoints),
            [grad for grad in grads if grad is not None], ends, traces,
            [gu for gu in gus if gu is not None], filled,
        )  # fmt: skip
        each = iter(sums if sums is not None else ())
        return gus, to_state, [next(each) if wants else None for wants in cotangents.learn], next(each, None)

    def _lags(self, fed: FeedbackCall) -> Tuple[Tensor, ...]:
        """Delays as numbers of arithmetic, and behind them how many steps may still come back."""
        if fed.delays is None:
            return ()
        return (torch.nn.functional.pad(fed.delays.lags.to(self.kernels.spec.compute), (0, 1), value=fed.delays.rows),)

    def _geometry(self, fed: FeedbackCall) -> Geometry:
        # behind the parameters stand up to three tensors
        channels = (*fed.channels, *[(0, 0)] * 3) if fed.channels else ()
        return Geometry(fed.shape[0], prod(fed.shape[1:]), channels)


def _with(inputs: Sequence[Tensor], into: int, drive: Tensor) -> List[Tensor]:
    """Inputs, with the drive in the place of that which is added to."""
    return [drive if k == into else value for k, value in enumerate(inputs)]


def _steps(grad: Tensor) -> Tensor:
    """A cotangent of all steps, each of them contiguous."""
    return grad if grad.is_contiguous() or (grad.shape[0] and grad[0].is_contiguous()) else grad.contiguous()


class FeedbackSteps:
    """One product and one launch for each step."""

    def __init__(self, backend: KernelBackend, program: Program, spec: Spec) -> None:
        self.backend, self.program = backend, program
        #: Spec of one step.
        self.spec = replace(spec, steps=1, final=True, learn=spec.learnt(program), feedback=None)
        self.final = spec.final
        self._kernels: Dict[Optional[int], Kernels] = {}

    def kernels(self, steps: int) -> Kernels:
        """Kernels of so many steps without feedback."""
        fixed = steps if steps <= MAX_STATIC_STEPS else None
        kernels = self._kernels.get(fixed)
        if kernels is None:
            made = Kernels(self.backend, self.program, replace(self.spec, steps=fixed))
            kernels = self._kernels.setdefault(fixed, made)
        return kernels

    def _forward(self, fed: FeedbackCall, call: Call, steps: int) -> Launch:
        kernels = self.kernels(steps)
        launch = kernels.launch(kernels.forward_plan(call, False), fed.geometry(steps))
        return filling(launch, 4) if self.backend.owns_outputs else launch

    def forward(self, fed: FeedbackCall, inputs: Sequence[Tensor], memory: Memory, save: bool) -> Results:
        """All steps of the inputs."""
        into, output, x = fed.feedback.into, fed.feedback.output, inputs[fed.feedback.into]
        compute, (steps, *shape) = self.spec.compute, fed.shape
        new = x.new_empty
        outputs = memory.outputs(fed, x, len(self.program.outputs))
        us = new(fed.shape if save else [1, *shape])
        trace = [new(fed.shape, dtype=compute) for _ in fed.call.record]
        each = chunk_of(steps)
        count = max(1, steps // each) - 1 if save and not fed.feedback.detach else 0
        states = range(len(self.program.states))
        checkpoints = [new([count, *shape], dtype=compute) for _ in states] if count else []
        current: Sequence[Tensor] = fed.state
        # states come and go in turns in two sets of tensors; the first is that of the caller
        spare = [[new(shape, dtype=compute) for _ in states] for _ in range(min(2, steps))]
        launch, geometry = self._forward(fed, fed.call, 1), fed.geometry(1)
        product = _Product(fed, self.backend.split if self.program.outputs[output].op == "spike" else None)
        last = fed.first
        for t in range(steps):
            u = us[t if save else 0]
            if fed.delays is not None:
                last = fed.delays.arriving(memory.history, t, 1)[0]
            torch.add(x[t], product(last, t > fed.delays.longest if fed.delays else t > 0), out=u)
            chunk, inside = divmod(t + 1, each)
            is_checkpoint = checkpoints and not inside and chunk <= count
            following = [values[chunk - 1] for values in checkpoints] if is_checkpoint else spare[t % 2]
            last = outputs[output][t]
            traced, results = [values[t : t + 1] for values in trace], [values[t : t + 1] for values in outputs]
            drives = _with([value[t : t + 1] for value in fed.inputs], into, u[None])
            launch(geometry, drives, current, fed.params, results, following, traced, ())
            current = following
        return outputs, list(current) if self.final else [], trace, [us, *checkpoints] if save else []

    def backward(self, fed: FeedbackCall, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        """All steps, from the last to the first; ``saved`` is what :meth:`forward` saved."""
        compute, (steps, *shape) = self.spec.compute, fed.shape
        us, *checkpoints = saved
        new, program, into, output = us.new_empty, self.program, fed.feedback.into, fed.feedback.output
        traced = [k for k, grad in enumerate(cotangents.trace) if grad is not None]
        arrived = [name for name, grad in zip(program.states, cotangents.final) if grad is not None]
        outputs = [grad is not None or k == output for k, grad in enumerate(cotangents.outputs)]
        live = program.reach(outputs, tuple([fed.call.record[k] for k in traced]), arrived).live
        # a state that no cotangent reaches has none, at every step
        present = [*outputs, *[name in live for name in program.states]]
        present += [grad is not None for grad in cotangents.trace]
        needs_inputs = cotangents.needed_inputs(len(program.inputs), into)
        plan = self.kernels(1).backward_plan(
            fed.call, present, (*needs_inputs, *[True] * len(program.states), *cotangents.learn)
        )
        launch = self.kernels(1).launch(plan, fed.geometry(1))
        launch = filling(launch, 2) if self.backend.owns_outputs else launch
        gus, to_out = [new(us.shape) if wants else None for wants in needs_inputs], new([1, *shape])
        gu: Any = gus[into]
        sets = [[new(shape, dtype=compute).zero_() for _ in program.states] for _ in range(2)]
        for first, grad in zip(sets[0], cotangents.final):
            if grad is not None:
                first.copy_(grad)
        sums: List[Optional[Tensor]] = [None] * len(plan.learn)
        geometry, back = fed.geometry(1), _Back(fed, to_out)
        before: List[Sequence[Tensor]] = []
        start = steps
        for t in range(steps - 1, -1, -1):
            if t < start:
                start, before = self._again(fed, us, checkpoints, t)
            arriving = [None if g is None else g[t : t + 1] for g in cotangents.outputs]
            back(t, gu[t + 1] if t + 1 < steps else None, arriving[output])
            arriving[output] = to_out
            grads = [g.contiguous() for g in arriving if g is not None]
            drives = _with([value[t : t + 1] for value in fed.inputs], into, us[t : t + 1])
            filled = [value[t : t + 1] for value in gus if value is not None]
            traces = [cotangents.trace[k][t : t + 1].contiguous() for k in traced]  # type: ignore[index]  # these are there
            final, initial = sets[(steps - 1 - t) % 2], sets[(steps - t) % 2]
            parts = launch(
                geometry, drives, before[t - start], fed.params, (), grads,
                final if plan.final else (), traces, filled, initial,
            )  # fmt: skip
            if sums:
                sums = [part if total is None else total + part for total, part in zip(sums, parts)]
        each = iter(sums)
        return gus, sets[steps % 2], [next(each) if wants else None for wants in cotangents.learn], None

    def _again(
        self, fed: FeedbackCall, us: Tensor, checkpoints: Sequence[Tensor], t: int
    ) -> Tuple[int, List[Sequence[Tensor]]]:
        """The first step of the chunk that step ``t`` ends, and the states before each of its steps."""
        shape = fed.shape[1:]
        each = chunk_of(fed.shape[0])
        # the last chunk has what the others leave over, so that none is short
        chunk = min(t // each, max(1, fed.shape[0] // each) - 1)
        start, new = chunk * each, us.new_empty
        first = [values[chunk - 1] for values in checkpoints] if chunk else fed.state
        steps = t - start
        if not steps:
            return start, [first]
        names, compute = self.program.states, self.spec.compute
        trace = [new([steps, *shape], dtype=compute) for _ in names]
        final = [new(shape, dtype=compute) for _ in names]
        launch = self._forward(fed, Call(names, True), steps)
        outputs = [new([steps, *shape]) for _ in self.program.outputs]
        drives = _with([value[start:t] for value in fed.inputs], fed.feedback.into, us[start:t])
        launch(fed.geometry(steps), drives, first, fed.params, outputs, final, trace, ())
        return start, [first, *[[values[k] for values in trace] for k in range(steps)]]


def chunk_of(steps: int) -> int:
    """Steps between two checkpoints: the root of all, so that checkpoints and recomputed states are fewest together;
    more than a kernel is compiled for, so that chunks of all lengths have one kernel.
    """
    return max(MAX_STATIC_STEPS + 2, isqrt(steps))


class _Product:
    """Feedback from one step to the next: ``y @ W.T + b``, with the bits of ``torch.nn.functional.linear``; where
    spikes are multiplied as exact parts, with its accuracy (:class:`SpikesTimes`). ``split``: of a backend, where these
    are spikes.
    """

    def __init__(self, fed: FeedbackCall, split: Optional[Split]) -> None:
        self.quick: Optional[SpikesTimes] = None
        batch = fed.first.shape[:-1].numel()
        if split is not None and fed.first.dtype == fed.weight.dtype and is_quicker(fed.weight, batch, fed.shape[0]):
            self.quick = SpikesTimes(fed.weight, fed.bias, batch, split)
        self.weight, self.bias = fed.weight.t(), fed.bias
        self.shape, self.rows = fed.shape[1:], (-1, fed.shape[-1])
        like = torch.empty(self.shape, dtype=fed.weight.dtype, device=fed.weight.device)
        self.out = like.view(self.rows)

    def __call__(self, last: Tensor, inside: bool) -> Tensor:
        """For an output of this call, or one before it, which may be no spike."""
        rows = last.view(self.rows).to(self.weight.dtype)
        if self.quick is not None and inside:
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
        #: With delays, what comes from each step, for earlier outputs.
        self.delays, self.later = fed.delays, None
        if fed.delays is not None:
            self.later = out.new_zeros((fed.shape[0] + fed.delays.rows, *fed.shape[1:]))

    def __call__(self, step: int, following: Optional[Tensor], arriving: Optional[Tensor]) -> None:
        if self.delays is not None and self.later is not None:
            if following is not None:
                self.later[step + 1] = _through(following, self.weight)
            sent = self.delays.sent(self.later, step)
            self.out.copy_(sent[None] if arriving is None else sent + arriving)
            return
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


def _through(step: Tensor, weight: Tensor) -> Tensor:
    """The cotangent of an output from that of the next input."""
    return (step.to(weight.dtype) @ weight).to(step.dtype)
