"""The operations of the language, one by one in NumPy: value, derivatives, and the convention where there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np

from spikecore.lang.operations import ROWS
from spikecore.lang.operations import Operation as Row
from spikecore.testing._oracle.rules import BACK, VALUE
from spikecore.testing._oracle.surrogates import SURROGATES, Array

_ANY = (-2.5, -1.5, -1.0, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.25)
_WITH_ZERO = (0.0, -0.0, *_ANY)
_POSITIVE = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.25)

#: The value of ``c``; ties with it are among the points.
CONSTANT = 0.75


class Operation(NamedTuple):
    """``y = op(x, c)`` with ``c`` a parameter, as written in the language and as computed here."""

    #: In the language: ``(ops, neuron, x, c) -> y``.
    written: Callable[[Any, Any, Any, Any], Any]
    value: Callable[[Array, Array], Array]
    to_x: Callable[[Array, Array], Array]
    to_c: Optional[Callable[[Array, Array], Array]] = None
    points: Sequence[float] = _WITH_ZERO
    #: Every bit of the value is fixed.
    exact: bool = False


def _zero(x: Array, c: Array) -> Array:
    return np.zeros_like(x)


def _one(x: Array, c: Array) -> Array:
    return np.ones_like(x)


def _slope(x: Array, c: Array) -> Array:
    """The default surrogate at x - c."""
    return SURROGATES["ATan"](x - c)


def _atan(u: Array, alpha: Any) -> Array:
    """The derivative of ATan with this alpha."""
    return np.asarray(alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2))


def _fires(x: Array, c: Array) -> Array:
    return (x >= c) * 1.0


def _share(lower: bool) -> Callable[[Array, Array], Array]:
    """1 where x is chosen, half at a tie."""
    return lambda x, c: np.where(x == c, 0.5, ((x < c) if lower else (x > c)) * 1.0)


def _rest(share: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, c: 1.0 - share(x, c)


def _compared(compare: Callable[[Any, Any], Any]) -> Operation:
    """``where(x ? c, x * x, c)``."""
    return Operation(
        lambda ops, n, x, c: ops.where(compare(x, c), x * x, c),
        lambda x, c: np.where(compare(x, c), x * x, c),
        lambda x, c: np.where(compare(x, c), 2 * x, 0.0),
        lambda x, c: np.where(compare(x, c), 0.0, 1.0),
        exact=True,
    )


def _function(row: Row) -> Operation:
    """``sc.ops.<name>(x)``, with the value and the rule that random programs have."""
    value, back = VALUE[row.name], BACK.get(row.name)
    return Operation(
        lambda ops, n, x, c: getattr(ops, row.name)(x),
        lambda x, c: value(x),
        lambda x, c: back(_one(x, c), value(x), x)[0] if back else _zero(x, c),
        points=_POSITIVE if row.unbounded else _WITH_ZERO,
        exact=row.exact,
    )


OPERATIONS: Dict[str, Operation] = {
    **{
        row.name: _function(row)
        for row in ROWS
        if row.name in VALUE and row.is_function and row.arity == 1 and row.name != "detach"
    },
    "add": Operation(lambda ops, n, x, c: x + c, lambda x, c: x + c, _one, _one, exact=True),
    "sub": Operation(lambda ops, n, x, c: c - x, lambda x, c: c - x, lambda x, c: -_one(x, c), _one, exact=True),
    "mul": Operation(
        lambda ops, n, x, c: x * c, lambda x, c: x * c, lambda x, c: c + 0 * x, lambda x, c: x, exact=True
    ),
    "div": Operation(
        lambda ops, n, x, c: c / x, lambda x, c: c / x, lambda x, c: -c / x**2, lambda x, c: 1 / x, _ANY, exact=True
    ),
    "neg": Operation(lambda ops, n, x, c: -x, lambda x, c: -x, lambda x, c: -_one(x, c), exact=True),
    "power": Operation(
        lambda ops, n, x, c: ops.power(x, c),
        lambda x, c: x**c,
        lambda x, c: c * x ** (c - 1),
        lambda x, c: x**c * np.log(x),
        _POSITIVE,
    ),
    # a negative base with a whole exponent
    "power-whole": Operation(
        lambda ops, n, x, c: ops.power(x, 3.0), lambda x, c: x**3, lambda x, c: 3 * x**2, points=_ANY
    ),
    "minimum": Operation(
        lambda ops, n, x, c: ops.minimum(x, c),
        np.minimum,
        _share(True),
        _rest(_share(True)),
        exact=True,
    ),
    "maximum": Operation(
        lambda ops, n, x, c: ops.maximum(c, x),
        np.maximum,
        _share(False),
        _rest(_share(False)),
        exact=True,
    ),
    # the derivative is 1 within, bounds included
    "clamp": Operation(
        lambda ops, n, x, c: ops.clamp(x, -1.0, 1.5),
        lambda x, c: np.clip(x, -1.0, 1.5),
        lambda x, c: ((x >= -1.0) & (x <= 1.5)) * 1.0,
        exact=True,
    ),
    "clamp-below": Operation(
        lambda ops, n, x, c: ops.clamp(x, low=c),
        np.maximum,
        lambda x, c: (x >= c) * 1.0,
        lambda x, c: (x < c) * 1.0,
        exact=True,
    ),
    "detach": Operation(
        lambda ops, n, x, c: ops.detach(x * x) * x, lambda x, c: x * x * x, lambda x, c: x * x, exact=True
    ),
    # the derivative is 0 at 0
    "relu": Operation(
        lambda ops, n, x, c: ops.relu(x), lambda x, c: np.maximum(x, 0.0), lambda x, c: (x > 0.0) * 1.0, exact=True
    ),
    # z a + (1 - z) b is what is differentiated, and the choice is exact
    "select": Operation(
        lambda ops, n, x, c: ops.select(n.spike(x - c), x * x, c),
        lambda x, c: np.where(_fires(x, c) != 0, x * x, c),
        lambda x, c: np.where(_fires(x, c) != 0, 2 * x, 0.0) + (x * x - c) * _slope(x, c),
        lambda x, c: np.where(_fires(x, c) != 0, 0.0, 1.0) - (x * x - c) * _slope(x, c),
        exact=True,
    ),
    "spike": Operation(lambda ops, n, x, c: n.spike(x - c), _fires, _slope, lambda x, c: -_slope(x, c), exact=True),
    "spike-strict": Operation(
        lambda ops, n, x, c: n.spike(x - c, strict=True),
        lambda x, c: (x > c) * 1.0,
        _slope,
        lambda x, c: -_slope(x, c),
        exact=True,
    ),
    # two thresholds and two surrogates: +1, -1 or 0
    "spike-ternary": Operation(
        lambda ops, n, x, c: n.spike(x - c, surrogate=replace(n.surrogate, alpha=5.0)) - n.spike(-x - c),
        lambda x, c: _fires(x, c) - _fires(-x, c),
        lambda x, c: _atan(x - c, 5.0) + _slope(-x, c),
        lambda x, c: _slope(-x, c) - _atan(x - c, 5.0),
        exact=True,
    ),
    # the width follows a parameter, to which no gradient flows on that way
    "spike-width": Operation(
        lambda ops, n, x, c: n.spike(x - c, surrogate=replace(n.surrogate, alpha=2.0 / c)),
        _fires,
        lambda x, c: _atan(x - c, 2.0 / c),
        lambda x, c: -_atan(x - c, 2.0 / c),
        exact=True,
    ),
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


def accumulated(y: Array) -> Array:
    """``v' = v / 2 + y``, the neuron around an operation: its potentials."""
    v, seen = np.zeros_like(y[0]), []
    for now in y:
        v = v * y.dtype.type(0.5) + now
        seen.append(v)
    return np.stack(seen)


def accumulated_back(g: Array) -> Array:
    """The cotangents of y, given those of the potentials."""
    total, found = np.zeros_like(g[0]), []
    for now in g[::-1]:
        total = now + total * 0.5
        found.append(total)
    return np.stack(found[::-1])
