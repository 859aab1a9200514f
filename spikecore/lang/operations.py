"""The operations of the language: one row each.

:data:`ROWS` is read by everything that knows operations: nodes (arity), ``sc.ops`` and the reference (torch), adjoints
(gradient), printers (c, python), values that record (names that torch and NumPy have for it), tables of other libraries
(numpy), and the suite's lists. A target has a line of its own where it has no such function.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch

from spikecore.lang import _functions as functions

#: How tightly operators bind, loosest first. A template's arguments are put in parentheses when they bind less tightly.
TERNARY, OR, AND, EQUALITY, ORDER, SUM, PRODUCT, UNARY, ATOM = range(9)

#: How tightly a text binds, and its template. Beside the arguments a template may have ``{f}``, the suffix of C's
#: functions for floats; ``{math}``, the module of Python's; ``{zero}``, ``{one}`` and ``{compare}``, ``>`` or ``>=``.
Template = Tuple[int, str]
#: op -> its template.
Templates = Dict[str, Template]

#: rule(g, y, args): what the arguments of a node get of its cotangent g, None for nothing; y is the node's value. The
#: values record, so a rule is written with operators and torch's functions.
Rule = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]

#: The derivative of ``erf`` at 0.
_TWO_BY_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _extremum(g: Any, a: Any, b: Any, a_loses: Any, b_loses: Any) -> Sequence[Any]:
    shared = torch.where(a == b, g / 2.0, g)
    return torch.where(a_loses, 0.0, shared), torch.where(b_loses, 0.0, shared)


def _power(g: Any, y: Any, args: Sequence[Any]) -> Sequence[Any]:
    x, n = args
    to_x = torch.where(n == 0.0, 0.0, g * (n * x ** (n - 1.0)))
    to_n = g * torch.where((x == 0.0) & (n >= 0.0), 0.0, y * torch.log(x))
    return to_x, to_n


def _clamp(g: Any, y: Any, args: Sequence[Any]) -> Sequence[Any]:
    x, low, high = args
    return (
        torch.where((x >= low) & (x <= high), g, 0.0),
        torch.where((low < high) & (x < low), g, 0.0),
        torch.where((x > high) | (high < low), g, 0.0),
    )


class Operation(NamedTuple):
    """An operation: what it means, how it is differentiated and written."""

    name: str
    #: Number of arguments.
    arity: int
    #: Value and derivative of tensors.
    torch: Callable[..., Any]
    #: The reverse rule; None where no gradient flows, and for ``spike`` and ``select``, which torch has not.
    gradient: Optional[Rule]
    c: Template
    #: What compilers of Python have in common.
    python: Template
    #: What people read; None for a call by name.
    text: Optional[Template] = None
    #: "number", "comparison" (numbers give a truth value), "logic" (of truth values) or "choice" (by a truth value).
    kind: str = "number"
    #: Names of ``torch.<name>`` that record the operation.
    names: Tuple[str, ...] = ()
    #: NumPy's function of the same values, which JAX has, too; "" where there is none.
    numpy: str = ""
    #: Whether each bit of the value is fixed: IEEE 754 rounds it, or nothing does.
    exact: bool = False
    #: Whether the derivative can be infinite, or not a number, at finite arguments of moderate size.
    unbounded: bool = False
    #: Names of the arguments, for messages.
    arguments: str = "x"

    @property
    def is_function(self) -> bool:
        """Whether a definition writes it as ``sc.ops.<name>(...)``, and not as an operator or ``self.spike``."""
        return self.text is None


def _operator(
    name: str, torch_: Any, gradient: Optional[Rule], template: Template, numpy: str, **more: Any
) -> Operation:
    """What C, Python and people write alike."""
    return Operation(name, 2, torch_, gradient, template, template, template, numpy=numpy, exact=True, **more)


def _comparison(name: str, sign: str, numpy: str, binding: int = ORDER) -> Operation:
    return _operator(name, getattr(torch, name), None, (binding, f"{{0}} {sign} {{1}}"), numpy, kind="comparison")


def _logic(name: str, arity: int, torch_: Any, c: Template, python: Template) -> Operation:
    numpy = f"logical_{name}"
    return Operation(name, arity, torch_, None, c, python, python, kind="logic", numpy=numpy, exact=True)


def _function(name: str, torch_: Any, gradient: Optional[Rule], c: str = "", *names: str, **more: Any) -> Operation:
    """A function of one number of the libraries of C, Python and NumPy, with C's name where it is another."""
    c, python, numpy = f"{c or name}{{f}}({{0}})", f"{{math}}.{name}({{0}})", more.pop("numpy", name)
    return Operation(name, 1, torch_, gradient, (ATOM, c), (ATOM, python), names=(name, *names), numpy=numpy, **more)


def _own(
    name: str, torch_: Any, gradient: Optional[Rule], arguments: str = "x", python: str = "", **more: Any
) -> Operation:
    """A function that targets write themselves: a template of operators would write an argument twice."""
    arity = arguments.count(",") + 1
    call = ATOM, f"{name}({', '.join(f'{{{i}}}' for i in range(arity))})"
    names = (name, *more.pop("names", ()))
    python_ = (ATOM, python) if python else call
    return Operation(name, arity, torch_, gradient, call, python_, names=names, arguments=arguments, **more)


_MINUS = UNARY, "-{0}"

