"""The operations of the language, one declaration each, and its functions: ``sc.ops``.

A function takes traced values, torch tensors or numbers. With a traced value among its arguments it records; with a
tensor it computes, so that a definition can be called by hand; with numbers only it returns a number.

A rule of a gradient is written with operators and torch's functions, since its values record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List, Sequence

import torch

from spikecore.lang import _functions as functions
from spikecore.lang import operations
from spikecore.lang.operations import (
    AND,
    ATOM,
    EQUALITY,
    OR,
    ORDER,
    PRODUCT,
    SUM,
    TERNARY,
    UNARY,
    composed,
    function,
    operator,
)

if TYPE_CHECKING:
    from spikecore.surrogate import Surrogate

Value = Any

# -- arithmetic

operator("add", torch.add, lambda g, y, a: (g, g), (SUM, "{0} + {1}"), "add")
operator("sub", torch.sub, lambda g, y, a: (g, -g), (SUM, "{0} - {1}"), "subtract")
operator("mul", torch.mul, lambda g, y, a: (g * a[1], g * a[0]), (PRODUCT, "{0} * {1}"), "multiply")
operator(
    "div",
    torch.div,
    lambda g, y, a: (g / a[1], -g * (y / a[1])),
    (PRODUCT, "{0} / {1}"),
    "divide",
    unbounded=True,
)
operator("neg", torch.neg, lambda g, y, a: (-g,), (UNARY, "-{0}"), "negative")

# -- functions of one number


@function(torch.exp, lambda g, y, a: (g * y,))
def exp(x: Value) -> Value:
    """e to the power ``x``."""
    return operations.apply("exp", x)


@function(torch.log, lambda g, y, a: (g / a[0],), unbounded=True)
def log(x: Value) -> Value:
    """Natural logarithm."""
    return operations.apply("log", x)


@function(torch.log1p, lambda g, y, a: (g / (a[0] + 1.0),), unbounded=True)
def log1p(x: Value) -> Value:
    """``log(1 + x)``, accurate for a small ``x``, too."""
    return operations.apply("log1p", x)


@function(torch.expm1, lambda g, y, a: (g * (y + 1.0),))
def expm1(x: Value) -> Value:
    """``exp(x) - 1``, accurate for a small ``x``, too."""
    return operations.apply("expm1", x)


@function(functions.sqrt, lambda g, y, a: (g / (2.0 * y),), unbounded=True, exact=True)
def sqrt(x: Value) -> Value:
    """Square root; correctly rounded on every backend, but for an IPU's."""
    return operations.apply("sqrt", x)


@function(torch.sin, lambda g, y, a: (g * torch.cos(a[0]),))
def sin(x: Value) -> Value:
    """Sine of ``x`` in radians."""
    return operations.apply("sin", x)


@function(torch.cos, lambda g, y, a: (-g * torch.sin(a[0]),))
def cos(x: Value) -> Value:
    """Cosine of ``x`` in radians."""
    return operations.apply("cos", x)


@function(torch.tan, lambda g, y, a: (g * (1.0 + y * y),))
def tan(x: Value) -> Value:
    """Tangent of ``x`` in radians."""
    return operations.apply("tan", x)


@function(torch.sinh, lambda g, y, a: (g * torch.cosh(a[0]),))
def sinh(x: Value) -> Value:
    """Hyperbolic sine."""
    return operations.apply("sinh", x)


@function(torch.cosh, lambda g, y, a: (g * torch.sinh(a[0]),))
def cosh(x: Value) -> Value:
    """Hyperbolic cosine."""
    return operations.apply("cosh", x)


@function(torch.tanh, lambda g, y, a: (g * (1.0 - y * y),))
def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    return operations.apply("tanh", x)


@function(torch.sigmoid, lambda g, y, a: (g * (1.0 - y) * y,), helper=True)
def sigmoid(x: Value) -> Value:
    """``1 / (1 + exp(-x))``."""
    return operations.apply("sigmoid", x)


@function(functions.softplus, lambda g, y, a: (g * torch.sigmoid(a[0]),), helper=True)
def softplus(x: Value) -> Value:
    """``log(1 + exp(x))``, a smooth ``relu``: near ``x`` for a large one, and never infinite for a finite one."""
    return operations.apply("softplus", x)


@function(torch.atan, lambda g, y, a: (g / (a[0] * a[0] + 1.0),), names=("atan", "arctan"), numpy="arctan")
def atan(x: Value) -> Value:
    """Arc tangent, in radians."""
    return operations.apply("atan", x)


#: The derivative of ``erf`` at 0.
_TWO_BY_ROOT_PI = 2.0 / math.sqrt(math.pi)


