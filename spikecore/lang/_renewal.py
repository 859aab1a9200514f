"""Other numbers of a surrogate for a program that is traced already: only the surrogate is asked again.

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
    """What a traced program has of its one surrogate."""

    kind: type
    derivative: Node
    #: The names of its numbers, and those that they must not have.
    names: Tuple[str, ...]
    taken: Tuple[str, ...]


def renewal_of(numbers: Numbers) -> Optional[Renewal]:
    """What a trace used of its surrogate; None unless it asked exactly one."""
    if len(numbers.asked) != 1:
        return None
    ((surrogate, derivative),) = numbers.asked.values()
    return Renewal(type(surrogate), derivative, tuple(numbers.values), numbers.taken)


def renewed(renewal: Renewal, surrogate: Any) -> Optional[Dict[str, float]]:
    """The numbers of a program, by name, with this surrogate in the place of its own; None if it may be another one."""
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
