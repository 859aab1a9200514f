"""Contract of each operation at NaN, infinities, zeros of both signs, subnormals, ties and large numbers.

Rules of this module:

- Many operations go into one program, each with inputs of its own, so that a backend which compiles does so few times
  and no gradient of one operation reaches another.
- What is right comes from :mod:`spikecore.testing._oracle.rules` and :mod:`spikecore.testing._oracle`, in
  NumPy.
- The sign of a zero counts in values, but for those of :data:`UNSIGNED`. It does not count in gradients. Which NaN
  it is does not count anywhere.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from inspect import signature
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import spikecore as sc
from spikecore.lang.operations import COMPOSED, ROWS, Operation
from spikecore.testing._oracle import SURROGATES
from spikecore.testing._oracle.rules import BACK, EXACT, VALUE, Array

#: Numbers where something happens, and some between; and fewer of them, for operations with three arguments.
_ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0)
POINTS = (*_ODD, 1e-40, -1e-45, 0.5, -0.5, 1.0, -1.0, 1.5, -2.5, 1e3, 3e9, -3e9, 1e30, -1e30)
FEW = (*_ODD, -1e-45, 1.0, -1.0, 2.5)
#: Numbers that are no operands of others: as the constants of a program.
CONSTANTS = {
    "nan": (np.nan,),
    "infinite": (np.inf, -np.inf),
    "zero": (0.0, -0.0),
    "subnormal": (1e-40, -1e-45),
    "inexact": (0.1, 1 / 3, 16777217.0),
    "large": (1e3, 3e9, 1e30, -1e30),
    "beyond-float32": (1e39, -1e39, 1e-46),
}


class Edge(NamedTuple):
    """One operation: as it is written, and what is right."""

    name: str
    arity: int
    write: Callable[..., Any]
    #: ``value(*args)`` in the dtype of the arguments.
    value: Callable[..., Array]
    #: ``back(g, y, *args)``: the cotangents of the arguments, None for one that gets none.
    back: Callable[..., Sequence[Optional[Array]]]
    #: Every bit of the value is fixed, but for which NaN it is.
    exact: bool
    #: True if a gradient may also be 0, or all of the cotangent, where an argument or the value is not finite.
    lenient: bool = False
    #: ``open(*args)``: where the contract says nothing.
    open: Optional[Callable[..., Array]] = None


#: Operations in whose values the sign of a zero is open. The documentation lists them, and promises all others.
UNSIGNED = ("exp", "log", "cos", "sigmoid", "power")
#: Operations whose gradient a backend may leave out, or give to one argument, where something is not finite.
_LENIENT = ("minimum", "maximum", "clamp", "remainder", "logaddexp")
#: Operation -> where the contract says nothing: torch's vectors on a CPU make NaN of a subnormal divisor.
_OPEN: Dict[str, Callable[..., Array]] = {
    "remainder": lambda x, divisor: (divisor != 0) & (np.abs(divisor) < np.finfo(divisor.dtype).tiny)
}


def _operation(
    name: str, op: str, write: Callable[..., Any], fill: Sequence[Optional[float]], flat: bool = False
) -> Edge:
    """An operation of the language. fill: its arguments, None for those that vary. flat: no gradient flows."""

    def full(args: Sequence[Array]) -> List[Array]:
        given = iter([args[0] > 0.25, *args[1:]] if op == "where" else args)
        return [next(given) if number is None else np.full_like(args[0], number) for number in fill]

    def value(*args: Array) -> Array:
        return np.asarray(VALUE[op](*full(args))).astype(args[0].dtype)

    def back(g: Array, y: Array, *args: Array) -> Sequence[Optional[Array]]:
        if flat:
            return [None] * len(args)
        return [to for to, number in zip(BACK[op](g, y, *full(args)), fill) if number is None]

    return Edge(name, fill.count(None), write, value, back, op in EXACT, op in _LENIENT, _OPEN.get(op))


def _listed(row: Operation) -> Edge:
    """A row as a definition writes it: by ``sc.ops``, or by torch's name of an operator."""
    write = getattr(sc.ops, row.name) if row.is_function else row.torch
    arity, written = row.arity, write
    if row.kind == "comparison":
        arity, written = 2, lambda a, b: sc.ops.where(write(a, b), 1.0, 0.0)
    elif row.kind == "choice":
        arity, written = 3, lambda c, a, b: write(c > 0.25, a, b)
    return _operation(row.name, row.name, written, [None] * arity, row.kind == "comparison" or row.gradient is None)


#: Name -> operation of the language. Spikes and truth values are no numbers.
TABLE: Dict[str, Edge] = {
    **{row.name: _listed(row) for row in ROWS if row.kind != "logic" and row.name not in ("select", "spike")},
    **{
        name: _operation(name, name, write, [None] * len(signature(write).parameters), name not in BACK)
        for name, write in COMPOSED.items()
    },
}


def _logic(name: str, arity: int, truth: Callable[..., Any]) -> Edge:
    def value(*args: Array) -> Array:
        return np.asarray(truth(*args)).astype(args[0].dtype)

    def back(g: Array, y: Array, *args: Array) -> Sequence[Optional[Array]]:
        return [None] * len(args)

    return Edge(name, arity, lambda *a: sc.ops.where(truth(*a), 1.0, 0.0), value, back, True)


