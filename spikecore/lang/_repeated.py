"""Programs whose inputs are the same at every step: each input as a parameter with one number per neuron.

A kernel reads such a parameter once, before the first step, and adds up its gradient over time in registers: forward
reads 1 / T of a word where it read one, backward writes 1 / T where it wrote one. The arithmetic of a step stays the
same, bit for bit. The program keeps the input, which no line reads: a call has its steps, dtype and device from it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, NamedTuple, Tuple

from spikecore.lang._program import Program
from spikecore.lang.node import Node, substitute


class Repeated(NamedTuple):
    """A program whose inputs are parameters."""

    program: Program
    #: For each input the parameter in its place; "" for an input that the program does not read. These parameters are
    #: the first ones of the program, in this order.
    names: Tuple[str, ...]


@lru_cache(maxsize=256)
def repeated(program: Program) -> Repeated:
    """``program`` with a parameter in the place of each input that it reads."""
    read = {node.attr for node in program.nodes if node.op == "input"}
    taken = {*program.inputs, *program.states, *program.params}
    names: List[str] = []
    nodes: Dict[Node, Node] = {}
    for name in program.inputs:
        own = f"{name}_constant"
        while own in taken:
            own += "_"
        names.append(own if name in read else "")
        nodes[Node("input", (), name)] = Node("param", (), own)
    made = Program(
        program.name,
        inputs=program.inputs,
        states=program.states,
        outputs=[substitute(node, nodes) for node in program.outputs],
        next=[substitute(node, nodes) for node in program.next],
        initial=program.initial,
        params=(*filter(None, names), *program.params),
        labels={substitute(node, nodes): label for node, label in program.labels.items()},
        numbers=program.numbers,
    )
    return Repeated(made, tuple(names))
