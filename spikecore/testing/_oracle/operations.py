"""The operations of the language, one by one: written once, and computed by a backend and by the oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, NamedTuple, Sequence

import numpy as np

from spikecore.lang.operations import ROWS
from spikecore.lang.operations import Operation as Row
from spikecore.testing._oracle.rules import BACK, EXACT, VALUE, Array
from spikecore.testing._oracle.through_time import Next, Oracle
from spikecore.testing._oracle.values import Value, ops, spike

_ANY = (-2.5, -1.5, -1.0, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.25)
_WITH_ZERO = (0.0, -0.0, *_ANY)
_POSITIVE = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.25)

#: The value of ``c``; ties with it are among the points.
CONSTANT = 0.75


class Operation(NamedTuple):
    """``y = op(x, c)`` with ``c`` a parameter."""

    #: ``(ops, neuron, x, c) -> y``, in the language and here.
    written: Callable[[Any, Any, Any, Any], Any]
    points: Sequence[float] = _WITH_ZERO
    #: Every bit of the value is fixed.
    exact: bool = False
    #: Whether ``c`` has a gradient.
    learns: bool = False


def _function(row: Row) -> Operation:
    """A function of one or two numbers, at positive points where its derivative is not finite at all others."""
    args = [np.array(_WITH_ZERO), np.full(len(_WITH_ZERO), CONSTANT)][: row.arity]
    with np.errstate(all="ignore"):
        y = VALUE[row.name](*args)
        slopes = BACK[row.name](np.ones_like(y), y, *args) if row.gradient else ()
    points = _WITH_ZERO if np.isfinite(slopes).all() else _POSITIVE

    def written(ops: Any, n: Any, x: Any, c: Any) -> Any:
        return getattr(ops, row.name)(*(x, c)[: row.arity])

    return Operation(written, points, row.name in EXACT, learns=row.arity == 2)


def _exact(written: Callable[[Any, Any, Any, Any], Any], points: Sequence[float] = _WITH_ZERO) -> Operation:
    return Operation(written, points, exact=True, learns=True)


def _compared(compare: Callable[[Any, Any], Any]) -> Operation:
    return _exact(lambda ops, n, x, c: ops.where(compare(x, c), x * x, c))


_WRITTEN: Dict[str, Operation] = {
    "add": _exact(lambda ops, n, x, c: x + c),
    "sub": _exact(lambda ops, n, x, c: c - x),
    "mul": _exact(lambda ops, n, x, c: x * c),
    "div": _exact(lambda ops, n, x, c: c / x, _ANY),
    "neg": Operation(lambda ops, n, x, c: -x, exact=True),
    "relu": Operation(lambda ops, n, x, c: ops.relu(x), exact=True),
    "power": Operation(lambda ops, n, x, c: ops.power(x, c), _POSITIVE, learns=True),
    # a negative base with a whole exponent
    "power-whole": Operation(lambda ops, n, x, c: ops.power(x, 3.0), _ANY),
    # at a tie each gets half of the gradient
    "minimum": _exact(lambda ops, n, x, c: ops.minimum(x, c)),
    "maximum": _exact(lambda ops, n, x, c: ops.maximum(c, x)),
    # the derivative is 1 within, bounds included
    "clamp": Operation(lambda ops, n, x, c: ops.clamp(x, -1.0, 1.5), exact=True),
    "clamp-below": _exact(lambda ops, n, x, c: ops.clamp(x, low=c)),
    "detach": Operation(lambda ops, n, x, c: ops.detach(x * x) * x, exact=True),
    # z a + (1 - z) b is what is differentiated, and the choice is exact
    "select": _exact(lambda ops, n, x, c: ops.select(n.spike(x - c), x * x, c)),
    "spike": _exact(lambda ops, n, x, c: n.spike(x - c)),
    "spike-strict": _exact(lambda ops, n, x, c: n.spike(x - c, strict=True)),
    # two thresholds and two surrogates: +1, -1 or 0
    "spike-ternary": _exact(
        lambda ops, n, x, c: n.spike(x - c, surrogate=replace(n.surrogate, alpha=5.0)) - n.spike(-x - c)
    ),
    # the width follows a parameter, to which no gradient flows on that way
    "spike-width": _exact(lambda ops, n, x, c: n.spike(x - c, surrogate=replace(n.surrogate, alpha=2.0 / c))),
    "ge": _compared(lambda x, c: x >= c),
    "gt": _compared(lambda x, c: x > c),
    "le": _compared(lambda x, c: x <= c),
    "lt": _compared(lambda x, c: x < c),
    "eq": _compared(lambda x, c: x == c),
    "ne": _compared(lambda x, c: x != c),
    "and": _compared(lambda x, c: (x > -c) & (x <= c)),
    "or": _compared(lambda x, c: (x < -c) | (x >= c)),
    "not": _compared(lambda x, c: ~(x > c)),
}
#: The operations, each as a definition has it; a function of one or two numbers needs no line above. The derivative of
#: abs is 0 at 0, that of relu, too; round takes ties to even: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2.
OPERATIONS: Dict[str, Operation] = {
    **{row.name: _function(row) for row in ROWS if row.is_function and row.arity < 3 and row.name not in _WRITTEN},
    **_WRITTEN,
}


@dataclass(frozen=True)
class ATan:
    """The derivative of the surrogate ATan."""

    alpha: Any = 2.0

    def __call__(self, u: Array) -> Array:
        """At ``u``, potential minus threshold."""
        alpha = self.alpha.array if isinstance(self.alpha, Value) else self.alpha
        return np.asarray(alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2))

    def distances(self, u: Array) -> Sequence[Array]:
        """It has no jumps."""
        return ()


class Applied(Oracle):
    """One operation, summed up by a leak: ``v' = v / 2 + op(x, c)``; its output is ``v'``."""

    rest = {"v": 0.0}
    params = ("c",)

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation = OPERATIONS[operation]
        self.surrogate: Any = ATan()

    def spike(self, u: Value, strict: bool = False, surrogate: Any = None) -> Value:
        """As that of a neuron."""
        return spike(u, self.surrogate if surrogate is None else surrogate, strict)

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        """The operation and the leak."""
        v = s.v * 0.5 + self.operation.written(ops, self, x[0], p.c)
        return (v,), {"v": v}
