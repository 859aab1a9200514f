"""What a writer asks of expressions: what is the same at every step, and what a compiler would make an integer of."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from spikecore.backend import Spec
from spikecore.lang import Node, Program, loop_invariant, topological

#: Kinds of parameters that have one value for all neurons.
UNIFORM_KINDS = ("number", "scalar")


def hoisted(program: Program, spec: Spec, roots: Sequence[Node]) -> Tuple[Tuple[Node, ...], Tuple[Node, ...]]:
    """What the roots use of the expressions of parameters alone: those that are one value, and one value per neuron.

    Both are computed before the first step. What only another one of them uses is left out, and so is ``detach``: a
    kernel has one symbol for a value and itself detached, which would be computed twice.
    """
    order = topological(roots)
    fixed = loop_invariant(order)
    inside = {node for node in fixed if node.op != "detach"}
    used = {arg for node in order if node not in inside for arg in node.args} | set(roots)
    varying = {Node("param", (), name) for name, kind in zip(program.params, spec.params) if kind not in UNIFORM_KINDS}
    for node in fixed:
        if any(arg in varying for arg in node.args):
            varying.add(node)
    front = [node for node in fixed if node in inside and node in used]
    return tuple(n for n in front if n not in varying), tuple(n for n in front if n in varying)


def is_choice(node: Node) -> bool:
    """Whether a value is chosen among numbers: a spike, a sign, a choice between constants.

    GPU compilers make integers of such values, and an integer has no -0, which the negation of 0 should be.
    """
    if node.op == "detach":
        return is_choice(node.args[0])
    chosen = node.args[1:] if node.op in ("where", "select") else ()
    return node.op in ("spike", "sign") or (bool(chosen) and all(arg.op == "const" or is_choice(arg) for arg in chosen))


def negated_choice(node: Node) -> Optional[int]:
    """Which argument is a choice among numbers that this operation negates; None for others."""
    if node.op == "neg" and is_choice(node.args[0]):
        return 0
    if node.op not in ("mul", "div"):
        return None
    a, b = node.args
    if b.op == "const" and b.attr == -1.0 and is_choice(a):
        return 0
    return 1 if node.op == "mul" and a.op == "const" and a.attr == -1.0 and is_choice(b) else None