def _spike(name: str, strict: bool, surrogate: str) -> Edge:
    made: Any = getattr(sc.surrogate, surrogate)()
    of = SURROGATES[surrogate]

    def value(u: Array) -> Array:
        return np.asarray(u > 0 if strict else u >= 0).astype(u.dtype)

    def back(g: Array, y: Array, u: Array) -> Sequence[Optional[Array]]:
        slope = of(u)
        if surrogate == "SquarewaveFourier":
            slope = np.where(np.isinf(u), 4.0 / of.arguments["period"], slope)  # a whole number of turns
        if surrogate in ("FakeNumericalGradient", "LogTailedReLU"):
            slope = np.where(np.isnan(u), np.nan, slope)
        return [g * slope.astype(u.dtype)]

    return Edge(name, 1, lambda a: sc.ops.spike(a, made, strict), value, back, True, lenient=True)


def _of_arity(arity: int) -> List[Edge]:
    return [edge for edge in TABLE.values() if edge.arity == arity]


def _alone() -> List[Edge]:
    exponents = {"square": 2.0, "cube": 3.0, "root": 0.5, "zero": 0.0, "inverse": -1.0}
    powers = [
        _operation(f"power-{name}", "power", lambda a, n=n: sc.ops.power(a, n), (None, n))
        for name, n in exponents.items()
    ]
    through = Edge(
        "round-straight-through",
        1,
        lambda x: sc.ops.round(x, straight_through=True),
        np.rint,
        lambda g, y, x: [g],
        True,
        open=np.isinf,
    )
    spikes = [_spike("spike", False, "ATan"), _spike("spike-strict", True, "ATan")]
    return [*_of_arity(1), *powers, through, _logic("not", 1, lambda a: ~(a > 0.5)), *spikes]


def _pairs() -> List[Edge]:
    return [
        *_of_arity(2),
        _logic("and", 2, lambda a, b: (a > b) & (a <= 1.0)),
        _logic("or", 2, lambda a, b: (a > b) | (b != 1.0)),
        _operation("clamp-below", "clamp", lambda a, b: sc.ops.clamp(a, low=b), (None, None, np.inf)),
        _operation("clamp-above", "clamp", lambda a, b: sc.ops.clamp(a, high=b), (None, -np.inf, None)),
    ]


def _triples() -> List[Edge]:
    select = _operation("select", "select", sc.ops.select, (None, None, None))
    # the contract says nothing where z is no spike
    return [*_of_arity(3), select._replace(lenient=True, open=lambda z, a, b: ~np.isfinite(z))]


def _with_numbers(numbers: Sequence[float]) -> List[Edge]:
    """Operations of an argument and a number that stands in the program."""
    return [
        edge
        for n in numbers
        for edge in (
            _operation(f"x + {n}", "add", lambda a, n=n: a + n, (None, n)),
            _operation(f"x * {n}", "mul", lambda a, n=n: a * n, (None, n)),
            _operation(f"{n} / x", "div", lambda a, n=n: n / a, (n, None)),
            _operation(f"minimum(x, {n})", "minimum", lambda a, n=n: sc.ops.minimum(a, n), (None, n)),
        )
    ]


#: The groups of operations.
OPERATIONS = ("one argument", "two arguments", "three arguments", "surrogates")
#: Edges of one program, by name.
GROUPS: Dict[str, List[Edge]] = {
    "one argument": _alone(),
    "two arguments": _pairs(),
    "three arguments": _triples(),
    "surrogates": [_spike(f"surrogate-{name}", False, name) for name in SURROGATES],
    **{f"constant-{kind}": _with_numbers(numbers) for kind, numbers in CONSTANTS.items()},
}


class _Apply(sc.Neuron):
    """Outputs are operations, each on inputs of its own."""

    edges: Tuple[Edge, ...] = ()

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """Every operation, in order."""
        given = iter([x] if len(self.inputs) == 1 else x)
        outs = [edge.write(*itertools.islice(given, edge.arity)) for edge in self.edges]
        return (tuple(outs) if len(outs) > 1 else outs[0]), {}


def made(edges: Sequence[Edge], backend: str) -> sc.Neuron:
    """The neuron of these operations."""
    inputs = tuple(f"a{i}_{k}" for i, edge in enumerate(edges) for k in range(edge.arity))
    names = {"inputs": inputs, "edges": tuple(edges), "__doc__": _Apply.__doc__}
    neuron: sc.Neuron = type("Edges", (_Apply,), names)(backend=backend)
    return neuron


@lru_cache(maxsize=None)
def grid(arity: int, double: bool) -> Tuple[Array, ...]:
    """The product of the points, one array per argument."""
    points = [*itertools.product(POINTS if arity < 3 else FEW, repeat=arity)]
    columns = np.array(points, np.float64 if double else np.float32).T
    return tuple(np.ascontiguousarray(column) for column in columns)


def expected(edge: Edge, double: bool) -> Array:
    """The values of an operation at :func:`grid`."""
    with np.errstate(all="ignore"):
        return np.asarray(edge.value(*grid(edge.arity, double)))


def slopes(edge: Edge, cotangent: float, double: bool) -> List[Array]:
    """The gradients of its arguments there, for this cotangent of every value."""
    args, y = grid(edge.arity, double), expected(edge, double)
    g = np.full_like(y, cotangent)
    with np.errstate(all="ignore"):
        found = edge.back(g, y, *args)
    return [np.zeros_like(g) if one is None else np.asarray(one) for one in found]


def signed(edge: Edge) -> bool:
    """True if the contract fixes the sign of its zeros."""
    return edge.name.partition("-")[0] not in UNSIGNED