@function(
    torch.erf,
    lambda g, y, a: (g * (_TWO_BY_ROOT_PI * torch.exp(-(a[0] * a[0]))),),
    names=("erf", "special_erf"),
    numpy="",
)
def erf(x: Value) -> Value:
    """Error function, ``2/sqrt(pi)`` times the integral of ``exp(-t*t)`` from 0 to ``x``."""
    return operations.apply("erf", x)


@function(torch.abs, lambda g, y, a: (g * torch.sign(a[0]),), c="fabs", names=("abs", "absolute"), exact=True)
def abs(x: Value) -> Value:
    """Absolute value; derivative 0 at 0."""
    return operations.apply("abs", x)


@function(functions.sign, helper=True, exact=True)
def sign(x: Value) -> Value:
    """-1, 0 or 1, and 0 for NaN; derivative 0."""
    return operations.apply("sign", x)


@function(functions.floor, exact=True)
def floor(x: Value, *, straight_through: bool = False) -> Value:
    """Largest whole number not above ``x``; derivative 0, or 1 for a finite ``x`` if ``straight_through``."""
    return _through(operations.apply("floor", x), x) if straight_through else operations.apply("floor", x)


@function(functions.round, c="rint", numpy="rint", exact=True)
def round(x: Value, *, straight_through: bool = False) -> Value:
    """Nearest whole number, ties to even; derivative 0, or 1 for a finite ``x`` if ``straight_through``."""
    return _through(operations.apply("round", x), x) if straight_through else operations.apply("round", x)


def _through(whole: Value, x: Value) -> Value:
    """The whole number with the derivative of ``x``: the difference is +0, which leaves zeros their sign."""
    return whole - (detach(x) - x)


@composed
def ceil(x: Value) -> Value:
    """Smallest whole number not below ``x``; derivative 0."""
    return -floor(-x)


@composed
def trunc(x: Value) -> Value:
    """``x`` without its fraction; derivative 0."""
    return where(x < 0.0, -floor(-x), floor(x))


@composed
def rsqrt(x: Value) -> Value:
    """``1 / sqrt(x)``."""
    return 1.0 / sqrt(x)


@composed
def silu(x: Value) -> Value:
    """``x * sigmoid(x)``; NaN at ``-inf``, as torch's."""
    return x * sigmoid(x)


# -- functions of several numbers


def _power(g: Any, y: Any, args: Sequence[Any]) -> Sequence[Any]:
    x, n = args
    to_x = torch.where(n == 0.0, 0.0, g * (n * x ** (n - 1.0)))
    to_n = g * torch.where((x == 0.0) & (n >= 0.0), 0.0, y * torch.log(x))
    return to_x, to_n


@function(torch.pow, _power, c="pow", python="pow", names=("pow",), unbounded=True)
def power(x: Value, exponent: Value) -> Value:
    """``x ** exponent``, as C's ``pow``. For a square, ``x * x`` is exact on every backend and ``power`` is not."""
    return operations.apply("power", x, exponent)


# C and CUDA have another remainder
@function(
    functions.remainder,
    lambda g, y, a: (g, -g * torch.round((a[0] - y) / a[1])),
    c="modulo",
    python="modulo",
    helper=True,
    numpy="remainder",
    unbounded=True,
    exact=True,
)
def remainder(x: Value, divisor: Value) -> Value:
    """``x - divisor * floor(x / divisor)``, as Python's ``%``: of the sign of ``divisor``, computed by C's ``fmod``."""
    return operations.apply("remainder", x, divisor)


def _extremum(g: Any, a: Any, b: Any, a_loses: Any, b_loses: Any) -> Sequence[Any]:
    shared = torch.where(a == b, g / 2.0, g)
    return torch.where(a_loses, 0.0, shared), torch.where(b_loses, 0.0, shared)


# Python's min and max differ from the language in ties and NaNs
@function(
    functions.minimum,
    lambda g, y, a: _extremum(g, a[0], a[1], a[0] > a[1], a[0] < a[1]),
    helper=True,
    python="lesser",
    exact=True,
)
def minimum(a: Value, b: Value) -> Value:
    """The smaller one; a tie gives half the gradient to each. NaN if one is NaN."""
    return operations.apply("minimum", a, b)


@function(
    functions.maximum,
    lambda g, y, a: _extremum(g, a[0], a[1], a[0] < a[1], a[0] > a[1]),
    helper=True,
    python="greater",
    exact=True,
)
def maximum(a: Value, b: Value) -> Value:
    """The larger one; a tie gives half the gradient to each. NaN if one is NaN."""
    return operations.apply("maximum", a, b)


@composed
def logaddexp(a: Value, b: Value) -> Value:
    """``log(exp(a) + exp(b))``, never infinite for finite numbers."""
    return maximum(a, b) + softplus(-abs(where(a == b, 0.0, a - b)))


def _clamp(g: Any, y: Any, args: Sequence[Any]) -> Sequence[Any]:
    x, low, high = args
    return (
        torch.where((x >= low) & (x <= high), g, 0.0),
        torch.where((low < high) & (x < low), g, 0.0),
        torch.where((x > high) | (high < low), g, 0.0),
    )


