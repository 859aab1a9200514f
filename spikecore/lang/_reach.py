"""Which cotangents there are: what a gradient can flow to, given where it comes from.

A path is there or is not, whatever the numbers on it are: a zero cotangent that arrives along a path is multiplied like
any other (0 times an infinite derivative is NaN), and what no path leads to has a zero gradient.
"""

from __future__ import annotations

from typing import FrozenSet, Iterable, NamedTuple, Sequence, Set

from spikecore.lang.node import Node

#: Operations through which no gradient flows.
FLAT = frozenset(("detach", "sign", "floor", "round"))
#: Operations whose derivative can be infinite, or not a number, at finite arguments of moderate size.
UNBOUNDED = frozenset(("div", "sqrt", "log", "power"))


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
