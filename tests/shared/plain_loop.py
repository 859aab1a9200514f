"""A plain backend: one loop over the steps forward, one backward. The tests of the suite plant faults in its lines."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Sequence, Tuple, Type

import torch
from torch import Tensor

from spikecore.backend import Backend, Capabilities, Runner, Spec, compute_dtype
from spikecore.interpreter import FeedbackLoop, step_spec, through_statistics
from spikecore.lang import Node, Program, topological
from spikecore.lang.eager import function_of, number, operands
from spikecore.testing import Collection

EVERYTHING = replace(Capabilities(**dict.fromkeys(Capabilities.__dataclass_fields__, True)), torch_compile=False)


class Loop:
    """A runner. It keeps the arguments of a call for backward, which runs the steps again."""

    def __init__(self, program: Program, spec: Spec) -> None:
        self.program, self.spec, self.dtype, self.compute = program, spec, spec.dtype, spec.compute
        computed = [name for row in program.normalised for name in (row.mean, row.rstd)]
        self.learn = [name for name in program.params if name in (*spec.learn, *computed)]
        self.orders: Dict[Tuple[Node, ...], Tuple[Node, ...]] = {}

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        """Runner of :meth:`spikecore.backend.Backend.compile`. The states at rest have autograd's gradient."""
        if self.program.normalised:
            inputs = [x.to(self.compute) for x in inputs]  # before the gradient's parts are added
        x = inputs[0]
        params = through_statistics(self.program, inputs, params)
        values = [self.parameter(p, kind, x) for p, kind in zip(params, self.spec.params)]
        if state is None:
            leaves = [Node("param", (), name) for name in self.program.params]
            rest = self.evaluate(self.program.initial, dict(zip(leaves, values)), -1, x)
            state = [value.expand(x.shape[1:]) for value in rest]
        results = Run.apply(self, record, *inputs, *state, *values)
        outputs, final = len(self.program.outputs), len(self.program.outputs) + len(self.program.states)
        return results[:outputs], results[outputs:final], results[final:]

    def one_step(self, inputs: Any, state: Any, params: Any) -> Any:
        """One step ``[*N]``: outputs and states after it."""
        outputs, final, _ = self([x.unsqueeze(0) for x in inputs], state, params, ())
        return tuple([out.squeeze(0) for out in outputs]), final

    def parameter(self, value: Any, kind: str, x: Tensor) -> Tensor:
        """A parameter in the dtype of arithmetic."""
        if not isinstance(value, Tensor):
            return number(value, x.new_empty((), dtype=self.compute))
        return value.to(self.compute)

    def read(self, x: Tensor, t: int) -> Tensor:
        """One step of an input."""
        return x[t].to(self.compute)

    def stack(self, rows: List[Tensor], x: Tensor) -> Tensor:
        """The values of all steps ``[T, *N]``."""
        return torch.stack(rows) if rows else x.new_empty(x.shape, dtype=self.compute)

    def evaluate(self, roots: Sequence[Node], values: Dict[Node, Tensor], t: int, x: Tensor) -> List[Tensor]:
        """The values of some nodes; ``values`` has those of the leaves, and gets the others."""
        roots = tuple(roots)
        if roots not in self.orders:
            self.orders[roots] = topological(roots)
        for node in self.orders[roots]:
            if node.op == "const":
                values[node] = number(float(node.attr), x.new_empty((), dtype=self.compute))
            elif node not in values:
                args = [values[operand] for operand in operands(node)]
                values[node] = self.operate(node, args)
        return [values[root] for root in roots]

    def operate(self, node: Node, args: List[Tensor]) -> Tensor:
        """The value of an operation, of its operands."""
        return function_of(node)(*args)

    def carry(self, before: List[Tensor], now: List[Tensor], t: int) -> List[Tensor]:
        """The values that go from step ``t`` on to the next."""
        return now

    def split(self, tensors: Sequence[Tensor]) -> Tuple[List[Tensor], List[Tensor], List[Tensor]]:
        """Inputs, states and parameters."""
        inputs, moving = len(self.program.inputs), len(self.program.inputs) + len(self.program.states)
        return list(tensors[:inputs]), list(tensors[inputs:moving]), list(tensors[moving:])

    def walk(self, tensors: Sequence[Tensor]) -> Tuple[List[Any], List[Any]]:
        """All steps: the outputs of each, and the states before each and after the last."""
        inputs, now, params = self.split(tensors)
        shape, steps = inputs[0].shape[1:], len(inputs[0])
        rows, states = [], [now]
        for t in range(steps):
            at = [self.read(x, t) for x in inputs]
            values = dict(zip(self.program.leaves, [*at, *now, *params]))
            made = self.evaluate([*self.program.outputs, *self.program.next], values, t, at[0])
            made = [value.expand(shape) for value in made]
            out, after = made[: len(self.program.outputs)], made[len(self.program.outputs) :]
            now = self.carry(now, after, t)
            rows.append(out)
            states.append(now)
        return rows, states

    def forward(self, tensors: Sequence[Tensor], record: Sequence[str]) -> List[Tensor]:
        """Outputs, final states and recorded states, each in memory of its own."""
        rows, states = self.walk(tensors)
        x = tensors[0]
        outputs = [self.stack([row[k] for row in rows], x) for k in range(len(self.program.outputs))]
        outputs = [value.to(self.dtype) for value in outputs]
        final = [value.clone() for value in states[-1]]
        places = [self.program.states.index(name) for name in record]
        trace = [self.stack([row[k] for row in states[1:]], x) for k in places]
        return [*outputs, *final, *trace]

    def backward(self, tensors: Sequence[Tensor], record: Sequence[str], grads: Any) -> List[Any]:
        """Cotangents of all arguments for those of all results, of which some do not arrive (None)."""
        program = self.program
        inputs, _, params = self.split(tensors)
        states = self.walk(tensors)[1]
        steps, shape = len(inputs[0]), inputs[0].shape[1:]
        first, last = len(program.outputs), len(program.outputs) + len(program.states)
        of_outputs, of_final, of_trace = grads[:first], grads[first:last], grads[last:]
        arrives = [g is not None for g in of_outputs]
        recorded = [name for name, g in zip(record, of_trace) if g is not None]
        ends = [name for name, g in zip(program.states, of_final) if g is not None]
        adjoint = program.adjoint(self.learn, arrives, recorded, ends)
        zero = inputs[0].new_zeros((), dtype=self.compute).expand(shape)
        carried = [zero if g is None else g for g in of_final]
        found: List[List[Tensor]] = [[] for _ in inputs]
        sums = [zero for _ in self.learn]
        for t in reversed(range(steps)):
            for name, g in zip(record, of_trace):
                k = program.states.index(name)
                carried[k] = carried[k] if g is None else carried[k] + g[t]
            at = [self.read(x, t) for x in inputs]
            values = dict(zip(program.leaves, [*at, *states[t], *params]))
            arriving = {k: g[t].to(self.compute) for k, g in enumerate(of_outputs) if g is not None}
            values.update({Node("out_grad", (), k): g for k, g in arriving.items()})
            values.update({Node("next_grad", (), name): g for name, g in zip(program.states, carried)})
            made = self.evaluate([*adjoint.inputs, *adjoint.states, *adjoint.params], values, t, at[0])
            made = [value.expand(shape) for value in made]
            to_inputs, to_states, to_params = self.split(made)
            for row, value in zip(found, to_inputs):
                row.insert(0, value)
            carried = to_states
            sums = [total + part for total, part in zip(sums, to_params)]
        of_inputs = [self.stack(row, x).to(x.dtype) for row, x in zip(found, inputs)]
        totals = dict(zip(self.learn, sums))
        of_params = [
            totals[name].sum_to_size(value.shape) if name in totals else None
            for name, value in zip(program.params, params)
        ]
        return [*of_inputs, *carried, *of_params]


