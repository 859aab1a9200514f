"""Divisions by numbers that are powers of two, as products with their reciprocals, which are the same numbers.

A division takes eight instructions, and a branch for numbers beside the usual, across which no other instruction is
moved: the neurons of a thread are computed one after the other. A product takes one.
"""

from __future__ import annotations

from math import frexp
from typing import Any, Tuple

from spikecore.lang import Node
from spikecore_cupy.derivative import Plan


def divisors(plan: Plan) -> Tuple[Node, ...]:
    """The parameters that are numbers of a call and that a step divides by."""
    numbers = {Node("param", (), name) for name, kind in plan.kinds.items() if kind == "number"}
    return tuple({n.args[1]: None for n in plan.program.nodes if n.op == "div" and n.args[1] in numbers})


def is_power_of_two(value: Any) -> bool:
    """Whether every quotient by a number is the product with its reciprocal: both are exact, or rounded alike."""
    # so that the reciprocal is an ordinary float32
    return bool(2.0**-60 <= value <= 2.0**60) and frexp(value)[0] == 0.5
