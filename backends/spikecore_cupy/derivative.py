"""The adjoint of a step as the backward kernel computes it.

Where its results are rounded to 16 bits, the kernel would wait for arithmetic and not for memory: two states took 43
instructions of each step, and take 30. There the adjoint's own divisions may be off by two units in the last place of
float32, far below the rounding: one by parameters alone becomes a product with their reciprocal, any other one is
approximate. A product and the sum it is added to are rounded once. Spikes and states never depend on it. In kernels
with feedback every step waits for the one behind it, and so for each exact division of the adjoint (four of a thread,
one after the other, took a fifth of a step): there, too.

The adjoint of a program that normalises has twice the arithmetic, on two reads of the same numbers: there a product
and the sum it is added to are rounded once, and what is a factor of all parts of a sum is multiplied once, at the end.
(One neuron in bfloat16 took 42 instructions of each backward pass, more than the time of its memory; with both, 24.)
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import frexp
from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Sequence, Tuple, Union

from spikecore.kernels import BackwardPlan, ForwardPlan, with_reciprocals
from spikecore.kernels.writing import input_leaf
from spikecore.lang import Node, loop_invariant, topological

Plan = Union[ForwardPlan, BackwardPlan]
#: The operation a * b + c, rounded once. Programs have no such: backends would round them in different ways.
FUSED = "fma"


class Derivative(NamedTuple):
    """Results of one step backwards."""

    #: The gradient of each input, 0 where it is not wanted.
    inputs: Tuple[Node, ...]
    #: The cotangent of each carried state before the step, by its name.
    states: Dict[str, Node]
    #: Contribution of a step to the gradient of each learnt parameter.
    params: Tuple[Node, ...]
    #: Divisions that may be off by two units in the last place.
    approximate: FrozenSet[Node] = frozenset()
    #: Factor of a parameter's gradient, applied once its parts are added up; by its name.
    factors: Mapping[str, Node] = {}  # never written to

    @property
    def roots(self) -> Tuple[Node, ...]:
        """All that it computes."""
        return (*self.inputs, *self.states.values(), *self.params)


def derivative(plan: BackwardPlan) -> Derivative:
    """The adjoint of a plan, with approximate divisions where they pay."""
    divided = _divided(plan)
    # kernels with feedback that learn were measured with products and sums apart
    if normalises(plan) or (divided.approximate and not (plan.learn and plan.spec.feedback)):
        return _contracted(plan, divided)
    return divided


def inputs_in_halves(plan: Plan) -> Sequence[Node]:
    """The inputs that lie two numbers to a register, as they came from memory."""
    return () if plan.dtype == plan.compute else tuple(input_leaf(name) for name in plan.program.inputs)


def normalises(plan: Plan) -> bool:
    """True if a plan is of a program with statistics of its input, or of one that finds these, or their gradient."""
    return bool(plan.program.normalised or plan.program.seeds)


def _divided(plan: BackwardPlan) -> Derivative:
    adjoint = plan.adjoint
    states = {n: node for n, node in zip(plan.program.states, adjoint.states) if n in plan.carried_cotangents}
    # what the forward kernel computes must come out the same here, bit for bit
    exact = frozenset(plan.program.nodes)
    # a kernel with feedback waits for each step's arithmetic, whatever its numbers are rounded to
    if plan.spec.feedback is None and plan.dtype == plan.compute:
        return Derivative(adjoint.inputs, states, adjoint.params)
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


def _contracted(plan: BackwardPlan, divided: Derivative) -> Derivative:
    """The same derivative in fewer operations."""
    exact = frozenset(plan.program.nodes)
    order = topological(divided.roots)
    fixed = {*loop_invariant(order), *(node for node in order if node.op in ("param", "const"))}
    params, factors = list(divided.params), {}
    for k, (name, node) in enumerate(zip(plan.learn, params)):
        if plan.kinds[name] == "channel" and node.op == "mul" and node.args[1] in fixed and node.args[0] not in fixed:
            params[k], factors[name] = node.args
    roots = [*divided.inputs, *divided.states.values(), *params]
    order = topological(roots)
    uses: Counter[Node] = Counter(roots)
    for node in order:
        uses.update(node.args)
    new: Dict[Node, Node] = {}
    for node in order:
        args = tuple(new[arg] for arg in node.args)
        new[node] = node if node in exact or not args else Node(node.op, args, node.attr)
        if node.op == "sub" and node.args[0].attr == 0.0 and node not in exact:
            new[node] = Node("neg", args[1:])  # an argument's sign costs no operation
            continue
        if node.op not in ("add", "sub") or node in exact or node in fixed:
            continue
        # what another value is computed from, too, stays a product of its own
        products = [arg for arg in node.args if arg.op == "mul" and uses[arg] == 1 and arg not in exact | fixed]
        if products:
            new[node] = _fused(node, products[-1], new)
    return Derivative(
        tuple(new[node] for node in divided.inputs),
        {name: new[node] for name, node in divided.states.items()},
        tuple(new[node] for node in params),
        frozenset(new[node] for node in divided.approximate if node in new),
        factors,
    )


def _fused(node: Node, product: Node, new: Mapping[Node, Node]) -> Node:
    """An addition or a subtraction with a product among its arguments as one operation."""
    a, b = (new[arg] for arg in node.args)
    first, second = new[product].args
    if product == node.args[1]:
        return Node(FUSED, (Node("neg", (first,)) if node.op == "sub" else first, second, a))
    return Node(FUSED, (first, second, Node("neg", (b,)) if node.op == "sub" else b))


def repeated_divisions(roots: Sequence[Node]) -> FrozenSet[Node]:
    """Divisions of every step by what is the same at each: by parameters and constants, but for powers of two, by which
    a compiler multiplies.
    """
    order = topological(roots)
    before = {*loop_invariant(order)}
    fixed = {*before, *(node for node in order if node.op in ("param", "const"))}
    divisions = (node for node in order if node.op == "div" and node.args[1] in fixed and node not in before)
    return frozenset(node for node in divisions if not _power_of_two(node.args[1]))


def _power_of_two(node: Node) -> bool:
    return isinstance(node.attr, float) and frexp(node.attr)[0] in (0.5, -0.5)


# A division takes eight instructions, and a branch for numbers beside the usual, across which no other instruction is
# moved: the neurons of a thread are computed one after the other. Where a divisor is a power of two, the product with
# its reciprocal is the same number, and takes one.


def divisors(plan: Plan) -> Tuple[Node, ...]:
    """The parameters that are numbers of a call and that a step divides by."""
    numbers = {Node("param", (), name) for name, kind in plan.kinds.items() if kind == "number"}
    return tuple({n.args[1]: None for n in plan.program.nodes if n.op == "div" and n.args[1] in numbers})


@lru_cache(maxsize=1024)
def is_power_of_two(value: Any) -> bool:
    """True if every quotient by a number is the product with its reciprocal: both are exact, or rounded alike."""
    # so that the reciprocal is an ordinary float32
    return bool(2.0**-60 <= value <= 2.0**60) and frexp(value)[0] == 0.5
