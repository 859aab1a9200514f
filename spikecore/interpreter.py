"""The interpreter: a program run step by step with PyTorch operations, for devices that PyTorch itself computes on.

Rules of this module:

- One operation per node, in source order, from a table of functions (see :mod:`spikecore.lang.eager`).
- Nothing reads a value on the host, and shapes alone decide what is done: it can be traced.
- State is local to a call.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecore.backend import Feedback, ParamValue, Runner, Spec, Tensors, one_step
from spikecore.context import is_autocast, is_plain
from spikecore.lang import Node, Program, loop_invariant, topological
from spikecore.lang.eager import TORCH, Functions, StraightLine, number, operands
from spikecore.scan import is_any_length, scan

#: Operations whose result is new memory, and whose derivative does not read it.
FRESH = ("add", "sub", "mul", "div", "neg", "where", "select")


class Interpreter:
    """Evaluates a program: what depends on parameters alone once per call, the rest once per step."""

    def __init__(self, program: Program, spec: Spec, functions: Functions = TORCH) -> None:
        self.dtype, self.compute, self.final = spec.dtype, spec.compute, spec.final
        self.program, self.spec, self.states = program, spec, program.states
        n_moving = len(program.inputs) + len(program.states)
        moving, params = program.leaves[:n_moving], program.leaves[n_moving:]
        roots = [*program.outputs, *program.next]
        constants = [node for node in topological([*roots, *program.initial]) if node.op == "const"]
        fixed: Sequence[Node] = [*params, *constants, *loop_invariant(program.nodes)]
        #: Values that depend on parameters alone: those that every step reads, and the initial states.
        self.fixed, self.n_fixed = FixedValues(StraightLine(params, [*fixed, *program.initial], functions)), len(fixed)
        self.step = StraightLine([*moving, *fixed], roots, functions)
        self.n_outputs = len(program.outputs)
        # a state that is an output, too, gets a node of its own in autograd's graph, where the gradients of later steps
        # are summed before that of the output is added
        self.shared = tuple(roots.count(node) > 1 for node in program.next)
        read = [operand for node in topological(roots) for operand in operands(node)]
        #: True for a state whose next value is memory of its own, which nothing else reads.
        self.fresh = tuple(
            node.op in FRESH and node not in read and not shared for node, shared in zip(program.next, self.shared)
        )

    def interpret(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """One call, as that of a runner (see :meth:`spikecore.backend.Backend.compile`)."""
        device = inputs[0].device.type
        if not is_autocast(device):
            return self._interpret(inputs, state, params, record)
        # the arithmetic has its dtype already, and CPU autocast takes no other half type than its own
        with torch.autocast(device, enabled=False):
            return self._interpret(inputs, state, params, record)

    def _interpret(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        x, shape = inputs[0], inputs[0].shape[1:]
        # converted once, so that the parts of a 16-bit input's gradient add up in float32
        wide = [value.to(self.compute) for value in inputs]
        params = through_statistics(self.program, wide, params)
        like = x if x.dtype == self.compute else x.new_empty((), dtype=self.compute)
        plain = is_plain(x)
        values = self.fixed(params, like) if plain else self.fixed.line(as_tensors(params, like), like)
        fixed, initial = values[: self.n_fixed], values[self.n_fixed :]
        # initial values may be 0-d or per channel; from here on every state has the shape of one step
        states = list(state) if state is not None else [value.expand(shape) for value in initial]
        if is_any_length(x):
            return self._scanned(wide, states, fixed, record)
        outputs: List[List[Tensor]] = [[] for _ in range(self.n_outputs)]
        trace: Dict[str, List[Tensor]] = {name: [] for name in record}
        # without steps, unbind would have no results, which a saved program cannot have
        for xs in zip(*(value.unbind(0) for value in wide)) if x.shape[0] else ():
            results = self.step([*xs, *states, *fixed], like)
            following = results[self.n_outputs :]
            states = [v.expand(shape) if shared else full(v, shape) for v, shared in zip(following, self.shared)]
            for seen, value in zip(outputs, results):
                seen.append(full(value, shape).to(self.dtype))
            for name, value in zip(self.states, states):
                if name in trace:
                    trace[name].append(value)
        is_own = plain and x.shape[0] > 0
        return (
            tuple(_stack(seen, x) for seen in outputs),
            tuple([_unshared(value, is_own and is_fresh) for value, is_fresh in zip(states, self.fresh)])
            if self.final
            else None,
            tuple(_stack(trace[name], x).to(self.compute) for name in record),
        )

    def _scanned(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], fixed: Sequence[Tensor], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """The steps as one operation of an exported program."""
        n, traced = self.n_outputs, [self.states.index(name) for name in record]

        def step(carry: Sequence[Tensor], xs: Sequence[Tensor], constants: Sequence[Tensor]) -> Any:
            shape = xs[0].shape
            results = [full(value, shape) for value in self.step([*xs, *carry, *constants], xs[0])]
            following = results[n:]
            return following, (*[value.to(self.dtype) for value in results[:n]], *[following[i] for i in traced])

        final, rows = scan(step, states, inputs, fixed)
        return rows[:n], final if self.final else None, rows[n:]


class FixedValues:
    """Straight-line code of parameters, for plain tensors. A CPU takes the last result again for the same numbers."""

    def __init__(self, line: StraightLine) -> None:
        self.line = line
        self._last: Optional[Tuple[Sequence[Any], List[Tensor]]] = None

    def __call__(self, params: Sequence[ParamValue], like: Tensor) -> List[Tensor]:
        """The values in the dtype and on the device of ``like``."""
        # numbers are compared by identity, since 0.0 == -0.0
        if self._last is not None and like.is_cpu and all(map(operator.is_, self._last[0], params)):
            return self._last[1]
        if not like.is_cpu or any(isinstance(value, Tensor) for value in params):
            return self.line(as_tensors(params, like), like)
        with torch.inference_mode(False):  # what is made in inference mode cannot be saved for backward later
            values = self.line(as_tensors(params, like), like)
        self._last = params, values
        return values


def as_tensors(params: Sequence[ParamValue], like: Tensor) -> List[Tensor]:
    """Parameters in the dtype of ``like``, those that are numbers on its device."""
    return [value.to(like.dtype) if isinstance(value, Tensor) else number(value, like) for value in params]


def _unshared(value: Tensor, is_fresh: bool) -> Tensor:
    """A value for the caller, who may change it in place: itself if no other tensor shares its memory, else a copy."""
    # memory may be shared with an input, with a parameter, or with a value that backward reads
    return value if is_fresh and value.is_contiguous() else value.clone(memory_format=torch.contiguous_format)


def full(value: Tensor, shape: torch.Size) -> Tensor:
    """A value of one step, with a number for each neuron."""
    return value if value.shape == shape else value.expand(shape)


def _stack(values: List[Tensor], x: Tensor) -> Tensor:
    # T = 0: stay connected to the input, so that backward works
    return torch.stack(values) if values else x[:0].clone()


def through_statistics(
    program: Program, inputs: Sequence[Tensor], params: Tuple[ParamValue, ...]
) -> Tuple[ParamValue, ...]:
    """The parameters of a call, with mean and rstd of each input that ``program.normalised`` names as functions of that
    input; they have the values that were given. So a backend that computes under autograd has their derivatives.
    ``inputs`` are those of the call in the dtype of arithmetic.
    """
    wide = dict(zip(program.inputs, inputs))
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


# Feedback through a matrix: a loop over steps, for runners that compute under autograd.


class FeedbackLoop:
    """A runner of ``program`` under a spec with :attr:`~spikecore.backend.Spec.feedback`.

    ``step`` is a runner of the same program under :func:`step_spec`, which computes one step after the other; between
    them the last output goes through the matrix by torch. Derivatives of any order are autograd's.
    """

    def __init__(
        self,
        program: Program,
        step: Runner,
        feedback: Optional[Feedback] = None,
        further: Tuple[Feedback, ...] = (),
    ) -> None:
        self.program, self.step, self.feedbacks = program, step, (feedback or Feedback(), *further)
        self.backs, self.into = sorted({of.output for of in self.feedbacks}), [of.inputs for of in self.feedbacks]

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """Implementation of :meth:`spikecore.backend.Backend.compile`."""
        x, count, n = inputs[self.feedbacks[0].into], len(self.program.params), len(self.program.states)
        arguments = params[:count]
        weights: Any = params[count:]  # tensors
        delays: Any = weights[len(weights) - 2 * self.feedbacks[0].delays :]
        states = None if state is None else state[:n]
        rest = [torch.zeros_like(x[0])] * len(self.backs) if state is None else state[n:]
        # of each output that comes back the last one, and the past in front
        earlier: Dict[int, List[Tensor]] = {output: [last] for output, last in zip(self.backs, rest)}
        if delays:
            past = x.new_zeros((*rest[0].shape, delays[1])) if state is None else rest[-1]
            earlier[self.backs[0]] = [*past.to(x.dtype).unbind(-1), rest[0]]
        rows: List[List[Tensor]] = [[] for _ in self.program.outputs]
        traces: Dict[str, List[Tensor]] = {name: [] for name in record}
        each = iter(weights)
        matrices = [[next(each) for _ in range(1 + feedback.bias)] for feedback in self.feedbacks]
        for at in zip(*[value.unbind(0) for value in inputs]):
            drives = [*at]
            for feedback, numbers, matrix in zip(self.feedbacks, self.into, matrices):
                back = self.through(feedback, self.arriving(earlier[feedback.output], *delays), *matrix)
                # torch.split takes longer than a small step
                parts = (back,) if len(numbers) == 1 else back.chunk(len(numbers), -1)
                for into, part in zip(numbers, parts):
                    drives[into] = drives[into] + part
            outputs, states = one_step(self.step, tuple(drives), states, arguments)
            earlier = {output: [*values[1:], outputs[output]] for output, values in earlier.items()}
            for row, value in zip(rows, outputs):
                row.append(value)
            for name, value in zip(self.program.states, states or ()):
                if name in traces:
                    traces[name].append(value)
        return (
            tuple(map(torch.stack, rows)),
            (
                *(states or ()),
                *[values[-1].clone() for values in earlier.values()],
                *([torch.stack(earlier[self.backs[0]][:-1], -1)] if delays else ()),
            ),
            tuple([torch.stack(traces[name]) for name in record]),
        )

    def arriving(self, earlier: Sequence[Tensor], delay: Optional[Tensor] = None, longest: int = 0) -> Tensor:
        """The output that comes back, of those that there were."""
        if delay is None:
            return earlier[-1]
        return torch.stack([*earlier]).gather(0, (longest - delay).expand(1, *earlier[0].shape)).squeeze(0)

    def through(self, feedback: Feedback, last: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        """Feedback of an output: the linear layer of it."""
        last = last.detach() if feedback.detach else last
        return F.linear(last.to(weight.dtype), weight, bias)


def step_spec(program: Program, spec: Spec) -> Spec:
    """The spec of one step of a program without its feedback."""
    return replace(spec, steps=1, learn=spec.learnt(program), final=True, feedback=None, further=())
