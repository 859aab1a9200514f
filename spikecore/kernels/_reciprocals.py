"""Divisions of an adjoint by what is the same at every step, as products with reciprocals.

A kernel computes such a reciprocal once, before its first step. The product is off by two units in the last place at
most: lost where results are rounded to 16 bits, and there alone a kernel would wait for divisions instead of memory.
"""

from __future__ import annotations

from typing import Collection, Dict, Sequence

from spikecore.lang import Node
from spikecore.lang.node import const


def with_reciprocals(order: Sequence[Node], exact: Collection[Node], fixed: Collection[Node]) -> Dict[Node, Node]:
    """What takes the place of each of these nodes (arguments first): divisions by nodes in ``fixed`` become products.

    The nodes in ``exact`` stay as they are: those of the program at least, which stands for spikes and states.
    """
    new: Dict[Node, Node] = {}
    for node in order:
        args = tuple(new[arg] for arg in node.args)
        if node in exact or not args:
            new[node] = node
        elif node.op == "div" and node.args[1] in fixed:
            new[node] = Node("mul", (args[0], Node("div", (const(1.0), args[1]))))  # this division stays exact
        else:
            new[node] = Node(node.op, args, node.attr)
    return new
