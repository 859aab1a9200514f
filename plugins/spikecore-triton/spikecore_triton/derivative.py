"""What one step of a backward kernel computes.

Where gradients are rounded to 16 bits, a division of the adjoint by parameters alone is a product with their
reciprocal, which is computed once: off by two units in the last place of float32, far below the rounding. Spikes and
states never depend on it.
"""

from __future__ import annotations

from typing import Dict, Tuple

from spikecore.kernels import BackwardPlan
from spikecore.lang import Node, once, topological
from spikecore.lang.node import const


def derivative(plan: BackwardPlan) -> Tuple[Node, ...]:
    """Gradients of inputs, cotangents of states before the step, what it adds to gradients of parameters."""
    if plan.dtype == plan.compute:
        return plan.roots
    order, exact = topological(plan.roots), set(plan.program.nodes)
    fixed = {*once(order), *(node for node in order if node.op == "param")}
    new: Dict[Node, Node] = {}
    for node in order:
        args = tuple(new[arg] for arg in node.args)
        if node in exact or node in fixed:
            new[node] = node
        elif node.op == "div" and node.args[1] in fixed:
            new[node] = Node("mul", (args[0], Node("div", (const(1.0), args[1]))))
        else:
            new[node] = Node(node.op, args, node.attr)
    return tuple(new[node] for node in plan.roots)
