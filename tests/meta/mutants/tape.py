"""A sound backend with a backward pass of its own: the base of mutants whose fault is in backward or in memory.

Forward keeps the state before each step; backward runs ``program.adjoint`` over them from the last step to the first.
Each method is a place where a mutant can go wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List

import torch

from spikecore.interpreter import through_statistics
from spikecore.lang import Node
from spikecore.lang.eager import StraightLine, number
from spikecore.testing._loopback import EVERYTHING, Loopback


class Tape:
    """A runner."""

    def __init__(self, program: Any, spec: Any) -> None:
        self.program, self.spec, self.compute = program, spec, spec.compute
        names, learn = program.params, (*spec.learn, *program.statistics[:2])
        self.learn = [name for name in names if name in learn]
        self.params = [Node("param", (), name) for name in names]
        self.rest = StraightLine(self.params, program.initial)
        self.step = StraightLine(program.leaves, [*program.outputs, *program.next])

    def back(self, outputs: Any, trace: Any, final: Any) -> Any:
        """One step backwards for the cotangents that arrive: one that does not is in no expression."""
        program = self.program
        adjoint = program.adjoint(self.learn, outputs, trace, final)
        cotangents = [Node("out_grad", (), k) for k in range(len(program.outputs))]
        cotangents += [Node("next_grad", (), name) for name in program.states]
        return StraightLine([*program.leaves, *cotangents], [*adjoint.inputs, *adjoint.states, *adjoint.params])

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        """See :meth:`spikecore.Backend.compile`. The start at rest is torch's, with its gradient."""
        like = inputs[0].new_empty((), dtype=self.compute)
        params = through_statistics(self.program, inputs[0], params)
        values = [self.value(p, like) for p in params]
        if state is None:
            state = [v.expand(inputs[0].shape[1:]) for v in self.rest(values, like)]
        found = Run.apply(self, record, *inputs, *state, *values)
        outputs, states = len(self.program.outputs), len(self.program.states)
        return tuple(found[:outputs]), tuple(found[outputs : outputs + states]), tuple(found[outputs + states :])

    def value(self, param: Any, like: Any) -> Any:
        """A parameter in the dtype of arithmetic."""
        return param.to(self.compute) if isinstance(param, torch.Tensor) else number(param, like)

    def split(self, tensors: Any) -> Any:
        """Inputs, states and parameters."""
        inputs, states = len(self.program.inputs), len(self.program.states)
        return tensors[:inputs], tensors[inputs : inputs + states], tensors[inputs + states :]

    def walk(self, tensors: Any) -> Any:
        """All steps forward: rows of outputs, and the states before each step and after the last."""
        inputs, now, values = self.split(tensors)
        like, shape = inputs[0].new_empty((), dtype=self.compute), inputs[0].shape[1:]
        rows: List[Any] = []
        states = [list(now)]
        for t in range(len(inputs[0])):
            given = [x[t].to(self.compute) for x in inputs]
            made = [value.expand(shape) for value in self.step([*given, *states[-1], *values], like)]
            rows.append(made[: len(self.program.outputs)])
            states.append(made[len(self.program.outputs) :])
        return rows, states

    def results(self, rows: Any, states: Any, x: Any, record: Any) -> Any:
        """Outputs, final state and trace of :meth:`walk`, each in memory of its own."""
        empty = x.new_empty(x.shape, dtype=self.compute)
        columns = list(zip(*rows)) or [()] * len(self.program.outputs)
        outputs = [(torch.stack(c) if c else empty).to(x.dtype) for c in columns]
        places = [self.program.states.index(name) for name in record]
        trace = [torch.stack([s[k] for s in states[1:]]) if rows else empty.clone() for k in places]
        return [*outputs, *(value.clone() for value in states[-1]), *trace]

    def forward(self, ctx: Any, record: Any, tensors: Any) -> Any:
        """All results; what backward needs is kept."""
        rows, states = self.walk(tensors)
        ctx.record = record
        self.keep(ctx, tensors, states)
        return self.results(rows, states, tensors[0], record)

    def keep(self, ctx: Any, tensors: Any, states: Any) -> None:
        """Keep the arguments and the state before each step."""
        ctx.save_for_backward(*tensors, *(value for row in states[1:-1] for value in row))

    def kept(self, ctx: Any) -> Any:
        """What :meth:`keep` kept: the arguments, and the states before each step."""
        count = len(self.program.leaves)
        saved = ctx.saved_tensors
        tensors, later = saved[:count], saved[count:]
        width = len(self.program.states)
        states = [list(later[k * width : (k + 1) * width]) for k in range(len(tensors[0]) - 1)]
        return tensors, [list(self.split(tensors)[1]), *states]

    def backward(self, ctx: Any, grads: Any) -> Any:
        """Cotangents of all arguments for those of all results, None for one that did not come."""
        tensors, states = self.kept(ctx)
        inputs, _, values = self.split(tensors)
        steps, shape = inputs[0].shape[0], inputs[0].shape[1:]
        like = inputs[0].new_empty((), dtype=self.compute)
        zero = like.new_zeros(()).expand(shape)
        outs, finals = len(self.program.outputs), len(self.program.states)
        carried = [self.incoming(g, zero) for g in grads[outs : outs + finals]]
        traces = dict(zip((self.program.states.index(name) for name in ctx.record), grads[outs + finals :]))
        back = self.back(*self.arriving(ctx, grads))
        found = [torch.empty(x.shape, dtype=x.dtype) for x in inputs]
        totals = [zero] * len(self.learn)
        for t in reversed(range(steps)):
            for k, trace in traces.items():
                carried[k] = carried[k] if trace is None else carried[k] + trace[t]
            now = [self.incoming(None if g is None else g[t], zero) for g in grads[:outs]]
            given = [x[t].to(self.compute) for x in inputs]
            made = [v.expand(shape) for v in back([*given, *states[t], *values, *now, *carried], like)]
            for row, value in zip(found, made):
                row[t] = value
            carried = self.carry(carried, made[len(inputs) : len(inputs) + finals], t)
            totals = [self.add(total, part, t) for total, part in zip(totals, made[len(inputs) + finals :])]
        summed = dict(zip(self.learn, totals))
        of_params = [
            self.total(summed[name], value) if name in summed else None
            for name, value in zip(self.program.params, values)
        ]
        return [*found, *carried, *of_params]

    def arriving(self, ctx: Any, grads: Any) -> Any:
        """Which cotangents there are: of each output, names of the recorded states, and of final states."""
        outs, finals = len(self.program.outputs), len(self.program.states)
        there = [g is not None for g in grads]
        trace = [name for name, of in zip(ctx.record, there[outs + finals :]) if of]
        return there[:outs], trace, [name for name, of in zip(self.program.states, there[outs:]) if of]

    def incoming(self, grad: Any, zero: Any) -> Any:
        """A cotangent in the dtype of arithmetic; one that does not arrive is a number that no expression reads."""
        return zero if grad is None else grad.to(self.compute)

    def carry(self, before: Any, now: Any, t: int) -> Any:
        """The cotangents of the states that go on to the step before."""
        return list(now)

    def add(self, total: Any, part: Any, t: int) -> Any:
        """What a parameter's gradient is after this step."""
        return total + part

    def total(self, sum_: Any, value: Any) -> Any:
        """The gradient of a parameter from that of every neuron."""
        return sum_.sum_to_size(value.shape)

    def again(self, ctx: Any, grads: Any) -> Any:
        """Backward that can be differentiated: forward again, with torch's graph."""
        tensors = self.kept(ctx)[0]
        wanted = [k for k, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        given = [t.view_as(t) if t.requires_grad else t for t in tensors]
        rows, states = self.walk(given)
        results = self.results(rows, states, given[0], ctx.record)
        pairs = [(r, g) for r, g in zip(results, grads) if g is not None and r.requires_grad]
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            [given[k] for k in wanted],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
        made = dict(zip(wanted, found))
        return [made.get(k) for k in range(len(tensors))]


class Run(torch.autograd.Function):
    """The border to autograd."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, record: Any, *tensors: Any) -> Any:
        """All results."""
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return tuple(tape.forward(ctx, record, tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Cotangents of all arguments."""
        run = ctx.tape.again if torch.is_grad_enabled() else ctx.tape.backward
        return (None, None, *run(ctx, grads))


class Taped(Loopback):
    """A backend of :class:`Tape`."""

    name = "taped"
    capabilities = replace(EVERYTHING, torch_compile=False)
    loop: Any = Tape
