"""The steps of a call with feedback: one launch of a backend for all of them, or a product and a launch for each.

:class:`FeedbackLaunch` and :class:`FeedbackSteps` compute both directions, and know nothing of autograd
(:mod:`spikecore.kernels._recurrent`).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt, prod
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore._base.caches import CALLS, Recent
from spikecore.backend import MAX_STATIC_STEPS, Feedback, Spec
from spikecore.kernels._call import Call, Kernels, dense_of
from spikecore.kernels._feedback_call import Cotangents, FeedbackCall, Memory, replaced, through
from spikecore.kernels._layout import Launch
from spikecore.kernels._plan import Geometry, saved_states
from spikecore.kernels.spike_products import SpikesTimes, Split, is_quicker
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS
from spikecore.lang import Program

if TYPE_CHECKING:
    from spikecore.kernels._backend import KernelBackend


#: Groups of tensors that have time, and which one the parameters are.
_TIMED = ("inputs", "outputs", "trace", "grad_outputs", "grad_trace", "grad_inputs")
_PARAMS = FORWARD_GROUPS.index("params")
#: What a launch reads or fills at each step: a tensor of all, of one that stands for all, or a tensor for each.
Column = Union[Tensor, Sequence[Tensor]]
#: Outputs, final states, recorded states, and what is saved for backward.
Results = Tuple[List[Tensor], List[Tensor], List[Tensor], List[Tensor]]
#: Gradients of the drives in one tensor, of every input, of the first states, and of the parameters that are learnt, in
#: parts; and the sum over the steps of that of the input which is added to, if a launch gives it.
Gradients = Tuple[Tensor, List[Any], Sequence[Tensor], List[Optional[Tensor]], Optional[Tensor]]


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
        self.compute = spec.compute
        #: By what of a call decides its plan, which is quicker to compare than a plan.
        self._launches: Recent[Any, Launch] = Recent(CALLS)

    def forward(self, fed: FeedbackCall, inputs: Sequence[Tensor], memory: Memory, save: bool) -> Results:
        """All steps of the inputs."""
        kernels, geometry, shape = self.kernels, self._geometry(fed), fed.shape
        launch = self._launches.get_or(
            (fed.call, save), lambda: kernels.launch(kernels.forward_plan(fed.call, save), geometry)
        )
        compute, chunk = self.compute, kernels.chunk
        inputs = [value.contiguous() for value in inputs]
        (feedback,), ((weight, bias),) = fed.feedbacks, fed.matrices
        x = inputs[feedback.into]
        outputs = memory.outputs(fed, x, kernels.n_outputs)
        us = fed.drives.new(x, shape) if save else x
        final = [x.new_empty(shape[1:], dtype=compute) for _ in range(kernels.n_final)]
        trace = [x.new_empty(shape, dtype=compute) for _ in fed.call.record]
        to_save: List[Tensor] = []
        if save and chunk and not feedback.detach:
            states = saved_states(kernels.program, kernels.spec, fed.call.has_initial_state)
            to_save = [x.new_empty(((shape[0] - 1) // chunk, *shape[1:]), dtype=compute) for _ in states]
        biases = () if bias is None else (bias.contiguous(),)
        params = (*fed.params, weight.contiguous(), *biases, *self._lags(fed))
        state = (*fed.state, *fed.firsts) if fed.call.has_initial_state else ()
        drives = fed.drives.parts(us) if save else ()
        launch(geometry, inputs, state, params, outputs, final, trace, (*drives, *to_save))
        return outputs, final, trace, [us, *to_save] if save else []

    def backward(self, fed: FeedbackCall, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        """All steps, from the last to the first; ``saved`` is what :meth:`forward` saved."""
        (us, *checkpoints), kernels, geometry = saved, self.kernels, self._geometry(fed)
        output = fed.feedbacks[0].output
        every = (*cotangents.outputs, *cotangents.final, *cotangents.trace)
        present = tuple([grad is not None or k == output for k, grad in enumerate(every)])
        needs_inputs = cotangents.needed_inputs(kernels.n_inputs, fed.drives.numbers)
        needs = (*needs_inputs, *[cotangents.state] * len(fed.state), *cotangents.learn)
        launch = self._launches.get_or(
            (fed.call, present, needs),
            lambda: kernels.launch(kernels.backward_plan(fed.call, present, needs), geometry),
        )
        compute, step, new = self.compute, fed.shape[1:], us.new_empty
        grads = [None if grad is None else _steps(grad) for grad in cotangents.outputs]
        if grads[output] is None:
            grads[output] = new(step).zero_().expand(fed.shape)
        final = cotangents.final if any(grad is not None for grad in cotangents.final) else ()
        ends = [new(step, dtype=compute).zero_() if g is None else g.contiguous() for g in final]
        traces = [_steps(g) for g in cotangents.trace if g is not None]
        us, gu = us.contiguous(), fed.drives.new(us, fed.shape)
        others = [wants and k not in fed.drives.numbers for k, wants in enumerate(needs_inputs)]
        gus = fed.with_drives([new(fed.shape) if wants else None for wants in others], gu)
        to_state = [new(step, dtype=compute) for _ in range(kernels.n_states)] if cotangents.state else []
        params = (*fed.params, fed.weight.contiguous(), *self._lags(fed))
        filled: List[Any] = [*to_state]
        if fed.delays is not None:
            absent = [] if to_state else [None] * kernels.n_states
            filled += [*absent, new((fed.delays.rows, *step), dtype=compute).zero_()]
        sums = launch(
            geometry, fed.with_drives(fed.inputs, us), fed.state, params,
            (*[None] * len(fed.drives.numbers), *checkpoints),
            [grad for grad in grads if grad is not None], ends, traces,
            [grad for grad in gus if grad is not None], filled,
        )  # fmt: skip
        each = iter(sums if sums is not None else ())
        sums_of = [next(each) if wants else None for wants in cotangents.learn]
        return gu, gus, to_state, sums_of, next(each, None)

    def _lags(self, fed: FeedbackCall) -> Tuple[Tensor, ...]:
        """Delays as numbers of arithmetic, and behind them how many steps may still come back."""
        if fed.delays is None:
            return ()
        return (torch.nn.functional.pad(fed.delays.lags.to(self.compute), (0, 1), value=fed.delays.rows),)

    def _geometry(self, fed: FeedbackCall) -> Geometry:
        # behind the parameters stand up to three tensors
        channels = (*fed.channels, *[(0, 0)] * 3) if fed.channels else ()
        return Geometry(fed.shape[0], prod(fed.shape[1:]), channels)


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
        plan = replace(kernels.forward_plan(call, False), side_by_side=fed.beside)
        launch = kernels.launch(plan, fed.geometry(steps))
        return filling(launch, 4) if self.backend.owns_outputs else launch

    def forward(self, fed: FeedbackCall, inputs: Sequence[Tensor], memory: Memory, save: bool) -> Results:
        """All steps of the inputs."""
        x, program = inputs[fed.drives.numbers[0]], self.program
        compute, (steps, *shape) = self.spec.compute, fed.shape
        new = x.new_empty
        outputs = memory.outputs(fed, x, len(program.outputs))
        # of a call without gradients one step is kept
        us = fed.drives.new(x, (steps if save else 1, *shape))
        trace = [new(fed.shape, dtype=compute) for _ in fed.call.record]
        each = chunk_of(fed)
        is_constant = all(feedback.detach for feedback in fed.feedbacks)
        count = max(1, steps // each) - 1 if save and not is_constant else 0
        states = range(len(program.states))
        checkpoints = [new([count, *shape], dtype=compute) for _ in states] if count else []
        # states come and go in turns in two sets of tensors; the first is that of the caller
        spare = [[new(shape, dtype=compute) for _ in states] for _ in range(min(2, steps))]
        following = [[spare[t % 2][k] for t in range(steps)] for k in states]
        for values, saved in zip(following, checkpoints):
            values[each - 1 : each * count : each] = saved.unbind(0)
        current = [[first, *values] for first, values in zip(fed.state, following)]
        counts = (len(fed.inputs), len(states), 0, len(outputs), len(states), len(trace), 0)
        of_steps = Stepwise(self._forward(fed, fed.call, 1), fed.geometry(1), FORWARD_GROUPS, counts, self.backend)
        columns = [*fed.with_drives(fed.inputs, us), *current, *outputs, *following, *trace]
        launch = of_steps(columns, fed.params, steps)
        of_outputs = {output: fed.rows(outputs[output]) for output in fed.backs}
        products = [
            _Product(fed, number, us, of_outputs[feedback.output], self._split(feedback))
            for number, feedback in enumerate(fed.feedbacks)
        ]
        added = [product for product in products if product.is_direct and fed.delays is None]
        adds, others = [each for product in added for each in product.adds], [p for p in products if p not in added]
        biases = _biases(fed, products)
        if save:
            _fill(us, fed, inputs, biases, slice(None))
        for t in range(steps):
            if not save:
                _fill(us, fed, inputs, biases, slice(t, t + 1))
            for drive, before, weight in adds:
                drive[t].addmm_(before[t], weight)
            for product in others:
                product(t, None if fed.delays is None else fed.delays.arriving(memory.history, t, 1)[0])
            launch(t)
        end = [values[-1] for values in current] if self.final else []
        return outputs, end, trace, [us, *checkpoints] if save else []

    def _split(self, feedback: Feedback) -> Optional[Split]:
        return self.backend.split if self.program.outputs[feedback.output].op == "spike" else None

    def backward(self, fed: FeedbackCall, saved: Sequence[Tensor], cotangents: Cotangents) -> Gradients:
        """All steps, from the last to the first; ``saved`` is what :meth:`forward` saved."""
        compute, (steps, *shape) = self.spec.compute, fed.shape
        us, *checkpoints = saved
        us, new, program = us.contiguous(), us.new_empty, self.program
        traced = [k for k, grad in enumerate(cotangents.trace) if grad is not None]
        arrived = [name for name, grad in zip(program.states, cotangents.final) if grad is not None]
        outputs = [grad is not None or k in fed.backs for k, grad in enumerate(cotangents.outputs)]
        live = program.reach(outputs, tuple([fed.call.record[k] for k in traced]), arrived).live
        # a state that no cotangent reaches has none, at every step
        present = [*outputs, *[name in live for name in program.states]]
        present += [grad is not None for grad in cotangents.trace]
        needs_inputs = cotangents.needed_inputs(len(program.inputs), fed.drives.numbers)
        plan = self.kernels(1).backward_plan(
            fed.call, present, (*needs_inputs, *[True] * len(program.states), *cotangents.learn)
        )
        plan = replace(plan, side_by_side=fed.beside)
        n, m, geometry = len(fed.inputs), len(program.states), fed.geometry(1)
        counts = (n, m, 0, 0, sum(outputs), m if plan.final else 0, len(traced), sum(needs_inputs), m)
        launch = self.kernels(1).launch(plan, geometry)
        launch = filling(launch, 2) if self.backend.owns_outputs else launch
        of_steps = Stepwise(launch, geometry, BACKWARD_GROUPS, counts, self.backend)
        gu, numbers = fed.drives.new(us, fed.shape), fed.drives.numbers
        others = [wants and k not in numbers for k, wants in enumerate(needs_inputs)]
        gus: List[Any] = [new(fed.shape) if wants else None for wants in others]
        sets = [[new(shape, dtype=compute).zero_() for _ in program.states] for _ in range(2)]
        for first, grad in zip(sets[0], cotangents.final):
            if grad is not None:
                first.copy_(grad)
        sums: List[Optional[Tensor]] = [None] * len(plan.learn)
        backs = {k: _Back(fed, k, gu, cotangents.outputs[k]) for k in fed.backs}
        adds = [each for back in backs.values() if back.is_direct for each in back.adds]
        indirect = [back for back in backs.values() if not back.is_direct]
        arriving = [None if grad is None else grad.contiguous() for grad in cotangents.outputs]
        arriving = replaced(arriving, fed.backs, [back.total for back in backs.values()])
        traces = [grad.contiguous() for grad in cotangents.trace if grad is not None]
        ends, starts = [[sets[(steps - t - k) % 2] for t in range(steps)] for k in (1, 0)]
        read, written = fed.with_drives(fed.inputs, us), fed.with_drives(gus, gu)
        stop = steps
        while stop:
            start, before = self._again(fed, us, checkpoints, stop - 1)
            chunk = slice(start, stop)
            columns = [value[chunk] for value in read]
            columns += [*before, *[grad[chunk] for grad in arriving if grad is not None]]
            columns += zip(*ends[chunk]) if plan.final else ()
            columns += [value[chunk] for value in (*traces, *written) if value is not None]
            launch = of_steps([*columns, *zip(*starts[chunk])], fed.params, stop - start)
            for t in range(stop - 1, start - 1, -1):
                for sums_of, drive, weight in adds if t + 1 < steps else ():
                    sums_of[t].addmm_(drive[t + 1], weight)
                for back in indirect:
                    back(t)
                parts = launch(t - start)
                if sums:
                    sums = [part if total is None else total + part for total, part in zip(sums, parts or ())]
            stop = start
        total = iter(sums)
        to_inputs = replaced(gus, numbers, fed.drives.parts(gu))
        return gu, to_inputs, sets[steps % 2], [next(total) if wants else None for wants in cotangents.learn], None

    def _again(
        self, fed: FeedbackCall, us: Tensor, checkpoints: Sequence[Tensor], t: int
    ) -> Tuple[int, List[Sequence[Tensor]]]:
        """The first step of the chunk that step ``t`` ends, and of each state the values before its steps."""
        shape, each = fed.shape[1:], chunk_of(fed)
        if each == 1 and checkpoints:
            return 0, [[value, *values] for value, values in zip(fed.state, checkpoints)]
        # the last chunk has what the others leave over, so that none is short
        chunk = min(t // each, max(1, fed.shape[0] // each) - 1)
        start, new = chunk * each, us.new_empty
        first = [values[chunk - 1] for values in checkpoints] if chunk else fed.state
        steps = t - start
        if not steps:
            return start, [[value] for value in first]
        names, compute = self.program.states, self.spec.compute
        trace = [new([steps, *shape], dtype=compute) for _ in names]
        final = [new(shape, dtype=compute) for _ in names]
        launch = self._forward(fed, Call(names, True), steps)
        outputs = [new([steps, *shape]) for _ in self.program.outputs]
        drives = [value[start:t] for value in fed.with_drives(fed.inputs, us)]
        launch(fed.geometry(steps), drives, first, fed.params, outputs, final, trace, ())
        return start, [[value, *values.unbind(0)] for value, values in zip(first, trace)]


def chunk_of(fed: FeedbackCall) -> int:
    """Steps between two checkpoints: the root of all, so that checkpoints and recomputed states are fewest together;
    more than a kernel is compiled for, so that chunks of all lengths have one kernel. Beside the drives of several
    inputs states are few, and none is computed again.
    """
    return 1 if len(fed.drives.numbers) > 1 else max(MAX_STATIC_STEPS + 2, isqrt(fed.shape[0]))


class Stepwise:
    """A launch of one step for many of them, bound where the backend can prepare it (:func:`dense_of`)."""

    def __init__(
        self, launch: Launch, geometry: Geometry, names: Sequence[str], counts: Sequence[int], backend: KernelBackend
    ) -> None:
        self.launch, self.geometry = launch, geometry
        self.timed = [name in _TIMED for name in names]
        self.ends = [(sum(counts[:k]), sum(counts[: k + 1])) for k in range(len(counts))]
        self.dense = dense_of(launch, geometry, counts, backend.owns_outputs)

    def __call__(self, columns: Sequence[Column], params: Sequence[Any], steps: int) -> Callable[[int], Any]:
        """The launch of each step by its number. ``columns``: so many of each group, ``[*N]`` at each step."""
        bind = getattr(self.dense, "steps", None)
        if bind is not None:
            return bind(columns, params, steps)  # type: ignore[no-any-return]  # the launch
        each = [tuple(column.unbind(0) if isinstance(column, Tensor) else column) for column in columns]
        rows = [*zip(*[values if len(values) == steps else values * steps for values in each])]
        dense = self.dense

        def launch(step: int) -> Any:
            sums = None if dense is None else dense(rows[step], params)
            return self._grouped(rows[step], params) if sums is None else sums

        return launch

    def _grouped(self, tensors: Sequence[Tensor], params: Sequence[Any]) -> Any:
        groups: List[Any] = [tensors[start:end] for start, end in self.ends]
        groups = [[value[None] for value in group] if time else group for group, time in zip(groups, self.timed)]
        groups[_PARAMS] = params
        return self.launch(self.geometry, *groups)


def _biases(fed: FeedbackCall, products: Sequence[_Product]) -> Dict[int, Tensor]:
    """The sum of the biases of each drive, of products that leave them out."""
    biases: Dict[int, Tensor] = {}
    for feedback, (_, bias), product in zip(fed.feedbacks, fed.matrices, products):
        if bias is not None and product.is_direct:
            for number, part in zip(feedback.inputs, bias.split(fed.shape[-1])):
                biases[number] = biases[number] + part if number in biases else part
    return biases


def _fill(us: Tensor, fed: FeedbackCall, inputs: Sequence[Tensor], biases: Dict[int, Tensor], steps: slice) -> None:
    """Put inputs and biases of some steps into the drives."""
    if fed.packed is not None:
        # not in parts, which takes longer
        x, none = fed.packed[steps], us.new_zeros(fed.shape[-1])
        each = [biases.get(number, none) for number in fed.drives.numbers]
        torch.add(x, torch.cat(each), out=us) if biases else us.copy_(x)
        return
    for u, number in zip(fed.drives.parts(us), fed.drives.numbers):
        if number in biases:
            torch.add(inputs[number][steps], biases[number], out=u)
        else:
            u.copy_(inputs[number][steps])


class _Product:
    """Feedback from one step to the next: ``y @ W.T``, added to drives that have the bias. Where the product has
    another dtype it is that of ``torch.nn.functional.linear``; where spikes are multiplied as exact parts, it has the
    accuracy of that (:class:`SpikesTimes`). ``split``: of a backend, where these are spikes.
    """

    def __init__(
        self,
        fed: FeedbackCall,
        number: int,
        us: Tensor,
        out: Sequence[Tensor],
        split: Optional[Split],
    ) -> None:
        (weight, bias), feedback = fed.matrices[number], fed.feedbacks[number]
        width, first = fed.shape[-1], fed.firsts[fed.backs.index(feedback.output)]
        self.rows, self.dtype, self.quick = (-1, width), weight.dtype, None
        batch = first.shape[:-1].numel()
        self.inside = 1 if fed.delays is None else fed.delays.rows
        if split is not None and first.dtype == weight.dtype and is_quicker(weight, batch, fed.shape[0]):
            self.quick = SpikesTimes(weight, bias, batch, split)
        self.is_direct = self.quick is None and first.dtype == weight.dtype
        before = [first.view(self.rows), *out]
        #: For each drive its rows at each step, the output of the step before, and its rows of the weight.
        self.adds = [(fed.rows(drive), before, part.t()) for drive, part in fed.pairs(number, us)]
        self.weight, self.bias = weight.t(), bias

    def __call__(self, step: int, late: Optional[Tensor]) -> None:
        """Add what comes back at a step. ``late``: with delays, the outputs that do."""
        drives, before, _ = self.adds[0]
        rows = before[step] if late is None else late.view(self.rows)
        if self.is_direct:
            drives[step].addmm_(rows, self.weight)
            return
        rows = rows.to(self.dtype)
        # an output before this call may be no spike
        if self.quick is not None and step >= self.inside:
            product = self.quick(rows)
        else:
            product = rows @ self.weight if self.bias is None else torch.addmm(self.bias, rows, self.weight)
        for (drives, *_), part in zip(self.adds, product.chunk(len(self.adds), 1)):
            drives[step].add_(part)


class _Back:
    """The cotangents of an output: what arrives, and added to it what comes back from the next step."""

    def __init__(
        self,
        fed: FeedbackCall,
        output: int,
        gu: Tensor,
        arriving: Optional[Tensor],
    ) -> None:
        self.total = gu.new_zeros(fed.shape) if arriving is None else gu.new_empty(fed.shape).copy_(arriving)
        self.steps, self.delays = fed.shape[0], fed.delays
        sent, self.rows = fed.sent(output, gu), fed.rows(self.total)
        self.is_direct = fed.delays is None and all(rows.dtype == gu.dtype for _, rows in sent)
        #: For each drive the sums of each step, its own cotangents, and its rows of a weight.
        self.adds = [(self.rows, fed.rows(drive), rows) for drive, rows in sent]
        #: With delays, what comes from each step, for earlier outputs.
        self.later = None if fed.delays is None else gu.new_zeros((self.steps + fed.delays.rows, *fed.shape[1:]))

    def __call__(self, step: int) -> None:
        """Add what comes back to the output of a step, where that is more than a product."""
        for total, drive, weight in self.adds if step + 1 < self.steps else ():
            came = through(drive[step + 1], weight)
            if self.later is None:
                total[step].add_(came)
            else:
                self.later[step + 1] = came.view_as(self.later[0])
        if self.delays is not None and self.later is not None:
            self.total[step] += self.delays.sent(self.later, step)
