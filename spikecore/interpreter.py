"""The interpreter: a program run step by step with PyTorch operations, for devices that PyTorch itself computes on.

Rules of this module:

- One operation per node, in source order, from a table of functions (see :mod:`spikecore.lang.eager`).
- Nothing reads a value on the host, and shapes alone decide what is done: it can be traced.
- State is local to a call.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecore.backend import Feedback, ParamValue, Runner, Spec, Tensors, by_call, one_step
from spikecore.context import PLAIN as PLAIN_TYPES
from spikecore.context import is_autocast as is_autocast
from spikecore.context import is_plain
from spikecore.lang import Node, Program, loop_invariant, topological
from spikecore.lang._plain import number
from spikecore.lang._program import UNBOUNDED, differentiable_leaves
from spikecore.lang.eager import TORCH, Functions, PlainLine, StraightLine, operands, with_masks
from spikecore.lang.node import parameters

#: Operations whose result is new memory, and whose derivative does not read it.
_FRESH = ("add", "sub", "mul", "div", "neg", "where", "select")


class Interpreter:
    """Evaluates a program: what depends on parameters alone once per call, the rest once per step."""

    def __init__(self, program: Program, spec: Spec, functions: Functions = TORCH) -> None:
        self.dtype, self.compute, self.final, self.learn = spec.dtype, spec.compute, spec.final, spec.learn
        self.program, self.states = program, program.states
        self.ties = needed(program, spec.learn)
        n_moving = len(program.inputs) + len(program.states)
        moving, params = program.leaves[:n_moving], program.leaves[n_moving:]
        roots = [*program.outputs, *program.next]
        constants = [node for node in topological([*roots, *program.initial]) if node.op == "const"]
        fixed: Sequence[Node] = [*params, *constants, *loop_invariant(program.nodes)]
        #: Nodes that depend on parameters alone, flags of parameters that are tensors, and the values of the nodes.
        self.fixed_nodes, self.is_tensor = fixed, [kind != "number" for kind in spec.params]
        self.fixed = _FixedValues(
            StraightLine(params, fixed, functions), StraightLine(params, program.initial, functions)
        )
        self.step = StraightLine([*moving, *fixed], roots, functions)
        self.n_outputs = len(program.outputs)
        # a state that is an output, too, gets a node of its own in autograd's graph, where the gradients of later steps
        # are summed before that of the output is added
        self.shared = tuple(roots.count(node) > 1 for node in program.next)
        read = [operand for node in topological(roots) for operand in operands(node)]
        #: True for a state whose next value is memory of its own, which nothing else reads.
        self.fresh = tuple(
            node.op in _FRESH and node not in read and not shared for node, shared in zip(program.next, self.shared)
        )

    def interpret(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
        tie: bool = True,
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """One call, as that of a runner (see :meth:`spikecore.backend.Backend.compile`).

        ``tie``: whether gradients begin as those of a kernel do (:func:`tied`), for which the device
        must run the backward of an ``autograd.Function``.
        """
        device = inputs[0].device.type
        if not is_autocast(device):
            return self._interpret(inputs, state, params, record, tie)
        # the arithmetic has its dtype already, and CPU autocast takes no other half type than its own
        with torch.autocast(device, enabled=False):
            return self._interpret(inputs, state, params, record, tie)

    def _interpret(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
        tie: bool,
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        x, shape = inputs[0], inputs[0].shape[1:]
        # converted once, so that the parts of a 16-bit input's gradient add up in float32
        wide = [value.to(self.compute) for value in inputs]
        params = through_statistics(self.program, wide, params)
        like = x if x.dtype == self.compute else x.new_empty((), dtype=self.compute)
        fixed, initial = self.fixed(params, like)
        # initial values may be 0-d or per channel; from here on every state has the shape of one step
        states = list(state) if state is not None else [value.expand(shape) for value in initial]
        outputs: List[List[Tensor]] = [[] for _ in range(self.n_outputs)]
        trace: Dict[str, List[Tensor]] = {name: [] for name in record}
        for xs in zip(*(value.unbind(0) for value in wide)):
            results = self.step([*xs, *states, *fixed], like)
            following = results[self.n_outputs :]
            states = [v.expand(shape) if shared else _full(v, shape) for v, shared in zip(following, self.shared)]
            for seen, value in zip(outputs, results):
                seen.append(_full(value, shape).to(self.dtype))
            for name, value in zip(self.states, states):
                if name in trace:
                    trace[name].append(value)
        ties = tie and bool(x.shape[0]) and is_plain(x)
        if ties and self.ties:
            sources = self._sources(inputs, state, params)
            last = [seen[-1] for seen in outputs]
            last, traced, states = tied(self.program, record, self.final, last, states, sources)
            for seen, value in zip(outputs, last):
                seen[-1] = value
            for name, value in zip(record, traced):
                trace[name][-1] = value
        fresh = self.fresh if ties and not self.ties else (False,) * len(states)
        return (
            tuple(_stack(seen, x) for seen in outputs),
            tuple([_unshared(value, is_fresh) for value, is_fresh in zip(states, fresh)]) if self.final else None,
            tuple(_stack(trace[name], x).to(self.compute) for name in record),
        )

    def _sources(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> List[Tuple[str, str, Tensor]]:
        """The tensors that a call begins with: kind of leaf, name, tensor."""
        program = self.program
        return [
            *(("input", name, x) for name, x in zip(program.inputs, inputs)),
            *(("state", name, value) for name, value in zip(program.states, state or ())),
            *(("param", name, value) for name, value in zip(program.params, params) if isinstance(value, Tensor)),
        ]


#: Values that depend on parameters alone: those that every step reads, and the initial states.
Fixed = Tuple[List[Tensor], List[Tensor]]


class _FixedValues:
    """Computes what depends on parameters alone. On a CPU the last result is used again for the same number objects."""

    def __init__(self, fixed: StraightLine, initial: StraightLine) -> None:
        self.fixed, self.initial = fixed, initial
        self._numbers: Dict[int, Tuple[float, Tensor]] = {}
        self._last: Optional[Tuple[Sequence[Any], Fixed]] = None

    def __call__(self, params: Sequence[ParamValue], like: Tensor) -> Fixed:
        """The values in the dtype and on the device of ``like``."""
        return self.of_plain(params, like) if is_plain(like) else self._computed(_as_tensors(params, like), like)

    def of_plain(self, params: Sequence[ParamValue], like: Tensor) -> Fixed:
        """The same where ``like`` is plain."""
        if not like.is_cpu:
            return self._computed(_as_tensors(params, like), like)
        last = self._last
        # compared by identity, since 0.0 == -0.0
        if last is not None and all(map(operator.is_, last[0], params)):
            return last[1]
        if any(isinstance(value, Tensor) for value in params):
            return self._computed([self._known(*each, like) for each in enumerate(params)], like)
        with torch.inference_mode(False):
            fixed = self._computed([self._known(*each, like) for each in enumerate(params)], like)
        self._last = params, fixed
        return fixed

    def _computed(self, values: Sequence[Tensor], like: Tensor) -> Fixed:
        return self.fixed(values, like), self.initial(values, like)

    def _known(self, place: int, value: ParamValue, like: Tensor) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(like.dtype)
        known = self._numbers.get(place)
        if known is None or known[0] is not value:
            with torch.inference_mode(False):  # what is made in inference mode cannot be saved for backward later
                known = self._numbers[place] = value, number(value, like)
        return known[1]


def _as_tensors(params: Sequence[ParamValue], like: Tensor) -> List[Tensor]:
    return [value.to(like.dtype) if isinstance(value, Tensor) else number(value, like) for value in params]


def _unshared(value: Tensor, is_fresh: bool) -> Tensor:
    """A value for the caller, who may change it in place: itself if no other tensor shares its memory, else a copy."""
    # memory may be shared with an input, with a parameter, or with a value that backward reads
    return value if is_fresh and value.is_contiguous() else value.clone(memory_format=torch.contiguous_format)


def _full(value: Tensor, shape: torch.Size) -> Tensor:
    return value if value.shape == shape else value.expand(shape)


def _stack(values: List[Tensor], x: Tensor) -> Tensor:
    # T = 0: stay connected to the input, so that backward works
    return torch.stack(values) if values else x[:0].clone()


def through_statistics(
    program: Program, inputs: Union[Tensor, Sequence[Tensor]], params: Tuple[ParamValue, ...]
) -> Tuple[ParamValue, ...]:
    """The parameters of a call, with mean and rstd of each input that ``program.normalised`` names as functions of that
    input; they have the values that were given. So a backend that computes under autograd has their derivatives.
    ``inputs`` are those of the call in the dtype of arithmetic; the first one alone is enough for a backend without
    ``normalised_shortcut``.
    """
    wide = dict(zip(program.inputs, (inputs,) if isinstance(inputs, Tensor) else inputs))
    rows = [row for row in program.normalised if wide[row.input].requires_grad]
    if not rows:
        return params
    values = dict(zip(program.params, params))
    for row in rows:
        for name in (row.mean, row.rstd):
            if not isinstance(values[name], Tensor):
                raise TypeError(
                    f"{program.name}: {name} is a number; statistics are tensors with one value per channel"
                )
        values[row.mean], values[row.rstd] = _of_input(wide[row.input], values[row.mean], values[row.rstd])
    return tuple(values[name] for name in program.params)


def _of_input(x: Tensor, mean: Any, rstd: Any) -> Tuple[Tensor, Tensor]:
    """Mean and rstd with these values, as functions of an input."""
    mean, rstd = mean.detach(), rstd.detach()
    # all but the channel, time included; a parameter has one value along each
    over = [0, *(d + 1 for d, size in enumerate(mean.shape) if size == 1)]
    wide = x.to(mean.dtype)
    mean_of_x = wide.mean(over, keepdim=True)
    variance = (wide - mean_of_x).square().mean(over, keepdim=True).squeeze(0)
    mean_of_x = mean_of_x.squeeze(0)
    # a difference that is 0, so that the values are exactly those of the kernels
    rstd_of_x = (rstd**-2 + (variance - variance.detach())) ** -0.5
    return mean + (mean_of_x - mean_of_x.detach()), rstd + (rstd_of_x - rstd_of_x.detach())


# One step at a time, of tensors that nothing but autograd in reverse mode follows: one node of its graph, whose
# backward is the program's adjoint.


class SingleSteps:
    """Single steps ``[*N]`` of an interpreter's program.

    Values are those of :meth:`Interpreter.interpret`, bit for bit. Gradients are those of the adjoint, as kernels have
    them; derivatives of these are autograd's, by the interpreter.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter, self.program, self.final = interpreter, interpreter.program, interpreter.final
        self.dtype, self.compute = interpreter.dtype, interpreter.compute
        program = self.program
        self.n_inputs, self.n_outputs, self.n_states = len(program.inputs), len(program.outputs), len(program.states)
        self.roots = with_masks([*program.outputs, *program.next])
        leaves, n = program.leaves, self.n_inputs + self.n_states
        tensors = [leaf for leaf, is_tensor in zip(leaves[n:], interpreter.is_tensor) if is_tensor]
        numbers = [leaf for leaf in leaves[n:] if leaf not in tensors]
        of_numbers = [node for node in interpreter.fixed_nodes if not {*tensors}.intersection(parameters([node]))]
        #: Leaves of a step: inputs, states, parameters that are tensors, and what depends on numbers alone.
        self.step_leaves = [*leaves[:n], *tensors, *of_numbers]
        self.has_tensors = len(tensors) > 0
        self.of_numbers = _FixedValues(StraightLine(numbers, of_numbers), StraightLine(numbers, ()))
        self.step = PlainLine(self.step_leaves, self.roots)
        #: True for a result in memory of its own, which no other result shares.
        self.fresh = tuple(
            node.op in (*_FRESH, "spike", "masked") and self.roots.count(node) == 1 for node in self.roots
        )
        #: True if the first states depend on a learnt parameter, so that the step at rest is no single node.
        self.learnt_initial = any(node.attr in interpreter.learn for node in parameters(program.initial))
        self._differentiable: Dict[Any, _Differentiable] = {}

    def bind(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]
    ) -> Optional[Callable[..., Tuple[Tensors, Optional[Tensors]]]]:
        """A function of ``(inputs, state, params)`` for calls with tensors of these types, of which the same ones want
        gradients, and with or without a state as here. None if such a call is not one node of autograd's graph.
        """
        tensors = (*inputs, *(state or ()), *_tensors(params))
        if self.program.normalised or not is_plain(inputs[0]) or any(type(t) not in PLAIN_TYPES for t in tensors):
            return None
        wants = tuple([value.requires_grad for value in tensors])
        if not (torch.is_grad_enabled() and True in wants):
            return self._values
        if state is None and self.learnt_initial:
            return None
        key = (wants, state is not None)
        steps = self._differentiable.get(key)
        if steps is None:
            steps = self._differentiable[key] = _Differentiable(self, *key, [isinstance(p, Tensor) for p in params])
        return steps

    def _values(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """Outputs, and states after the step if they are asked for."""
        n, tensors = self.n_outputs, self.tensors(inputs, state, params)
        results = self.results(self.step(*self.leaves(tensors, state is not None, params)), tensors[0].shape)
        return tuple(results[:n]), tuple(results[n:]) if self.final else None

    def tensors(self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]) -> Tensors:
        """The tensors of a call: inputs, states if they are given, and parameters."""
        return (*inputs, *(state or ()), *(_tensors(params) if self.has_tensors else ()))

    def leaves(self, tensors: Tensors, has_state: bool, params: Sequence[ParamValue]) -> Tuple[List[Tensor], Tensor]:
        """The values of :attr:`step_leaves` for the tensors of a call, and a tensor of their dtype and device."""
        x, n, compute, numbers = tensors[0], self.n_inputs, self.compute, params
        like = x if x.dtype is compute else x.new_empty((), dtype=compute)
        if self.has_tensors:
            numbers = [value for value in params if not isinstance(value, Tensor)]
        if self.has_tensors or like is not x:
            tensors = _of_dtype(tensors, compute)
        if not has_state:
            initial = self.interpreter.fixed.of_plain(params, like)[1]
            tensors = (*tensors[:n], *[value.expand(x.shape) for value in initial], *tensors[n:])
        return [*tensors, *self.of_numbers.of_plain(numbers, like)[0]], like

    def results(self, values: Sequence[Tensor], shape: torch.Size) -> List[Tensor]:
        """Outputs and states as a caller gets them, from the values of a step: memory that nothing else shares."""
        results = [
            value
            if is_fresh and value.shape == shape and value.is_contiguous()
            else _full(value, shape).clone(memory_format=torch.contiguous_format)
            for value, is_fresh in zip(values, self.fresh)
        ]
        if self.dtype is not self.compute:
            results[: self.n_outputs] = [value.to(self.dtype) for value in results[: self.n_outputs]]
        return results if self.final else results[: self.n_outputs]


