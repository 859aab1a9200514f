"""The interpreter: a program run step by step with PyTorch operations, for devices that PyTorch itself computes on.

Rules of this module:

- One operation per node, in source order, from a table of functions (see :mod:`spikecore.lang.eager`).
- Nothing reads a value on the host, and shapes alone decide what is done: it can be traced.
- State is local to a call.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.autocast import is_autocast as is_autocast
from spikecore._cotangents import needed, tied
from spikecore._feedback import FeedbackLoop as FeedbackLoop
from spikecore._feedback import step_spec as step_spec
from spikecore.backend import ParamValue, Spec, Tensors
from spikecore.lang import Node, Program, loop_invariant, topological
from spikecore.lang._plain import Held, is_plain
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
        self.own = tuple(
            node.op in _FRESH and node not in read and not shared for node, shared in zip(program.next, self.shared)
        )
        #: Whether the same holds of an output where no derivative is asked for.
        self.own_outputs = tuple(node.op in (*_FRESH, "spike") and roots.count(node) == 1 for node in program.outputs)
        self._held = Held()

    def interpret(
        self,
        inputs: Tensors,
        state: Optional[Tensors],
        params: Tuple[ParamValue, ...],
        record: Tuple[str, ...],
        tie: bool = True,
    ) -> Tuple[Tensors, Optional[Tensors], Tensors]:
        """One call, as that of a runner (see :meth:`spikecore.backend.Backend.compile`).

        ``tie``: whether gradients begin as those of a kernel do (:mod:`spikecore._cotangents`), for which the device
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
        params = through_statistics(self.program, wide[0], params)
        like = x if x.dtype == self.compute else x.new_empty((), dtype=self.compute)
        fixed, initial = self._held(params, like, self._before)
        # initial values may be 0-d or per channel; from here on every state has the shape of one step
        now = list(state) if state is not None else [value.expand(shape) for value in initial]
        outputs: List[List[Tensor]] = [[] for _ in range(self.n_outputs)]
        trace: Dict[str, List[Tensor]] = {name: [] for name in record}
        for xs in zip(*(value.unbind(0) for value in wide)):
            results = self.step([*xs, *now, *fixed], like)
            following = results[self.n_outputs :]
            now = [v.expand(shape) if shared else _full(v, shape) for v, shared in zip(following, self.shared)]
            for seen, value in zip(outputs, results):
                seen.append(_full(value, shape).to(self.dtype))
            for name, value in zip(self.states, now):
                if name in trace:
                    trace[name].append(value)
        if tie and self.ties and x.shape[0] and is_plain(x):
            sources = self._sources(inputs, state, params)
            last = [seen[-1] for seen in outputs]
            last, traced, now = tied(self.program, record, self.final, last, now, sources)
            for seen, value in zip(outputs, last):
                seen[-1] = value
            for name, value in zip(record, traced):
                trace[name][-1] = value
        own = self.own if tie and not self.ties and x.shape[0] and is_plain(x) else (False,) * len(now)
        return (
            tuple(_stack(seen, x) for seen in outputs),
            tuple([_own_memory(value, is_own) for value, is_own in zip(now, own)]) if self.final else None,
            tuple(_stack(trace[name], x).to(self.compute) for name in record),
        )

    def single_step(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> Tuple[Tensors, Optional[Tensors]]:
        """One step of plain tensors ``[*N]`` of a program without ties: :meth:`interpret` without time."""
        x, n = inputs[0], self.n_outputs
        like, shape = x if x.dtype == self.compute else x.new_empty((), dtype=self.compute), x.shape
        fixed, initial = self._held(params, like, self._before)
        now = state if state is not None else [value.expand(shape) for value in initial]
        # gradients of one input are summed apart from those that the caller's other uses of the tensor give
        xs = [(x.expand(shape) if several else x).to(self.compute) for x, several in zip(inputs, self.several)]
        results = [_full(value, shape) for value in self.step([*xs, *now, *fixed], like)]
        own = (False,) * n if torch.is_grad_enabled() else self.own_outputs
        return (
            tuple([_own_memory(value.to(self.dtype), is_own) for value, is_own in zip(results, own)]),
            tuple([_own_memory(value, is_own) for value, is_own in zip(results[n:], self.own)]) if self.final else None,
        )

    def _before(self, values: Sequence[Tensor], like: Tensor) -> Tuple[List[Tensor], List[Tensor]]:
        """What depends on parameters alone: the values that every step reads, and those of the states at rest."""
        return self.fixed(values, like), self.initial(values, like)

    def _sources(
        self, inputs: Tensors, state: Optional[Tensors], params: Tuple[ParamValue, ...]
    ) -> List[Tuple[str, str, Tensor]]:
        """The tensors that a call begins with: kind of leaf, name, tensor."""
        program = self.program
        given = [("param", name, value) for name, value in zip(program.params, params) if isinstance(value, Tensor)]
        return [
            *(("input", name, x) for name, x in zip(program.inputs, inputs)),
            *(("state", name, value) for name, value in zip(program.states, state or ())),
            *given,
        ]


def _own_memory(value: Tensor, is_own: bool) -> Tensor:
    """A value for the caller, who may change it in place: itself if no other tensor shares its memory, else a copy."""
    # memory may be shared with an input, with a parameter, or with a value that backward reads
    return value if is_own and value.is_contiguous() else value.clone(memory_format=torch.contiguous_format)


def _full(value: Tensor, shape: torch.Size) -> Tensor:
    return value if value.shape == shape else value.expand(shape)


def _stack(values: List[Tensor], x: Tensor) -> Tensor:
    # T = 0: stay connected to the input, so that backward works
    return torch.stack(values) if values else x[:0].clone()


def through_statistics(program: Program, x: Tensor, params: Tuple[ParamValue, ...]) -> Tuple[ParamValue, ...]:
    """The parameters of a call, with mean and rstd of ``x`` as functions of ``x`` where ``program.statistics`` names
    them; they have the values that were given. So a backend that computes under autograd has their derivatives.
    ``x`` is the first input in the dtype of arithmetic.
    """
    if not (program.statistics and x.requires_grad):
        return params
    values = dict(zip(program.params, params))
    for name in program.statistics[:2]:
        if not isinstance(values[name], Tensor):
            raise TypeError(f"{program.name}: {name} is a number; statistics are tensors with one value per channel")
    mean, rstd = (torch.as_tensor(values[name]).detach() for name in program.statistics[:2])
    # all but the channel, time included; a parameter has one value along each
    over = [0, *(d + 1 for d, size in enumerate(mean.shape) if size == 1)]
    wide = x.to(mean.dtype)
    own = wide.mean(over, keepdim=True)
    variance = (wide - own).square().mean(over, keepdim=True).squeeze(0)
    own = own.squeeze(0)
    # a difference that is 0, so that the values are exactly those of the kernels
    values[program.statistics[0]] = mean + (own - own.detach())
    found = (rstd**-2 + (variance - variance.detach())) ** -0.5
    values[program.statistics[1]] = rstd + (found - found.detach())
    return tuple(values[name] for name in program.params)
