"""Adjoints of one step, derived from its expressions; and which cotangents there are.

The rules are those of :mod:`spikecore.lang.operations`: each is one line of calculus, with torch's convention where a
function has no derivative: half to each at a tie of ``minimum`` and ``maximum``, 1 at the bounds of ``clamp``, 0 for
``abs`` at 0. The forward values that a rule needs are the program's own nodes, so an adjoint shares them with the
recomputed step.

A path of a gradient is there or is not, whatever the numbers on it are: a zero cotangent that arrives along a path is
multiplied like any other (0 times an infinite derivative is NaN), and what no path leads to has a zero gradient.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from spikecore.lang._expr import Expr, record
from spikecore.lang._graph import topological
from spikecore.lang.node import Node, SpikeRule, const, substitute
from spikecore.lang.operations import OPERATION, ROWS

#: Contributions of one node's cotangent to its arguments; None for none.
Contributions = Sequence[Optional[Expr]]
#: Operations on numbers through which no gradient flows.
FLAT = frozenset(row.name for row in ROWS if row.kind == "number" and row.gradient is None) - {"spike", "select"}
#: Operations whose derivative can be infinite, or not a number, at finite arguments of moderate size.
UNBOUNDED = frozenset(row.name for row in ROWS if row.unbounded)


def _contributions(node: Node, g: Expr) -> Contributions:
    if isinstance(node.attr, SpikeRule):
        derivative = substitute(node.attr.derivative, {Node("argument", (), "u"): node.args[0]})
        return (g * Expr(derivative),)
    args = [Expr(arg) for arg in node.args]
    if node.op == "select":  # torch has none, whose functions the rules are written with
        z, a, b = args
        return g * (a - b), record("select", z, g, 0.0), record("select", z, 0.0, g)
    rule = OPERATION[node.op].gradient
    if rule is None:
        raise KeyError(node.op)
    return rule(g, Expr(node), args)


def _active(order: Sequence[Node], wanted: Set[Node]) -> Set[Node]:
    """Nodes through which a gradient flows to a wanted leaf."""
    active = set(wanted)
    for node in order:
        if node.op not in FLAT and not node.is_bool and any(arg in active for arg in node.args):
            active.add(node)
    return active


def reverse(roots: Sequence[Tuple[Node, Node]], wanted: Sequence[Node]) -> List[Node]:
    """Cotangents of the wanted leaves, given pairs of (root, its cotangent). Zero where none arrives."""
    order = topological([root for root, _ in roots])
    active = _active(order, set(wanted))
    cotangent: Dict[Node, Expr] = {}

    def add(node: Node, g: Expr) -> None:
        cotangent[node] = cotangent[node] + g if node in cotangent else g

    for root, g in roots:
        add(root, Expr(g))
    for node in reversed(order):
        if node in active and node in cotangent and node.args:
            for arg, g_arg in zip(node.args, _contributions(node, cotangent[node])):
                if g_arg is not None and arg in active:
                    add(arg, g_arg)
    return [cotangent[leaf].node if leaf in cotangent else const(0.0) for leaf in wanted]


class Reach(NamedTuple):
    """Where the gradient of some results of a run arrives."""

    #: States whose cotangent is carried from step to step; 0 after the last step, unless one arrives there.
    live: FrozenSet[str]
    #: Leaves of a step that a path leads to.
    leaves: FrozenSet[Node]


def differentiable_leaves(roots: Iterable[Node]) -> Set[Node]:
    """The leaves that a gradient can flow to from the roots."""
    waiting, seen = list(roots), set()
    while waiting:
        node = waiting.pop()
        if node not in seen and not node.is_bool and node.op not in FLAT:
            seen.add(node)
            waiting.extend(node.args)
    return {node for node in seen if node.is_leaf and node.op != "const"}


def reached(
    states: Sequence[str],
    following: Sequence[Node],
    outputs: Iterable[Node],
    trace: Iterable[str],
    final: Iterable[str],
) -> Reach:
    """What is reached if cotangents arrive for these outputs, these recorded states, and these final states.

    ``following`` are the expressions of the states after the step, one for each name of ``states``.
    """
    next_of = dict(zip(states, following))
    leaves = differentiable_leaves(outputs)
    waiting = [*final, *trace]
    waiting += [str(leaf.attr) for leaf in leaves if leaf.op == "state"]
    live: Set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in live:
            live.add(name)
            found = differentiable_leaves([next_of[name]])
            leaves |= found
            waiting += [str(leaf.attr) for leaf in found if leaf.op == "state"]
    return Reach(frozenset(live), frozenset(leaves))


def constant_states(
    states: Sequence[str], following: Sequence[Node], outputs: Iterable[Node], initial: Iterable[Node]
) -> FrozenSet[str]:
    """The states that no gradient passes from one call to the next.

    Either no result of a step has a derivative by the state, or its next value has none by an input or a parameter.
    """
    read = differentiable_leaves([*outputs, *following])
    learnt = {name for name, value in zip(states, initial) if value.op != "const"}

    def moves(name: str) -> bool:
        found = reached(states, following, (), (), [name])
        return any(leaf.op in ("input", "param") for leaf in found.leaves) or bool(found.live & learnt)

    return frozenset(name for name in states if Node("state", (), name) not in read or not moves(name))