class _Differentiable:
    """Single steps of which some tensors want gradients: those in ``wants``, of inputs, states and parameters."""

    def __init__(self, steps: SingleSteps, wants: Sequence[bool], has_state: bool, is_tensor: Sequence[bool]) -> None:
        self.steps, self.has_state = steps, has_state
        self.n_moving = steps.n_inputs + steps.n_states * has_state
        program, known = steps.program, set(steps.step_leaves)
        self.cotangents = [Node("out_grad", (), index) for index in range(steps.n_outputs)]
        self.cotangents += [Node("next_grad", (), name) for name in program.states]
        self.tensor_params = [name for name, there in zip(program.params, is_tensor) if there]
        self._backward: Dict[Any, Tuple[List[int], PlainLine]] = {}
        computed = {node for node in topological(steps.roots, known=known) if node.op != "const"}
        every = self._roots(wants, (True,) * len(self.cotangents))
        read = [*every, *[arg for node in topological(every, known=known | computed) for arg in operands(node)]]
        #: Intermediate values that backward reads, beside the results, which a caller may change.
        self.intermediates = [node for node in dict.fromkeys(read) if node in computed and node not in steps.roots]
        self.step = PlainLine(steps.step_leaves, [*steps.roots, *self.intermediates])

    def _roots(self, needs: Sequence[bool], present: Sequence[bool]) -> List[Node]:
        """The wanted gradients where these cotangents arrive."""
        steps, program = self.steps, self.steps.program
        learn = [name for name, wants in zip(self.tensor_params, needs[self.n_moving :]) if wants]
        final = [name for name, there in zip(program.states, present[steps.n_outputs :]) if there]
        adjoint = program.adjoint(learn, present[: steps.n_outputs], (), final)
        moving = [node for node, wants in zip((*adjoint.inputs, *adjoint.states), needs[: self.n_moving]) if wants]
        return with_masks([*moving, *adjoint.params])

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Sequence[ParamValue]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        results = _Step.apply((self, params), *self.steps.tensors(inputs, state, params))
        n = self.steps.n_outputs
        return results[:n], results[n:] if self.steps.final else None

    def forward(self, tensors: Tensors, params: Sequence[ParamValue]) -> Tuple[List[Tensor], List[Tensor]]:
        """The results of a step, and what backward reads of it."""
        steps = self.steps
        values, n = self.step(*steps.leaves(tensors, self.has_state, params)), len(steps.roots)
        return steps.results(values[:n], tensors[0].shape), values[n:]

    def backward(
        self,
        params: Sequence[ParamValue],
        saved: Tensors,
        grads: Sequence[Optional[Tensor]],
        needs: Sequence[bool],
    ) -> Sequence[Optional[Tensor]]:
        """Gradients of a call's tensors, from the cotangents of its results that arrive."""
        count, compute = len(needs), self.steps.compute
        tensors, intermediates = saved[:count], saved[count:]
        if torch.is_grad_enabled():
            return self._again(tensors, params, grads, needs)
        present = tuple([grad is not None for grad in grads])
        key = (needs, present)
        places, line = self._backward.get(key) or self._backward.setdefault(key, self._adjoint(needs, present))
        leaves, like = self.steps.leaves(tensors, self.has_state, params)
        arriving = [grads[place] if place < len(grads) else None for place in places]
        cotangents = tuple([torch.zeros_like(leaves[0]) if g is None else g for g in arriving])
        if self.steps.dtype is not compute:
            cotangents = _of_dtype(cotangents, compute)
        gradients = iter(line([*leaves, *intermediates, *cotangents], like))
        shape = tensors[0].shape
        return [_fitted(next(gradients), value, shape) if wants else None for value, wants in zip(tensors, needs)]

    def _adjoint(self, needs: Sequence[bool], present: Sequence[bool]) -> Tuple[List[int], PlainLine]:
        """The adjoint, and the places of the cotangents that it reads."""
        roots = self._roots(needs, (*present, *[False] * (len(self.cotangents) - len(present))))
        leaves = [*self.steps.step_leaves, *self.intermediates]
        read = topological(roots, known=leaves)
        places = [place for place, node in enumerate(self.cotangents) if node in read]
        return places, PlainLine([*leaves, *[self.cotangents[place] for place in places]], roots)

    def _again(
        self,
        tensors: Tensors,
        params: Sequence[ParamValue],
        grads: Sequence[Optional[Tensor]],
        needs: Sequence[bool],
    ) -> Sequence[Optional[Tensor]]:
        """The gradients as functions of tensors and cotangents: the interpreter computes the step again."""
        local = tuple([value.view_as(value) for value in tensors])  # so that derivatives end here
        n, m = self.steps.n_inputs, self.n_moving
        values = iter(local[m:])
        params = tuple([next(values) if isinstance(value, Tensor) else value for value in params])
        state = local[n:m] if self.has_state else None
        outputs, end = by_call(self.steps.interpreter.interpret, local[:n], state, params)
        pairs = [(a, b) for a, b in zip((*outputs, *(end or ())), grads) if b is not None and a.requires_grad]
        targets = [value for value, wants in zip(local, needs) if wants]
        gradients: Sequence[Optional[Tensor]] = [None] * len(targets)
        if pairs:
            results, arriving = zip(*pairs)
            gradients = torch.autograd.grad(results, targets, arriving, create_graph=True, allow_unused=True)
        totals = iter([torch.zeros_like(a) if b is None else b for a, b in zip(targets, gradients)])
        return [next(totals) if wants else None for wants in needs]