class Run(torch.autograd.Function):
    """A call as a node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, loop: Loop, record: Any, *tensors: Tensor) -> Any:
        """All results."""
        ctx.loop, ctx.record = loop, record
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return tuple(loop.forward(tensors, record))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Cotangents of all arguments; with ``create_graph`` every operation is differentiable again."""
        tensors = ctx.saved_tensors
        return (None, None, *ctx.loop.backward(tensors, ctx.record, grads))


class Feedback(FeedbackLoop):
    """A runner whose last output comes back through a matrix."""

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        """Counts the steps."""
        self.t = -1
        return super().__call__(inputs, state, params, record)

    def arriving(self, earlier: Any, delay: Any = None, longest: int = 0) -> Tensor:
        """The output that comes back."""
        return super().arriving(earlier, delay, longest)

    def through(self, feedback: Any, last: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
        """The sum that comes back."""
        self.t += feedback is self.feedbacks[0]
        return super().through(feedback, last, weight, bias)


class Plain(Backend):
    """The backend."""

    name = "plain"
    capabilities = EVERYTHING
    loop: Type[Loop] = Loop

    def compile(self, program: Program, spec: Spec) -> Runner:
        """A loop over the program."""
        if spec.feedback is not None:
            return Feedback(program, self.loop(program, step_spec(program, spec)), spec.feedback, spec.further)
        return self.loop(program, spec)

    def pack(self, numbers: Tensor, whole: Any) -> Any:
        """Bits of whole numbers."""
        return super().pack(numbers, whole)

    def unpack(self, bits: Any, whole: Any, count: int, dtype: torch.dtype) -> Tensor:
        """The numbers of bits."""
        return super().unpack(bits, whole, count, dtype)

    def sparse_product(self, x: Tensor, table: Tensor, bias: Any = None, always: bool = False) -> Tensor:
        """Rows of a table one after the other, in the dtype of arithmetic, from the bias on."""
        total = x.new_zeros((), dtype=compute_dtype(x.dtype)) if bias is None else bias.to(compute_dtype(x.dtype))
        for column, row in zip(x.t().to(total.dtype), table.to(total.dtype)):
            total = total + column[:, None] * row
        return total.to(x.dtype)


def added(patch: Any, backend: str, run: Callable[[Any], None], needs: Sequence[str] = ()) -> str:
    """Id of a case that the backend's plugin now has; ``installed`` provides the backend, in no distribution."""
    cases = Collection()
    cases.add(f"{backend}/own", "own", "something holds", run, needs)
    point = SimpleNamespace(group="spikecore.cases", name=backend, value="a test", load=lambda: cases)
    ours = SimpleNamespace(metadata={"Name": ""}, entry_points=[point])
    patch.setattr(importlib.metadata, "distributions", lambda: [ours])
    return f"{backend}/own"