ROWS: Tuple[Operation, ...] = (
    _operator("add", torch.add, lambda g, y, a: (g, g), (SUM, "{0} + {1}"), "add"),
    _operator("sub", torch.sub, lambda g, y, a: (g, -g), (SUM, "{0} - {1}"), "subtract"),
    _operator("mul", torch.mul, lambda g, y, a: (g * a[1], g * a[0]), (PRODUCT, "{0} * {1}"), "multiply"),
    _operator(
        "div",
        torch.div,
        lambda g, y, a: (g / a[1], -g * (y / a[1])),
        (PRODUCT, "{0} / {1}"),
        "divide",
        unbounded=True,
    ),
    Operation("neg", 1, torch.neg, lambda g, y, a: (-g,), _MINUS, _MINUS, _MINUS, numpy="negative", exact=True),
    _function("exp", torch.exp, lambda g, y, a: (g * y,)),
    _function("log", torch.log, lambda g, y, a: (g / a[0],), unbounded=True),
    _function("sqrt", functions.sqrt, lambda g, y, a: (g / (2.0 * y),), unbounded=True, exact=True),
    _function("sin", torch.sin, lambda g, y, a: (g * torch.cos(a[0]),)),
    _function("cos", torch.cos, lambda g, y, a: (-g * torch.sin(a[0]),)),
    _function("tanh", torch.tanh, lambda g, y, a: (g * (1.0 - y * y),)),
    _own("sigmoid", torch.sigmoid, lambda g, y, a: (g * (1.0 - y) * y,)),
    _own("softplus", functions.softplus, lambda g, y, a: (g * torch.sigmoid(a[0]),)),
    _function("atan", torch.atan, lambda g, y, a: (g / (a[0] * a[0] + 1.0),), "", "arctan", numpy="arctan"),
    _function(
        "erf",
        torch.erf,
        lambda g, y, a: (g * (_TWO_BY_ROOT_PI * torch.exp(-(a[0] * a[0]))),),
        "",
        "special_erf",
        numpy="",
    ),
    _function("abs", torch.abs, lambda g, y, a: (g * torch.sign(a[0]),), "fabs", "absolute", exact=True),
    _own("sign", functions.sign, None, exact=True),
    _function("floor", functions.floor, None, exact=True),
    _function("round", functions.round, None, "rint", numpy="rint", exact=True),
    Operation(
        "power",
        2,
        torch.pow,
        _power,
        (ATOM, "pow{f}({0}, {1})"),
        (ATOM, "{math}.pow({0}, {1})"),
        names=("pow",),
        numpy="power",
        unbounded=True,
        arguments="x, n",
    ),
    # Python's min and max differ from the language in ties and NaNs
    _own(
        "minimum",
        functions.minimum,
        lambda g, y, a: _extremum(g, a[0], a[1], a[0] > a[1], a[0] < a[1]),
        "x, y",
        "lesser({0}, {1})",
        exact=True,
    ),
    _own(
        "maximum",
        functions.maximum,
        lambda g, y, a: _extremum(g, a[0], a[1], a[0] < a[1], a[0] > a[1]),
        "x, y",
        "greater({0}, {1})",
        exact=True,
    ),
    _own(
        "clamp", functions.clamp, _clamp, "x, low, high", "lesser(greater({0}, {1}), {2})", names=("clip",), exact=True
    ),
    Operation(
        "select",
        3,
        functions.select,
        None,
        (TERNARY, "{0} != {zero} ? {1} : {2}"),
        (TERNARY, "{1} if {0} != {zero} else {2}"),
        exact=True,
    ),
    Operation("detach", 1, functions.detach, None, (ATOM, "{0}"), (ATOM, "{0}"), names=("detach",), exact=True),
    Operation(
        "spike",
        1,
        functions.spike,
        None,
        (TERNARY, "{0} {compare} {zero} ? {one} : {zero}"),
        (TERNARY, "{one} if {0} {compare} {zero} else {zero}"),
        (ATOM, "spike({0} {compare} 0)"),
        exact=True,
    ),
    _comparison("ge", ">=", "greater_equal"),
    _comparison("gt", ">", "greater"),
    _comparison("le", "<=", "less_equal"),
    _comparison("lt", "<", "less"),
    _comparison("eq", "==", "equal", EQUALITY),
    _comparison("ne", "!=", "not_equal", EQUALITY),
    # Python's `and` and `or` would branch; `&` and `|` bind more tightly than comparisons, which then have parentheses
    _logic("and", 2, torch.logical_and, (AND, "{0} && {1}"), (PRODUCT, "{0} & {1}")),
    _logic("or", 2, torch.logical_or, (OR, "{0} || {1}"), (SUM, "{0} | {1}")),
    _logic("not", 1, torch.logical_not, (UNARY, "!{0}"), (UNARY, "~{0}")),
    Operation(
        "where",
        3,
        torch.where,
        lambda g, y, a: (None, torch.where(a[0], g, 0.0), torch.where(a[0], 0.0, g)),
        (TERNARY, "{0} ? {1} : {2}"),
        (TERNARY, "{1} if {0} else {2}"),
        kind="choice",
        names=("where",),
        numpy="where",
        exact=True,
        arguments="condition, x, y",
    ),
)
#: Every operation that is not a leaf: op name -> its row.
OPERATION: Dict[str, Operation] = {row.name: row for row in ROWS}