class _Step(torch.autograd.Function):
    """A single step. Its first argument is all but tensors: the steps, and the parameters."""

    @staticmethod
    def forward(ctx: Any, context: Any, *tensors: Tensor) -> Tensors:
        steps, params = ctx.context = context
        results, intermediates = steps.forward(tensors, params)
        ctx.save_for_backward(*tensors, *intermediates)
        # an absent cotangent is not 0, which an infinite derivative would make NaN
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        steps, params = ctx.context
        return (None, *steps.backward(params, ctx.saved_tensors, grads, ctx.needs_input_grad[1:]))


def _tensors(params: Sequence[ParamValue]) -> Tensors:
    return tuple([value for value in params if isinstance(value, Tensor)])


def _of_dtype(values: Sequence[Tensor], dtype: torch.dtype) -> Tensors:
    return tuple([value if value.dtype is dtype else value.to(dtype) for value in values])


def _fitted(gradient: Tensor, value: Tensor, shape: torch.Size) -> Tensor:
    """A gradient of one number per neuron, summed over the neurons that share a value, in its shape and dtype."""
    if gradient.shape != shape:
        gradient = gradient.expand(shape)
    gradient = gradient if value.shape == shape else gradient.sum_to_size(value.shape)
    return gradient if gradient.dtype is value.dtype else gradient.to(value.dtype)


