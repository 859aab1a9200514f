"""All steps of a plan as functions of JAX arrays: ``lax.scan`` forward, and the plan's own adjoint backwards.

Arrays are ``[T, *N]`` of all steps, ``[*N]`` of one, inputs and outputs in the dtype of memory, everything else in that
of arithmetic. Arrays may have more steps than a call: from step ``steps`` on, states and cotangents stay what they are.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import jax.numpy as jnp
import torch
from jax import lax

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore_jax.operations import Table, constants_of

Plan = Union[ForwardPlan, BackwardPlan]
#: JAX's names of the dtypes of a spec.
DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}
#: Arrays of one kind, such as one for each state.
Group = Sequence[Any]


class Values(NamedTuple):
    """The values that the steps of a call compute with.

    params: one for each parameter of the program, in the dtype of arithmetic, that broadcasts against ``[*N]``. shape:
    the sizes N. steps: how many steps the call has where arrays have more, else None.
    """

    table: Table
    params: Sequence[Any]
    shape: Tuple[int, ...]
    compute: Any
    steps: Any = None

    def whole(self, value: Any) -> Any:
        """A number, or a value that broadcasts, as one of each neuron."""
        return jnp.broadcast_to(jnp.asarray(self.table.lifted(value), self.compute), self.shape)

    def first(self, state: Group) -> List[Any]:
        """Initial value of a loop over steps: within ``shard_map`` it must vary over devices as the results do."""
        return [self.table.kept(value) for value in state]

    def real(self, t: Any, new: Group, old: Group) -> List[Any]:
        """The new values, or the old ones where the call has no step t."""
        if self.steps is None:
            return list(new)
        return [jnp.where(t < self.steps, one, other) for one, other in zip(new, old)]


def constants(plan: Plan) -> Tuple[float, ...]:
    """The numbers in the expressions of a plan."""
    roots = plan.roots if isinstance(plan, ForwardPlan) else [*plan.roots, *plan.adjoint.states]
    return constants_of([*roots, *plan.program.outputs, *plan.program.next, *plan.program.initial])


def initial(plan: ForwardPlan, values: Values) -> List[Any]:
    """The states at rest."""
    return [values.whole(value) for value in plan.initial_state(values.params, values.table)]


def forward(plan: ForwardPlan, values: Values, inputs: Group, state: Optional[Group]) -> Tuple[Group, Group, Group]:
    """Outputs of all steps, states after the last one, and those of ``plan.record`` after each; from rest without a
    ``state``.
    """
    recorded = [plan.program.states.index(name) for name in plan.record]
    stored, step = DTYPES[plan.dtype], _step(plan, values)

    def one(now: Group, each: Any) -> Any:
        outputs, following = step(now, each)
        return following, ([out.astype(stored) for out in outputs], [following[index] for index in recorded])

    first = initial(plan, values) if state is None else list(state)
    final, (outputs, trace) = lax.scan(one, values.first(first), _rows(inputs))
    return outputs, final, trace


def backward(
    plan: BackwardPlan,
    values: Values,
    inputs: Group,
    state: Optional[Group],
    grad_outputs: Group,
    grad_final: Group,
    grad_trace: Group,
) -> Tuple[Group, Group, Group]:
    """Gradients of the wanted inputs, of all first states, and of the parameters of ``plan.learn``, those as one number
    of each neuron, from the cotangents that the plan says arrive. All steps are computed again first.
    """
    traced = [plan.program.states.index(name) for name in plan.trace]
    stored, step = DTYPES[plan.dtype], _step(plan.forward, values)
    first = initial(plan.forward, values) if state is None else list(state)
    _, before = lax.scan(lambda now, each: (step(now, each)[1], now), values.first(first), _rows(inputs))
    zero = jnp.zeros(values.shape, values.compute)

    def one(carried: Any, each: Any) -> Any:
        (t, row), states, grads, traces = each
        cotangents, sums = carried
        arriving = list(cotangents)
        for index, grad in zip(traced, traces):
            arriving[index] = arriving[index] + grad
        x, grads = ([value.astype(values.compute) for value in group] for group in (row, grads))
        found = plan.backward_step(x, states, values.params, grads, arriving, values.table)
        of_inputs, of_states, of_params = ([values.whole(value) for value in group] for group in found)
        of_params = values.real(t, [total + part for total, part in zip(sums, of_params)], sums)
        of_states = values.real(t, of_states, cotangents)
        return (of_states, of_params), [value.astype(stored) for value in of_inputs]

    last = values.first([*grad_final] or [zero for _ in plan.program.states])
    rows = (_rows(inputs), before, list(grad_outputs), list(grad_trace))
    sums = values.first([zero for _ in plan.learn])
    (of_states, of_params), of_inputs = lax.scan(one, (last, sums), rows, reverse=True)
    return of_inputs, of_states, of_params


def _step(plan: ForwardPlan, values: Values) -> Callable[[Group, Any], Tuple[List[Any], List[Any]]]:
    def step(now: Group, each: Any) -> Tuple[List[Any], List[Any]]:
        t, row = each
        found = plan.forward_step([x.astype(values.compute) for x in row], now, values.params, values.table)
        outputs, following = ([values.whole(value) for value in group] for group in found)
        return outputs, values.real(t, following, now)

    return step


def _rows(inputs: Group) -> Any:
    return jnp.arange(inputs[0].shape[0]), list(inputs)
