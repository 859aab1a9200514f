"""The adjoint of a step as the backward kernel computes it.

Where its results are rounded to 16 bits and the step that is computed again has exact divisions, the kernel would wait
for arithmetic and not for memory. There the adjoint's own divisions may be off by two units in the last place of
float32, far below the rounding: one by parameters alone becomes a product with their reciprocal, any other one is
approximate. Spikes and states never depend on it.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, NamedTuple, Tuple

from spikecore.kernels import BackwardPlan, with_reciprocals
from spikecore.kernels.cut import smallest_cut
from spikecore.lang import Node, loop_invariant, topological


class Derivative(NamedTuple):
    """What one step backwards computes."""

    #: The gradient of each input, 0 where it is not wanted.
    inputs: Tuple[Node, ...]
    #: The cotangent of each carried state before the step, by its name.
    states: Dict[str, Node]
    #: What a step adds to the gradient of each learnt parameter.
    params: Tuple[Node, ...]
    #: Divisions that may be off by two units in the last place.
    approximate: FrozenSet[Node]

    @property
    def roots(self) -> Tuple[Node, ...]:
        """All that it computes."""
        return (*self.inputs, *self.states.values(), *self.params)

    @property
    def cut(self) -> Tuple[Node, ...]:
        """The fewest values of a forward step from which it can be computed."""
        return smallest_cut(self.roots)


def derivative(plan: BackwardPlan) -> Derivative:
    """The adjoint of a plan, with approximate divisions where they pay."""
    adjoint = plan.adjoint
    states = {n: node for n, node in zip(plan.program.states, adjoint.states) if n in plan.carried_cotangents}
    # what the forward kernel computes must come out the same here, bit for bit
    exact = frozenset(plan.program.nodes)
    # a step without divisions of its own has arithmetic to spare: the kernel waits for memory anyway
    busy = any(node.op == "div" for node in exact.difference(loop_invariant(plan.program.nodes)))
    if plan.dtype == plan.compute or not busy:
        return Derivative(adjoint.inputs, states, adjoint.params, frozenset())
    order = topological(plan.roots)
    fixed = {*loop_invariant(order), *(node for node in order if node.op in ("param", "const"))}
    new = with_reciprocals(order, exact, fixed)
    rewritten = topological(list(new.values()))
    # what is computed once, before the first step, costs nothing: it stays exact
    quick = frozenset(n for n in rewritten if n.op == "div") - exact - frozenset(loop_invariant(rewritten))
    return Derivative(
        tuple(new.get(node, node) for node in adjoint.inputs),
        {name: new.get(node, node) for name, node in states.items()},
        tuple(new.get(node, node) for node in adjoint.params),
        quick,
    )