# Feedback through a matrix: a loop over steps, for runners that compute under autograd.


class FeedbackLoop:
    """A runner of ``program`` under a spec with :attr:`~spikecore.backend.Spec.feedback`.

    ``step`` is a runner of the same program under :func:`step_spec`, which computes one step after the other; between
    them the last output goes through the matrix by torch. Derivatives of any order are autograd's.
    """

    def __init__(self, program: Program, step: Runner, feedback: Optional[Feedback] = None) -> None:
        self.program, self.step, self.feedback = program, step, feedback or Feedback()

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Implementation of :meth:`spikecore.backend.Backend.compile`."""
        into, fed, count = self.feedback.into, self.feedback.output, len(self.program.params)
        x = inputs[into]
        arguments = params[:count]
        weights: Any = params[count:]  # tensors
        delays: Any = weights[len(weights) - 2 * self.feedback.delays :]
        weights = weights[: len(weights) - len(delays)]
        n = len(self.program.states)
        states = None if state is None else state[:n]
        last = torch.zeros_like(x[0]) if state is None else state[n]
        earlier: List[Tensor] = [last]  # the past, and the last output
        if delays:
            past = x.new_zeros((*last.shape, delays[1])) if state is None else state[n + 1]
            earlier = [*past.to(x.dtype).unbind(-1), last]
        rows: List[List[Tensor]] = [[] for _ in self.program.outputs]
        traces: Dict[str, List[Tensor]] = {name: [] for name in record}
        for at in zip(*[value.unbind(0) for value in inputs]):
            drive = at[into] + self.through(self.arriving(earlier, *delays), *weights)
            outputs, states = one_step(self.step, (*at[:into], drive, *at[into + 1 :]), states, arguments)
            earlier = [*earlier[1:], outputs[fed]]
            for row, value in zip(rows, outputs):
                row.append(value)
            for name, value in zip(self.program.states, states or ()):
                if name in traces:
                    traces[name].append(value)
        return (
            tuple(map(torch.stack, rows)),
            (*(states or ()), earlier[-1].clone(), *([torch.stack(earlier[:-1], -1)] if delays else ())),
            tuple([torch.stack(traces[name]) for name in record]),
        )

    def arriving(self, earlier: Sequence[Tensor], delay: Optional[Tensor] = None, longest: int = 0) -> Tensor:
        """The output that comes back, of those that there were."""
        if delay is None:
            return earlier[-1]
        return torch.stack([*earlier]).gather(0, (longest - delay).expand(1, *earlier[0].shape)).squeeze(0)

    def through(self, last: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        """Feedback of an output: the linear layer of it."""
        last = last.detach() if self.feedback.detach else last
        return F.linear(last.to(weight.dtype), weight, bias)


def step_spec(program: Program, spec: Spec) -> Spec:
    """The spec of one step of a program without its feedback."""
    return replace(spec, steps=1, learn=spec.learnt(program), final=True, feedback=None)


# Backward starts from the cotangents of a kernel. Autograd runs no backward of what nobody asked the gradient of, and
# gives None for what it did not reach. A kernel starts with a cotangent for every state it carries, 0 if none arrives,
# and writes zeros for what no path leads to. With these rules a zero cotangent that meets an infinite derivative is NaN
# on every backend, and no gradient is missing.


class _Ends(torch.autograd.Function):
    """The values after the last step, behind which further tensors get a zero gradient where the rules want one.

    The first ``count`` tensors are outputs, recorded states and final states after the last step; behind them stand the
    states again, and the tensors that the call began with.
    """

    @staticmethod
    def forward(ctx: Any, rules: _Rules, count: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.rules = rules
        ctx.behind = [(t.shape, t.dtype, t.device) for t in tensors[count:]]
        return tuple([tensor.view_as(tensor) for tensor in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Any:
        zero = ctx.rules.zero([grad is not None for grad in grads])
        behind = [
            torch.zeros(shape, dtype=dtype, device=device) if wants and is_zero else None
            for (shape, dtype, device), wants, is_zero in zip(ctx.behind, ctx.needs_input_grad[2 + len(grads) :], zero)
        ]
        return (None, None, *grads, *behind)


class _Rules:
    """Which of the tensors that the values are computed from get a gradient of zeros."""

    def __init__(self, program: Program, record: Tuple[str, ...], sources: Sequence[Tuple[str, str]]) -> None:
        self.program, self.record, self.sources = program, record, sources

    def zero(self, present: Sequence[bool]) -> List[bool]:
        """Flags of tensors that get a gradient of zeros instead of none: states after the last step, then sources.

        ``present`` says which values have a cotangent.
        """
        program, n = self.program, len(self.program.outputs)
        m = n + len(self.record)
        trace = tuple(name for name, there in zip(self.record, present[n:m]) if there)
        final = [name for name, there in zip(program.states, present[m:]) if there]
        reached = program.reach(present[:n], trace, final)
        live = [name in reached.live for name in program.states]
        # whether a path leads to a first state, and to the parameter that it is, depends on the number of steps
        return [*live, *(kind == "state" or Node(kind, (), name) not in reached.leaves for kind, name in self.sources)]


def needed(program: Program, learn: Sequence[str]) -> bool:
    """True if the rules make a difference for a program: a derivative can be infinite, or a result reaches not all.

    Neurons of ``+ - *``, division by parameters, and bounded functions need nothing, and the interpreter is as quick
    for them as torch's operations are. (An input that is infinite itself, at the last step, has a gradient of 0 there,
    not NaN.)
    """
    fixed = set(loop_invariant(program.nodes)) | {node for node in program.nodes if node.op in ("param", "const")}
    for node in program.nodes:
        if node.op in UNBOUNDED and not (node.op == "div" and node.args[1] in fixed):
            return True
    # within one step, since there may be no more
    sources = [leaf for leaf in program.leaves if leaf.op != "param" or leaf.attr in learn]
    reached = [differentiable_leaves([root]) for root in (*program.outputs, *program.next)]
    return any(leaf not in leaves for leaves in reached for leaf in sources)


def tied(
    program: Program,
    record: Tuple[str, ...],
    final: bool,
    outputs: Sequence[Tensor],
    states: Sequence[Tensor],
    sources: Sequence[Tuple[str, str, Tensor]],
) -> Tuple[List[Tensor], List[Tensor], List[Tensor]]:
    """Outputs, recorded and final states after the last step, with the cotangents that a kernel would have there.

    Nothing but autograd in reverse mode may follow the call: the tensors are plain ones. ``sources`` are the tensors
    that the call began with: kind of leaf, name, tensor.
    """
    traced = [states[program.states.index(name)] for name in record]
    values = [*outputs, *traced, *(states if final else ())]
    n, m = len(outputs), len(outputs) + len(record)
    learnt = [(kind, name, tensor) for kind, name, tensor in sources if tensor.requires_grad]
    if learnt and torch.is_grad_enabled():
        rules = _Rules(program, record, [(kind, name) for kind, name, _ in learnt])
        behind = [*states, *(tensor for _, _, tensor in learnt)]
        values = list(_Ends.apply(rules, len(values), *values, *behind))
    return values[:n], values[n:m], values[m:]
