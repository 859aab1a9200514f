"""The functional form of a plan: one time step, forward and backward, as a pure function of values of any kind."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest
import torch
from torch import Tensor

import spikecore as sc
from kernel_loop import Gated, bound
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.lang import Program
from spikecore_torch.backend import TorchBackend

T, SHAPE = 5, (3, 4)

NEURONS = {
    "LIF": lambda **options: sc.LIF(learn=("tau",), **options),
    "Gated": lambda **options: Gated(learn=("tau", "start"), **options),
}

#: A table of another library than torch: every operation that a test's programs and their adjoints use.
NUMPY: Dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "exp": np.exp,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "abs": np.abs,
    "sign": np.sign,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": np.where,
    "select": lambda z, a, b: np.where(z != 0.0, a, b),
    "detach": lambda x: x,
    "spike": lambda u, strict, *derivative: ((u > 0.0) if strict else (u >= 0.0)).astype(u.dtype),
    **{op: getattr(np, name) for op, name in
       {"ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less", "eq": "equal"}.items()},
    "and": np.logical_and,
}  # fmt: skip


def plans(neuron: sc.Neuron, learn: Tuple[str, ...] = (), record: bool = True) -> Tuple[ForwardPlan, BackwardPlan]:
    """The plans of a call in float64 with a given state, every cotangent and every gradient."""
    program = neuron.program
    kinds = tuple("scalar" if name in learn else "number" for name in program.params)
    spec = Spec(torch.float64, None, kinds, learn, final=True)
    everything = (True,) * len(program.outputs), program.states if record else (), True, (True,) * len(program.inputs)
    return ForwardPlan(program, spec, program.states, True, True), BackwardPlan(
        program, spec, True, *everything, True, learn
    )


class Seen(TorchBackend):
    """The reference, which keeps the parameters that a call gave it."""

    params: Tuple[Any, ...]

    def compile(self, program: Program, spec: Spec) -> Any:
        runner = super().compile(program, spec)

        def run(inputs: Any, state: Any, params: Any, record: Any) -> Any:
            self.params = params
            return runner(inputs, state, params, record)

        return run


class Call:
    """A call of the torch backend with random inputs, states and cotangents, and its gradients by torch's autograd."""

    def __init__(self, make: Any) -> None:
        generator = torch.Generator().manual_seed(3)

        def rand(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64) * 1.5 - 0.25

        seen = Seen()
        neuron = bound(make().double(), seen)
        self.neuron, self.program = neuron, neuron.program
        self.learn = tuple(neuron.learn)
        self.inputs = [rand(T, *SHAPE).requires_grad_() for _ in self.program.inputs]
        self.state = [rand(*SHAPE).requires_grad_() for _ in self.program.states]
        learnt = dict(neuron.named_parameters())
        outputs, end, trace = neuron.run(
            *self.inputs, state=dict(zip(self.program.states, self.state)), record=self.program.states
        )
        self.outputs, self.final = list(outputs if isinstance(outputs, tuple) else (outputs,)), list(end.values())
        self.trace = [trace[name] for name in self.program.states]
        self.grad_outputs, self.grad_final, self.grad_trace = (
            [rand(*value.shape) for value in group] for group in (self.outputs, self.final, self.trace)
        )
        found = torch.autograd.grad(
            [*self.outputs, *self.final, *self.trace],
            [*self.inputs, *self.state, *learnt.values()],
            [*self.grad_outputs, *self.grad_final, *self.grad_trace],
        )
        n, m = len(self.inputs), len(self.inputs) + len(self.state)
        self.grad_inputs, self.grad_state, self.grad_params = found[:n], found[n:m], found[m:]
        self.params = seen.params


