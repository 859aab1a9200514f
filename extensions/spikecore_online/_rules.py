"""The rules as data, and the transformations of programs that they make: what is kept of a neuron's transition.

A program's step is ``s' = f(s, x)``, ``y = g(s, x)``. A rule trains with the same values and another adjoint:

- :class:`ResetDetached`: spikes that enter the next value of a reset state are constants;
- :class:`StatesDetached`: states are constants when they are read, so that the adjoint has no path through time;
- :class:`Leak`: another program, linear in its states: how far an input of an earlier step counts now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from spikecore.backend import Unsupported
from spikecore.lang import Expr, Node, Program, topological
from spikecore.lang.node import const, substitute
from spikecore.lang.transform import Derived, Transform, changed, cotangents, detach_spikes
from spikecore.neurons import ILIF


@dataclass(frozen=True)
class ResetDetached(Transform):
    """Spikes carry no gradient into the next values of these states, as with ``detach_reset=True``."""

    states: Tuple[str, ...]

    @classmethod
    def of(cls, neuron: Any) -> ResetDetached:
        """Transform for the states that count as reset by the spike.

        Raises Unsupported for counts, which are no spikes of the program, and are detached by the neuron alone.
        """
        if isinstance(neuron, ILIF) and not neuron.detach_reset:
            raise Unsupported("rule='eprop' takes resets as constants; give ILIF(detach_reset=True)")
        return cls(tuple(neuron.states if neuron.reset_states is None else neuron.reset_states))

    def apply(self, program: Program) -> Derived:
        """Program with next values of the states in which spikes are constants."""
        rows = zip(program.states, program.next)
        following = [detach_spikes(node) if state in self.states else node for state, node in rows]
        return Derived(changed(program, {}, next=following))


@dataclass(frozen=True)
class StatesDetached(Transform):
    """States carry no gradient from one step to the next."""

    @classmethod
    def of(cls, neuron: Any) -> StatesDetached:
        """The same for every neuron."""
        return cls()

    def apply(self, program: Program) -> Derived:
        """Program that reads its states as constants."""
        leaves = [Node("state", (), name) for name in program.states]
        return Derived(changed(program, {leaf: Node("detach", (leaf,)) for leaf in leaves}))


@dataclass(frozen=True)
class Rule:
    """Kept part of the transition, and the trace of a weight: "full", "outer", "input", "pairs" or "" for none."""

    name: str
    trace: str
    #: Function that makes the transform of a neuron's program; None if all of the transition is kept.
    keep: Optional[Callable[[Any], Transform]] = None
    #: True if traces have the memory of a leaky read-out in them, where errors come from it directly.
    has_read_out: bool = False


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("d_rtrl", "full"),
        Rule("eprop", "full", ResetDetached.of, has_read_out=True),
        Rule("pp_prop", "outer"),
        Rule("ottt", "input", StatesDetached.of),
        Rule("sltt", "", StatesDetached.of),
        Rule("stdp", "pairs", StatesDetached.of),
    )
}


# -- the leak


def is_leaky_read_out(program: Program) -> bool:
    """True if a neuron does not fire, and has one state, whose transition is a number: ``sc.LI``."""
    if len(program.inputs) != 1 or len(program.states) != 1:
        return False
    used = cotangents([(program.next[0], const(1.0))], program.leaves[:2])
    nodes = topological([*program.outputs, *program.next])
    return not any(node.op == "spike" for node in nodes) and all(
        leaf.op in ("const", "param") for leaf in topological(used) if not leaf.args
    )


@dataclass(frozen=True)
class Leak(Transform):
    """The program of :func:`leak`."""

    def apply(self, program: Program) -> Derived:
        """Program of :func:`leak`."""
        return Derived(leak(program))


def leak(program: Program) -> Program:
    """The filter through which an input of earlier steps counts in the present step, if no spike had happened.

    With spikes taken for constants a step of a leaky neuron is linear: ``s' = A s + b x``, and what its output depends
    on is ``h = c s + d x``. The filter is ``e' = A e + b u``, ``û = u + c e / d``, so that ``dh[t]/dW`` is ``d û[t]``.
    For LIF ``û[t] = u[t] + (1 - 1/tau) û[t-1]``.

    Raises Unsupported for a neuron whose transition depends on its state or input.
    """
    states, x = [Node("state", (), name) for name in program.states], Node("input", (), program.inputs[0])
    silent = {node: const(0.0) for node in topological([*program.outputs, *program.next]) if node.op == "spike"}
    following = [substitute(node, dict(silent)) for node in program.next]
    A, b = _jacobian(following, states, x)
    reached = _reached(A, b)
    C, d = _jacobian([substitute(_before_spike(program), dict(silent))], states, x)
    used = [*(A[k][m] for k in reached for m in reached), *(b[k] for k in reached), *(C[0][k] for k in reached), d[0]]
    varying = sorted({str(leaf.attr) for leaf in topological(used) if leaf.op in ("state", "input")})
    if len(program.inputs) != 1 or varying or d[0] == const(0.0):
        why = f"its transition depends on {', '.join(varying)}" if varying else "its output follows its input otherwise"
        raise Unsupported(
            f"rule='ottt' filters inputs by the leak of a neuron, and {program.name} has no such leak: {why}; take "
            "rule='pp_prop' or 'sltt'"
        )
    u, e = Expr(x), [Expr(states[k]) for k in reached]

    def combined(row: Sequence[Node], start: Expr) -> Expr:
        for value, k in zip(e, reached):
            if row[k] != const(0.0):
                start = start + Expr(row[k]) * value
        return start

    output = u + combined(C[0], Expr(const(0.0))) / Expr(d[0])
    return Program(
        f"{program.name}Leak",
        inputs=("x",),
        states=[program.states[k] for k in reached],
        outputs=[substitute(output.node, {x: Node("input", (), "x")})],
        next=[substitute(combined(A[k], Expr(b[k]) * u).node, {x: Node("input", (), "x")}) for k in reached],
        initial=[const(0.0)] * len(reached),
        params=program.params,
        numbers=program.numbers,
    )


def _jacobian(roots: Sequence[Node], states: Sequence[Node], x: Node) -> Tuple[List[List[Node]], List[Node]]:
    """The derivatives of each root by each state, and by the input."""
    rows = [cotangents([(root, const(1.0))], [*states, x]) for root in roots]
    return [row[:-1] for row in rows], [row[-1] for row in rows]


def _reached(A: Sequence[Sequence[Node]], b: Sequence[Node]) -> List[int]:
    """The states that the input gets into, without a spike."""
    zero, reached = const(0.0), {k for k, value in enumerate(b) if value != const(0.0)}
    while True:
        more = {k for k, row in enumerate(A) if k not in reached and any(row[m] != zero for m in reached)}
        if not more:
            return sorted(reached)
        reached |= more


def _before_spike(program: Program) -> Node:
    """Argument of the first spike of the output; the output itself if there is none."""
    spikes = [node for node in topological([program.outputs[0]]) if node.op == "spike"]
    return spikes[0].args[0] if spikes else program.outputs[0]
