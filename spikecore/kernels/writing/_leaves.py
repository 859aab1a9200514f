"""The leaves of a program and of its adjoint, by what they stand for.

A node is equal to any other of the same operation, arguments and attribute, so a leaf can be made wherever it is
needed.
"""

from __future__ import annotations

from typing import List

from spikecore.lang import Node, Program


def input_leaf(name: str) -> Node:
    """An input of the step."""
    return Node("input", (), name)


def state_leaf(name: str) -> Node:
    """A state before the step."""
    return Node("state", (), name)


def param_leaf(name: str) -> Node:
    """A parameter."""
    return Node("param", (), name)


def output_cotangent(index: int) -> Node:
    """The cotangent of an output of the step."""
    return Node("out_grad", (), index)


def state_cotangent(name: str) -> Node:
    """The cotangent of a state after the step."""
    return Node("next_grad", (), name)


def cotangent_leaves(program: Program) -> List[Node]:
    """The cotangents that a step of the adjoint may be computed from: of all outputs, then of all states."""
    outputs = [output_cotangent(index) for index in range(len(program.outputs))]
    return [*outputs, *map(state_cotangent, program.states)]