def walked(call: Call, as_value: Any, functions: Optional[Dict[str, Any]]) -> Tuple[List[Any], ...]:
    """All steps forward and then backward by the two functions of the plans: results, then gradients."""
    forward, backward = plans(call.neuron, call.learn)
    xs = [[as_value(x[t]) for x in call.inputs] for t in range(T)]
    params = [as_value(value) if isinstance(value, Tensor) else value for value in call.params]
    states = [[as_value(value) for value in call.state]]
    outputs = []
    for x in xs:
        found, state = forward.forward_step(x, states[-1], params, functions)
        outputs.append(found)
        states.append(state)
    carried: Sequence[Any] = [as_value(grad) for grad in call.grad_final]
    grad_inputs: List[Any] = [None] * T
    sums = [0.0 for _ in backward.learn]
    for t in reversed(range(T)):
        carried = [grad + as_value(trace[t]) for grad, trace in zip(carried, call.grad_trace)]
        arriving = [as_value(grad[t]) for grad in call.grad_outputs]
        grad_inputs[t], carried, parts = backward.backward_step(xs[t], states[t], params, arriving, carried, functions)
        sums = [total + part.sum() for total, part in zip(sums, parts)]
    return (
        [*zip(*outputs)],
        states[-1],
        [*zip(*states[1:])],
        [*zip(*grad_inputs)],
        list(carried),
        sums,
    )


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("name", NEURONS)
def test_steps_make_a_call(name: str, kind: str) -> None:
    """Values and gradients of a loop over the two functions are those of the torch backend and its autograd, by torch's
    functions and by a table of another library.
    """
    call = Call(NEURONS[name])
    as_value = (lambda value: value.detach()) if kind == "torch" else (lambda value: value.detach().numpy())
    outputs, final, trace, *grads = walked(call, as_value, None if kind == "torch" else NUMPY)
    stacked = [*outputs, *trace, *grads[0]]
    found = [np.stack([np.asarray(value) for value in row]) for row in stacked]
    found += [np.asarray(value) for value in (*final, *grads[1], *grads[2])]
    expected = [*call.outputs, *call.trace, *call.grad_inputs, *call.final, *call.grad_state, *call.grad_params]
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected):
        np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-11, atol=1e-11)
    if kind == "torch":
        assert all(torch.equal(torch.stack(row), out) for row, out in zip(outputs, call.outputs))


def test_a_state_at_rest_is_a_function_of_the_parameters() -> None:
    """As numbers, as tensors of the given kind, and as expressions."""
    neuron = Gated()
    forward, _ = plans(neuron)
    values = [0.5 if name == "start" else 2.0 for name in neuron.program.params]
    assert [float(value) for value in forward.initial_state(values, NUMPY)] == [0.5, 0.25]
    like = torch.empty((), dtype=torch.float64)
    found = forward.initial_state(values, like=like)
    assert [value.dtype for value in found] == [torch.float64] * 2
    assert [float(value) for value in found] == [0.5, 0.25]


def test_gradients_that_nobody_wants_and_cotangents_that_do_not_arrive_are_left_out() -> None:
    """Only what the plan has is taken and given."""
    program = Gated().program
    spec = Spec(torch.float64, None, ("number",) * len(program.params), (), final=False)
    plan = BackwardPlan(program, spec, True, (False, True), (), False, (False, True), True, ())
    one = torch.ones(2, dtype=torch.float64)
    params = [1.0 for _ in program.params]
    inputs, state, learnt = plan.backward_step([one, one], [one, one], params, [one], [one * 0, one * 0])
    assert len(inputs) == 1
    assert len(state) == 2
    assert learnt == []


def test_what_a_table_lacks_is_refused_by_name() -> None:
    """The operation, not a KeyError; a wrong number of values is said, too."""
    forward, _ = plans(sc.LIF())
    lacking = {op: function for op, function in NUMPY.items() if op != "select"}
    x = np.ones(2)
    params = [1.0 for _ in forward.program.params]
    with pytest.raises(Unsupported, match="none for the operation 'select'"):
        forward.forward_step([x], [x], params, lacking)
    with pytest.raises(ValueError, match=r"1 values for \d leaves; give one for each of: input 'x', state 'v'"):
        forward.forward_step([x], [], [])
