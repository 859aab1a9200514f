"""What holds of each operation at NaN, infinities, zeros of both signs, subnormals, ties and large numbers.

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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import spikecore as sc
from spikecore.testing._oracle import SURROGATES
from spikecore.testing._oracle.rules import BACK, EXACT, VALUE, Array
from spikecore.testing.random_programs.edges import FEW, POINTS, TABLE

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
    #: What the contract says, for messages.
    rule: str = ""
    #: Where an argument or the value is not finite, a gradient may be 0, or all of the cotangent, instead.
    lenient: bool = False
    #: ``open(*args)``: where the contract says nothing.
    open: Optional[Callable[..., Array]] = None


_RULES = {
    "minimum": "NaN if one is NaN; at a tie the value is b, and each gets half of the gradient",
    "maximum": "NaN if one is NaN; at a tie the value is b, and each gets half of the gradient",
    "clamp": "minimum(maximum(x, low), high); at a bound the gradient is that of x; none flows from a NaN x",
    "sign": "0 at 0 and at NaN; no gradient flows",
    "abs": "its derivative is 0 at 0 and at NaN",
    "round": "ties go to even, and the sign of zero is kept",
    "floor": "the sign of zero is kept",
    "power": "the gradient of x is 0 for n = 0, that of n is 0 for x = 0, n >= 0",
    "sqrt": "rounded as IEEE 754 has it, and sqrt(-0.0) is -0.0",
    "div": "rounded as IEEE 754 has it; no multiplication by a reciprocal",
    "neg": "the sign of zero changes, too",
    "detach": "the value as it is; no gradient flows",
    "where": "the side that was not chosen gets the cotangent 0, whatever its value",
    "relu": "where(x <= 0, 0, x): the derivative is 0 at 0; NaN for NaN, through which the gradient flows",
    "select": "an exact choice, differentiated as z a + (1 - z) b",
    **dict.fromkeys("ge gt le lt eq".split(), "false for NaN; 0.0 equals -0.0; no gradient flows"),
    "ne": "true for NaN; 0.0 equals -0.0; no gradient flows",
}
#: Operations in whose values the sign of a zero is open. The documentation lists them, and promises all others.
UNSIGNED = ("exp", "log", "cos", "sigmoid", "power")


def _listed(name: str) -> Edge:
    edge = TABLE[name]

    def value(*args: Array) -> Array:
        given = [args[0] > 0.25, *args[1:]] if name == "where" else args
        return np.asarray(VALUE[name](*given)).astype(args[0].dtype)

    def back(g: Array, y: Array, *args: Array) -> Sequence[Optional[Array]]:
        given = [args[0] > 0.25, *args[1:]] if name == "where" else args
        return [None] * edge.arity if edge.flat else BACK[name](g, y, *given)

    lenient = name in ("minimum", "maximum", "clamp")
    return Edge(name, edge.arity, edge.write, value, back, name in EXACT, _RULES.get(name, ""), lenient)


def _nothing(g: Array, y: Array, *args: Array) -> Sequence[Optional[Array]]:
    return [None] * len(args)


def _logic(name: str, arity: int, write: Callable[..., Any], truth: Callable[..., Array]) -> Edge:
    def value(*args: Array) -> Array:
        return truth(*args).astype(args[0].dtype)

    rule = "a comparison with NaN is false, and its negation true; no gradient flows"
    return Edge(name, arity, lambda *a: sc.ops.where(write(*a), 1.0, 0.0), value, _nothing, True, rule)


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

    rule = "NaN does not fire; a tie fires unless strict; the derivative is the surrogate's formula, NaN included"
    return Edge(name, 1, lambda a: sc.ops.spike(a, made, strict), value, back, True, rule, lenient=True)


def _select_back(g: Array, y: Array, *args: Array) -> Sequence[Optional[Array]]:
    found: Sequence[Optional[Array]] = BACK["select"](g, y, *args)
    return found


def _powered(name: str, exponent: float) -> Edge:
    def back(g: Array, y: Array, x: Array) -> Sequence[Optional[Array]]:
        return BACK["power"](g, y, x, np.full_like(x, exponent))[:1]

    def value(x: Array) -> Array:
        return np.asarray(VALUE["power"](x, np.full_like(x, exponent)))

    return Edge(name, 1, lambda a: sc.ops.power(a, exponent), value, back, False, f"x to the power of {exponent}")


def _bound(name: str, write: Callable[..., Any], fill: Tuple[Optional[float], Optional[float]]) -> Edge:
    def full(x: Array, bound: Array) -> List[Array]:
        return [x, *[bound if number is None else np.full_like(x, number) for number in fill]]

    def back(g: Array, y: Array, x: Array, bound: Array) -> Sequence[Optional[Array]]:
        found = BACK["clamp"](g, y, *full(x, bound))
        return [found[0], found[1 if fill[0] is None else 2]]

    def value(x: Array, bound: Array) -> Array:
        return np.asarray(VALUE["clamp"](*full(x, bound)))

    return Edge(name, 2, write, value, back, True, _RULES["clamp"], lenient=True)


def _relu() -> Edge:
    def value(x: Array) -> Array:
        return np.asarray(np.where(x <= 0, np.zeros_like(x), x))

    def back(g: Array, y: Array, x: Array) -> Sequence[Optional[Array]]:
        return [np.where(x <= 0, np.zeros_like(g), g)]

    return Edge("relu", 1, sc.ops.relu, value, back, True, _RULES["relu"])


def _alone() -> List[Edge]:
    found = [_listed(name) for name, edge in TABLE.items() if edge.arity == 1]
    found += [_powered(f"power-{name}", n) for name, n in (("square", 2.0), ("cube", 3.0), ("root", 0.5))]
    found += [_powered("power-zero", 0.0), _powered("power-inverse", -1.0)]
    found.append(_relu())
    found.append(_logic("not", 1, lambda a: ~(a > 0.5), lambda a: ~(a > 0.5)))
    return [*found, _spike("spike", False, "ATan"), _spike("spike-strict", True, "ATan")]


def _pairs() -> List[Edge]:
    found = [_listed(name) for name, edge in TABLE.items() if edge.arity == 2]
    found.append(_logic("and", 2, lambda a, b: (a > b) & (a <= 1.0), lambda a, b: (a > b) & (a <= 1.0)))
    found.append(_logic("or", 2, lambda a, b: (a > b) | (b != 1.0), lambda a, b: (a > b) | (b != 1.0)))
    found.append(_bound("clamp-below", lambda a, b: sc.ops.clamp(a, low=b), (None, np.inf)))
    found.append(_bound("clamp-above", lambda a, b: sc.ops.clamp(a, high=b), (-np.inf, None)))
    return found


def _triples() -> List[Edge]:
    def chosen(z: Array, a: Array, b: Array) -> Array:
        return np.asarray(VALUE["select"](z, a, b))

    def strange(z: Array, a: Array, b: Array) -> Array:
        return ~np.isfinite(z)  # z is a spike

    select = Edge("select", 3, sc.ops.select, chosen, _select_back, True, _RULES["select"], True, strange)
    return [*[_listed(name) for name, edge in TABLE.items() if edge.arity == 3], select]


#: What goes into one program, by name.
GROUPS: Dict[str, List[Edge]] = {
    "one argument": _alone(),
    "two arguments": _pairs(),
    "three arguments": _triples(),
    "surrogates": [_spike(f"surrogate-{name}", False, name) for name in SURROGATES],
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
    """Whether the contract fixes the sign of its zeros."""
    return edge.name.partition("-")[0] not in UNSIGNED
