"""The functional form of a plan: one time step, forward and backward, as a pure function of values of any kind."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch

import refusals
import spikecore as sc
from integers import FLOATS
from kernel_loop import Gated
from spikecore.backend import Spec, Unsupported
from spikecore.kernels import BackwardPlan, ForwardPlan

T, SHAPE = 5, (3, 4)

#: A table of another library than torch: every operation that a test's programs and their adjoints use.
NUMPY: Dict[str, Any] = {
    **FLOATS,
    "exp": np.exp,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "spike": lambda u, strict, *derivative: ((u > 0.0) if strict else (u >= 0.0)).astype(u.dtype),
}


def plans(neuron: sc.Neuron) -> Tuple[ForwardPlan, BackwardPlan]:
    """The plans of a call in float64 with a given state, every cotangent and every gradient."""
    program, learn = neuron.program, tuple(neuron.learn)
    kinds = tuple("scalar" if name in learn else "number" for name in program.params)
    spec = Spec(torch.float64, None, kinds, learn, final=True)
    everything = (True,) * len(program.outputs), (), True, (True,) * len(program.inputs)
    return ForwardPlan(program, spec, (), True, True), BackwardPlan(program, spec, True, *everything, True, learn)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.5 - 0.25


@pytest.mark.parametrize("table", [None, NUMPY], ids=["torch", "numpy"])
@pytest.mark.parametrize("make", [lambda: sc.LIF(learn=("tau",)), lambda: Gated(learn=("tau",))], ids=["LIF", "Gated"])
def test_steps_make_a_call(make: Any, table: Any) -> None:
    """Values and gradients of a loop over the two functions are those of the torch backend and its autograd."""
    neuron = make().double()
    neuron.backend = "torch"
    program = neuron.program
    inputs = [drawn(T, *SHAPE, seed=k).requires_grad_() for k in range(len(program.inputs))]
    start = [drawn(*SHAPE, seed=9 + k).requires_grad_() for k in range(len(program.states))]
    out, end = neuron.run(*inputs, state=dict(zip(program.states, start)))
    results = [*(out if isinstance(out, tuple) else (out,)), *end.values()]
    cotangents = [drawn(*value.shape, seed=20 + k) for k, value in enumerate(results)]
    expected = torch.autograd.grad(results, [*inputs, *start, *neuron.parameters()], cotangents)

    def value(tensor: torch.Tensor) -> Any:
        return tensor.detach() if table is None else tensor.detach().numpy()

    named = neuron.named_values()
    params = [value(torch.as_tensor(named[name], dtype=torch.float64)) for name in program.params]
    forward, backward = plans(neuron)
    xs = [[value(x[t]) for x in inputs] for t in range(T)]
    states: List[Any] = [[value(one) for one in start]]
    outputs = []
    for x in xs:
        found, state = forward.forward_step(x, states[-1], params, table)
        outputs.append(found)
        states.append(state)
    n = len(program.outputs)
    carried: Any = [value(grad) for grad in cotangents[n:]]
    to_inputs: List[Any] = [None] * T
    to_params: Any = 0.0
    for t in reversed(range(T)):
        arriving = [value(grad[t]) for grad in cotangents[:n]]
        to_inputs[t], carried, (part,) = backward.backward_step(xs[t], states[t], params, arriving, carried, table)
        to_params = to_params + part.sum()
    mine = [
        *(np.stack(row) for row in zip(*outputs)),
        *states[-1],
        *(np.stack(row) for row in zip(*to_inputs)),
        *carried,
    ]
    for got, wanted in zip([*mine, to_params], [*results, *expected]):
        np.testing.assert_allclose(np.asarray(got), wanted.detach().numpy(), rtol=1e-11, atol=1e-11)


def test_a_state_at_rest_is_a_function_of_the_parameters() -> None:
    """Parameters are numbers, and tensors of the given kind."""
    neuron = Gated()
    forward, _ = plans(neuron)
    values = [0.5 if name == "start" else 2.0 for name in neuron.program.params]
    assert [float(value) for value in forward.initial_state(values, NUMPY)] == [0.5, 0.25]
    found = forward.initial_state(values, like=torch.empty((), dtype=torch.float64))
    assert [(value.dtype, float(value)) for value in found] == [(torch.float64, 0.5), (torch.float64, 0.25)]


test_refused = refusals.table(__file__, globals(), Unsupported)