@function(
    functions.clamp,
    _clamp,
    helper=True,
    python=(ATOM, "lesser(greater({0}, {1}), {2})"),
    names=("clamp", "clip"),
    exact=True,
)
def clamp(x: Value, low: Value = -math.inf, high: Value = math.inf) -> Value:
    """``min(max(x, low), high)``; derivative 1 within and at the bounds, 0 outside."""
    return operations.apply("clamp", x, low, high)


# -- spikes and choices


@function(
    functions.select,
    c=(TERNARY, "{0} != {zero} ? {1} : {2}"),
    python=(TERNARY, "{1} if {0} != {zero} else {2}"),
    names=(),
    numpy="",
    exact=True,
)
def select(z: Value, a: Value, b: Value) -> Value:
    """``a`` where ``z``, a spike, is not 0, else ``b``, exactly; the gradient is that of ``z*a + (1-z)*b``."""
    return operations.apply("select", z, a, b)


@function(functions.detach, c=(ATOM, "{0}"), python=(ATOM, "{0}"), numpy="", exact=True)
def detach(x: Value) -> Value:
    """The same value, through which no gradient flows."""
    return operations.apply("detach", x)


def spike(u: Value, surrogate: Surrogate, strict: bool = False) -> Value:
    """1 where ``u >= 0`` (``u > 0`` if ``strict``), else 0; ``surrogate.derivative(u)`` is its derivative.

    The numbers of the surrogate may be expressions of parameters, such as ``ATan(alpha=1.0 / p.tau)``: the width of the
    derivative then follows what is learnt or set, and nothing is compiled again. No gradient flows to a parameter
    through a derivative, as in Lian et al. (2023), whose widths follow decay factors that the equations read, too. A
    parameter that only a surrogate reads has no gradient, and cannot be learnt.
    """
    return operations.apply("spike", u, surrogate, strict)


operations.declare(
    "spike",
    1,
    functions.spike,
    None,
    (TERNARY, "{0} {compare} {zero} ? {one} : {zero}"),
    (TERNARY, "{one} if {0} {compare} {zero} else {zero}"),
    (ATOM, "spike({0} {compare} 0)"),
    exact=True,
    doc="1 where ``u >= 0`` (``u > 0`` if strict), else 0; its derivative is the surrogate's.",
)


def named(name: str, value: Value) -> Value:
    """The same value, which a call can record by this name, as a state: ``run(x, record=(name,))``.

    :func:`spikecore.monitor` and :func:`spikecore.record` take the name, too. The value is that within each step.
    """
    return operations.apply("named", name, value)


# -- truth values


def _comparison(name: str, sign: str, numpy: str, binding: int = ORDER) -> None:
    operator(name, getattr(torch, name), None, (binding, f"{{0}} {sign} {{1}}"), numpy, kind="comparison")


_comparison("ge", ">=", "greater_equal")
_comparison("gt", ">", "greater")
_comparison("le", "<=", "less_equal")
_comparison("lt", "<", "less")
_comparison("eq", "==", "equal", EQUALITY)
_comparison("ne", "!=", "not_equal", EQUALITY)
# Python's `and` and `or` would branch; `&` and `|` bind more tightly than comparisons, which then have parentheses
operator("and", torch.logical_and, None, (AND, "{0} && {1}"), "logical_and", (PRODUCT, "{0} & {1}"), kind="logic")
operator("or", torch.logical_or, None, (OR, "{0} || {1}"), "logical_or", (SUM, "{0} | {1}"), kind="logic")
operator("not", torch.logical_not, None, (UNARY, "!{0}"), "logical_not", (UNARY, "~{0}"), kind="logic")


@function(
    torch.where,
    lambda g, y, a: (None, torch.where(a[0], g, 0.0), torch.where(a[0], 0.0, g)),
    c=(TERNARY, "{0} ? {1} : {2}"),
    python=(TERNARY, "{1} if {0} else {2}"),
    kind="choice",
    exact=True,
)
def where(condition: Value, a: Value, b: Value) -> Value:
    """``a`` where the comparison holds, else ``b``; gradient to ``a`` and ``b`` only."""
    return operations.apply("where", condition, a, b)


@composed
def relu(x: Value) -> Value:
    """``x`` where it is above 0, else 0, as ``where(x <= 0, 0, x)``; derivative 0 at 0, as torch's. NaN for NaN."""
    return where(x <= 0.0, 0.0, x)


def sum(vector: Value) -> Value:
    """Sum of the values of a vector (``sc.vector``), in their order: ``v[0] + v[1] + v[2] + ...``."""
    return operations.apply("sum", vector)


def __dir__() -> List[str]:
    return sorted({name for name in operations.OPERATION if name in globals()} | {*operations.COMPOSED, "named", "sum"})
