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

from spikecore._base.context import is_autocast as is_autocast
from spikecore._base.context import is_plain
from spikecore.backend import Feedback, ParamValue, Runner, Spec, Tensors, one_step
from spikecore.lang import Node, Program, loop_invariant, topological
from spikecore.lang._plain import number
from spikecore.lang._program import UNBOUNDED, differentiable_leaves
from spikecore.lang.eager import TORCH, Functions, StraightLine, operands

#: Operations whose result is new memory, and whose derivative does not read it.
_FRESH = ("add", "sub", "mul", "div", "neg", "where", "select")


class Interpreter:
    """Evaluates a program: what depends on parameters alone once per call, the rest once per step."""

    def __init__(self, program: Program, spec: Spec, functions: Functions = TORCH) -> None:
        self.dtype, self.compute, self.final = spec.dtype, spec.compute, spec.final
        self.program, self.states = program, program.states
        self.ties = needed(program, spec.learn)
        n_moving = len(program.inputs) + len(program.states)
        moving, params = program.leaves[:n_moving], program.leaves[n_moving:]
        roots = [*program.outputs, *program.next]
        constants = [node for node in topological([*roots, *program.initial]) if node.op == "const"]
        fixed: Sequence[Node] = [*params, *constants, *loop_invariant(program.nodes)]
        self.initial = StraightLine(params, program.initial, functions)
        self.fixed = StraightLine(params, fixed, functions)
        self.step = StraightLine([*moving, *fixed], roots, functions)
        self.n_outputs = len(program.outputs)
        # a state that is an output, too, gets a node of its own in autograd's graph, where the gradients of later steps
        # are summed before that of the output is added
        self.shared = tuple(roots.count(node) > 1 for node in program.next)
        read = [operand for node in topological(roots) for operand in operands(node)]
        #: Whether an input is read more than once in a step.
        self.several = tuple(read.count(leaf) > 1 for leaf in moving[: len(program.inputs)])
        #: Whether the next value of a state is memory of its own that nothing else reads.
        self.fresh = tuple(
            node.op in _FRESH and node not in read and not shared for node, shared in zip(program.next, self.shared)
        )
        #: Whether the same holds of an output where no derivative is asked for.
        self.fresh_outputs = tuple(node.op in (*_FRESH, "spike") and roots.count(node) == 1 for node in program.outputs)
        self._fixed_values = _FixedValues()

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
        fixed, initial = self._fixed_values(params, like, self._before)
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

    def single_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """One step of plain tensors ``[*N]`` of a program without ties: :meth:`interpret` without time."""
        x, n = inputs[0], self.n_outputs
        like, shape = x if x.dtype == self.compute else x.new_empty((), dtype=self.compute), x.shape
        fixed, initial = self._fixed_values(params, like, self._before)
        states = state if state is not None else [value.expand(shape) for value in initial]
        # gradients of one input are summed apart from those that the caller's other uses of the tensor give
        xs = [(x.expand(shape) if several else x).to(self.compute) for x, several in zip(inputs, self.several)]
        results = [_full(value, shape) for value in self.step([*xs, *states, *fixed], like)]
        fresh = (False,) * n if torch.is_grad_enabled() else self.fresh_outputs
        return (
            tuple([_unshared(value.to(self.dtype), is_fresh) for value, is_fresh in zip(results, fresh)]),
            tuple([_unshared(value, is_fresh) for value, is_fresh in zip(results[n:], self.fresh)])
            if self.final
            else None,
        )

    def _before(self, values: Sequence[Tensor], like: Tensor) -> Tuple[List[Tensor], List[Tensor]]:
        """What depends on parameters alone: the values that every step reads, and those of the states at rest."""
        return self.fixed(values, like), self.initial(values, like)

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


#: What depends on parameters alone: the values that every step reads, and the initial states.
Fixed = Tuple[List[Tensor], List[Tensor]]


class _FixedValues:
    """Computes what depends on parameters alone. On a CPU the last result is used again for the same number objects."""

    def __init__(self) -> None:
        self._numbers: Dict[int, Tuple[float, Tensor]] = {}
        self._last: Optional[Tuple[Sequence[Any], Fixed]] = None

    def __call__(
        self,
        params: Sequence[ParamValue],
        like: Tensor,
        compute: Callable[[Sequence[Tensor], Tensor], Fixed],
    ) -> Fixed:
        """``compute(values, like)`` of the parameters as tensors of the dtype and on the device of ``like``."""
        if not (like.is_cpu and is_plain(like)):
            return compute([_as_tensor(value, like) for value in params], like)
        last = self._last
        # compared by identity, since 0.0 == -0.0
        if last is not None and all(map(operator.is_, last[0], params)):
            return last[1]
        values = [self._as_tensor(position, value, like) for position, value in enumerate(params)]
        if any(isinstance(value, Tensor) for value in params):
            return compute(values, like)
        with torch.inference_mode(False):
            fixed = compute(values, like)
        self._last = params, fixed
        return fixed

    def _as_tensor(self, position: int, value: ParamValue, like: Tensor) -> Tensor:
        if isinstance(value, Tensor):
            return _as_tensor(value, like)
        known = self._numbers.get(position)
        if known is None or known[0] is not value:
            with torch.inference_mode(False):  # what is made in inference mode cannot be saved for backward later
                known = self._numbers[position] = value, number(value, like)
        return known[1]


def _as_tensor(value: ParamValue, like: Tensor) -> Tensor:
    return value.to(like.dtype) if isinstance(value, Tensor) else number(value, like)


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


# Feedback through a matrix: a loop over steps, for runners that compute under autograd.


class FeedbackLoop:
    """A runner of ``program`` under a spec with :attr:`~spikecore.backend.Spec.feedback`.

    ``step`` is a runner of the same program under :func:`step_spec`, which computes one step after the other; between
    them the last output goes through the matrix by torch. Derivatives of any order are autograd's.
    """

    def __init__(self, program: Program, step: Runner, feedback: Feedback) -> None:
        self.program, self.step, self.feedback = program, step, feedback

    def __call__(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...], record: Tuple[str, ...]
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """See :meth:`spikecore.backend.Backend.compile`."""
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
        """What comes back of an output."""
        last = last.detach() if self.feedback.detach else last
        return F.linear(last.to(weight.dtype), weight, bias)


def step_spec(program: Program, spec: Spec) -> Spec:
    """The spec of one step of a program without its feedback."""
    learn = tuple([name for name in spec.learn if name in program.params])
    return replace(spec, steps=1, learn=learn, final=True, feedback=None)


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
        """Whether a tensor gets a gradient of zeros instead of none: states after the last step, then sources.

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
    """Whether the rules make a difference for a program: a derivative can be infinite, or a result reaches not all.

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
