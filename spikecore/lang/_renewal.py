"""New numbers for the surrogate of a traced program, as in annealing, without tracing the neuron again.

A program does not depend on the numbers of its surrogate (:mod:`spikecore.lang._numbers`), unless the surrogate does
something else with them than arithmetic. So the derivative is asked of the new surrogate: where it is the expression
that it was, in the same parameters, the program would be the same.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

from spikecore.lang._expr import Expr, lift
from spikecore.lang._numbers import Numbers
from spikecore.lang.node import Node


class Renewal(NamedTuple):
    """What a traced program remembers of its only surrogate, to compare another one with it."""

    kind: type
    derivative: Node
    #: The parameters that its numbers became, and the names that they had to avoid.
    names: Tuple[str, ...]
    taken: Tuple[str, ...]


def renewal_of(numbers: Numbers) -> Optional[Renewal]:
    """What a trace used of its surrogate; None unless it used exactly one."""
    if len(numbers.asked) != 1:
        return None
    ((surrogate, derivative),) = numbers.asked.values()
    return Renewal(type(surrogate), derivative, tuple(numbers.values), numbers.taken)


def renewed(renewal: Renewal, surrogate: Any) -> Optional[Dict[str, float]]:
    """The numbers of this surrogate, by name, if it gives the same program; None if the neuron must be traced again."""
    if type(surrogate) is not renewal.kind:
        return None
    numbers = Numbers(renewal.taken)
    with numbers.following():
        try:
            asked = numbers.copy_of(surrogate).derivative(Expr(Node("argument", (), "u")))
            derivative = lift(asked, "surrogate derivative")
        except Exception:  # tracing says what is wrong
            return None
    if derivative != renewal.derivative or tuple(numbers.values) != renewal.names:
        return None
    return numbers.values
