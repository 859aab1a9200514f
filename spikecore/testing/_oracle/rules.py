"""Meaning of every operation, in NumPy: its value, and the cotangents of its arguments.

Rules of this module:

- One operation is one rounding to the dtype of its arguments. Functions that no library rounds correctly are computed
  in float64 and rounded then.
- A cotangent of 0 is multiplied like any other; what ends a path has no rule in :data:`BACK`.
- Nothing here is read from the language: a wrong name or flag in the row of an operation is found.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Tuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function computed in float64, rounded to the dtype of its argument."""

    def apply(*args: Array) -> Array:
        return np.asarray(function(*(np.asarray(a, np.float64) for a in args))).astype(np.asarray(args[0]).dtype)

    return apply


def minimum(a: Array, b: Array) -> Array:
    """``b`` at a tie."""
    return np.asarray(np.where((a < b) | (a != a), a, b))


def maximum(a: Array, b: Array) -> Array:
    """``b`` at a tie."""
    return np.asarray(np.where((a > b) | (a != a), a, b))


def _logistic(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _remainder(x: Array, divisor: Array) -> Array:
    """Of the sign of the divisor; the sign of a zero is that of ``x``."""
    r = np.fmod(x, divisor)
    return np.asarray(np.where((r != 0) & ((r < 0) != (divisor < 0)), r + divisor, r))


def _silu(x: Array) -> Array:
    return x * _logistic(x)


def _bell(x: Array) -> Array:
    """The derivative of erf."""
    return np.asarray(2.0 / math.sqrt(math.pi) * np.exp(-x * x))


def _sign(x: Array) -> Array:
    one = np.ones_like(x)
    return np.asarray(np.where(x > 0, one, np.where(x < 0, -one, 0 * one)))


#: op -> its value, which every backend rounds as IEEE 754 has it, or which rounds nothing.
_EXACT: Dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "sign": _sign,
    "floor": np.floor,
    "round": np.rint,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "relu": lambda x: np.where(x <= 0, np.zeros_like(x), x),
    "remainder": _remainder,
    "minimum": minimum,
    "maximum": maximum,
    "clamp": lambda x, low, high: minimum(maximum(x, low), high),
    "select": lambda z, a, b: np.where(z != 0, a, b),
    "detach": lambda x: x,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "where": np.where,
}
#: op -> its value in float64, of which a backend may be off in the last digits.
ROUNDED: Dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "sigmoid": _logistic,
    "softplus": _softplus,
    "silu": _silu,
    "logaddexp": np.logaddexp,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "atan": np.arctan,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "power": np.power,
}
#: op -> its value. A spike's is ``spike(u, strict)``.
VALUE: Dict[str, Callable[..., Any]] = {**_EXACT, **{op: wide(value) for op, value in ROUNDED.items()}}
#: Operations of which each bit of the value is fixed.
EXACT = frozenset((*_EXACT, "spike"))


def _both(g: Array, a: Array, b: Array, a_loses: Array, b_loses: Array) -> Tuple[Array, Array]:
    shared = np.where(a == b, g / g.dtype.type(2), g)
    return np.where(a_loses, 0 * np.ones_like(g), shared), np.where(b_loses, 0 * np.ones_like(g), shared)


def _silu_back(g: Array, y: Array, x: Array) -> Tuple[Array]:
    s = VALUE["sigmoid"](x)
    return (g * (s + x * s * (1 - s)),)


def _logaddexp_back(g: Array, y: Array, a: Array, b: Array) -> Tuple[Array, Array]:
    apart = np.where(a == b, 0 * np.ones_like(a), a - b)
    return g * VALUE["sigmoid"](apart), g * VALUE["sigmoid"](-apart)


def _power_back(g: Array, y: Array, x: Array, n: Array) -> Tuple[Array, Array]:
    one, zero = np.ones_like(g), np.zeros_like(g)
    to_x = np.where(n == 0, zero, g * (n * VALUE["power"](x, n - one)))
    return to_x, g * np.where((x == 0) & (n >= 0), zero, y * VALUE["log"](x))


def _clamp_back(g: Array, y: Array, x: Array, low: Array, high: Array) -> Tuple[Array, ...]:
    zero = np.zeros_like(g)
    return (
        np.where((x >= low) & (x <= high), g, zero),
        np.where((low < high) & (x < low), g, zero),
        np.where((x > high) | (high < low), g, zero),
    )


#: op -> the cotangents of its arguments, given ``(g, y, *args)``; None for one that has none. All are of one shape.
BACK: Dict[str, Callable[..., Tuple[Any, ...]]] = {
    "add": lambda g, y, a, b: (g, g),
    "sub": lambda g, y, a, b: (g, -g),
    "mul": lambda g, y, a, b: (g * b, g * a),
    "div": lambda g, y, a, b: (g / b, -g * (y / b)),
    "neg": lambda g, y, a: (-g,),
    "exp": lambda g, y, a: (g * y,),
    "expm1": lambda g, y, a: (g * (y + 1),),
    "log": lambda g, y, a: (g / a,),
    "log1p": lambda g, y, a: (g / (a + 1),),
    "sqrt": lambda g, y, a: (g / (y + y),),
    "sin": lambda g, y, a: (g * VALUE["cos"](a),),
    "cos": lambda g, y, a: (-g * VALUE["sin"](a),),
    "tan": lambda g, y, a: (g * (1 + y * y),),
    "sinh": lambda g, y, a: (g * VALUE["cosh"](a),),
    "cosh": lambda g, y, a: (g * VALUE["sinh"](a),),
    "tanh": lambda g, y, a: (g * (1 - y * y),),
    "sigmoid": lambda g, y, a: (g * (1 - y) * y,),
    "softplus": lambda g, y, a: (g * VALUE["sigmoid"](a),),
    "silu": _silu_back,
    "logaddexp": _logaddexp_back,
    "rsqrt": lambda g, y, a: (-g * (y / np.sqrt(a)) / (2 * np.sqrt(a)),),
    "atan": lambda g, y, a: (g / (a * a + 1),),
    "erf": lambda g, y, a: (g * wide(_bell)(a),),
    "abs": lambda g, y, a: (g * _sign(a),),
    "relu": lambda g, y, a: (np.where(a <= 0, 0 * np.ones_like(g), g),),
    "remainder": lambda g, y, a, b: (g, -g * np.rint((a - y) / b)),
    "power": _power_back,
    "minimum": lambda g, y, a, b: _both(g, a, b, a > b, a < b),
    "maximum": lambda g, y, a, b: _both(g, a, b, a < b, a > b),
    "clamp": _clamp_back,
    "where": lambda g, y, c, a, b: (None, np.where(c, g, 0 * np.ones_like(g)), np.where(c, 0 * np.ones_like(g), g)),
    # that of z a + (1 - z) b
    "select": lambda g, y, z, a, b: (
        g * (a - b),
        np.where(z != 0, g, 0 * np.ones_like(g)),
        np.where(z != 0, 0 * np.ones_like(g), g),
    ),
}
