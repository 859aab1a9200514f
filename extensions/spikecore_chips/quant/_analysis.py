"""Intervals and bit widths of a program: the proof that its floating-point numbers are integers.

A value on a grid is ``n * 2**-frac`` for a whole number n. Rules of this module:

- A float with a significand of p bits holds every such value with ``|n| <= 2**p`` exactly. Where that is so for the
  arguments and the result of ``+ - *``, a comparison, a choice, ``round`` or ``floor``, the operation on floats gives
  what the operation on integers gives: nothing is rounded, on no backend.
- Fractional bits of a product add; a sum has those of the argument with more of them. A product with a constant power
  of two changes ``frac`` alone. ``v - detach(v)`` is 0.
- What depends on parameters alone is a coefficient. It may be computed in floats, and is rounded to a grid before it
  meets what changes from step to step. The same holds for an input that comes as a float.
- A state has one format at each step: the smallest that its initial value and its next value fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch

from spikecore.lang import Node, Program, loop_invariant, topological
from spikecore.lang.operations import OPERATION

#: dtype of the arithmetic -> the bits of its significand.
SIGNIFICAND = {torch.float32: 24, torch.float64: 53}
#: Distance of a grid from 1 at most, in powers of two: a scaled value stays a normal float32.
_LARGEST_SHIFT = 100
#: Rounds after which an end of a state's interval that still moves becomes that of its saturation; and after which,
#: where it has none, it becomes 0, or twice as large.
_PATIENCE, _LONG_PATIENCE = 4, 32

End = Union[int, float]


class Inexact(ValueError):
    """A program is not integer arithmetic in this dtype."""


@dataclass(frozen=True)
class Format:
    """The numbers ``n * 2**-frac`` for whole numbers n from ``low`` to ``high``.

    ``frac`` may be negative: all values are then multiples of a power of two above 1. ``frac=None``: any float from
    ``low`` to ``high``, which nothing has rounded yet. Truth values are 0 and 1.
    """

    frac: Optional[int]
    low: End
    high: End

    @property
    def is_float(self) -> bool:
        """True for floats that nothing has rounded yet."""
        return self.frac is None

    @property
    def is_whole(self) -> bool:
        """True if all values are whole numbers, as spikes are."""
        return self.frac is not None and self.frac <= 0

    @property
    def bits(self) -> int:
        """The smallest b with ``|n| <= 2**b``: the bits of the significand that hold every value exactly."""
        most = max(abs(int(self.low)), abs(int(self.high)))
        return (most - 1).bit_length() if most else 0

    @property
    def ends(self) -> Tuple[float, float]:
        """The lowest and the highest value."""
        if self.frac is None:
            return float(self.low), float(self.high)
        return math.ldexp(self.low, -self.frac), math.ldexp(self.high, -self.frac)

    def at(self, frac: int) -> Format:
        """The same values with so many fractional bits, with fewer only where both ends stay whole."""
        shift = frac - (self.frac or 0)
        if shift < 0:
            return Format(frac, int(self.low) >> -shift, int(self.high) >> -shift)
        return Format(frac, int(self.low) << shift, int(self.high) << shift)

    def holds(self, other: Format) -> bool:
        """True if every value of another format is one of this."""
        if self.frac is None or other.frac is None or other.frac > self.frac:
            return False
        same = other.at(self.frac)
        return self.low <= same.low and same.high <= self.high

    def __str__(self) -> str:
        low, high = self.ends
        return f"[{low:g}, {high:g}]" + ("" if self.frac is None else f" / 2^{self.frac} ({self.bits} bits)")


#: Truth values and spikes; the difference of a value with itself; any float.
FLAG, ZERO, ANY = Format(0, 0, 1), Format(0, 0, 0), Format(None, -math.inf, math.inf)


def signed(word: int, frac: int) -> Format:
    """The integers of ``word`` bits in two's complement, over ``2**frac``."""
    return Format(frac, -(1 << (word - 1)), (1 << (word - 1)) - 1)


def of_number(value: float, significand: int) -> Format:
    """The format of a constant, without fractional bits that it does not need; a float that is rounded is one."""
    if not math.isfinite(value):
        return Format(None, value, value)
    n, denominator = value.as_integer_ratio()
    frac = denominator.bit_length() - 1
    while abs(n) > 1 << significand and n % 2 == 0:
        n, frac = n // 2, frac - 1
    return Format(frac, n, n) if abs(n) <= 1 << significand else Format(None, value, value)


def union(a: Format, b: Format) -> Format:
    """The smallest format of the values of both."""
    if a.frac is None or b.frac is None:
        (low_a, high_a), (low_b, high_b) = a.ends, b.ends
        return Format(None, min(low_a, low_b), max(high_a, high_b))
    a, b = _aligned(a, b)
    return Format(a.frac, min(a.low, b.low), max(a.high, b.high))


def _aligned(*formats: Format) -> List[Format]:
    # 0 is on every grid
    frac = max((int(f.frac) for f in formats if f.frac is not None and (f.low or f.high)), default=0)
    return [f.at(frac) if f.low or f.high else Format(frac, 0, 0) for f in formats]


# -- one operation

#: (node, formats of its arguments) -> the format of its value; floats give floats.
Rule = Callable[[Node, Sequence[Format]], Format]


def power_of_two(node: Node) -> Optional[int]:
    """k for the constant ``2**k``; None for every other node."""
    mantissa, exponent = math.frexp(number_of(node) if node.op == "const" else 0.0)
    return exponent - 1 if mantissa == 0.5 else None


def number_of(node: Node) -> float:
    """The number that a constant is."""
    return float(node.attr)  # type: ignore[arg-type]  # of a constant it is a number


def without_detach(node: Node) -> Node:
    """The value that is detached, or the node itself."""
    return node.args[0] if node.op == "detach" else node


def _sum(node: Node, args: Sequence[Format]) -> Format:
    a, b = args
    if node.op == "sub":
        if without_detach(node.args[0]) == without_detach(node.args[1]):
            return ZERO
        b = _negative(node, [b])
    if a.frac is None or b.frac is None:
        return a if b == ZERO else b if a == ZERO else _ends([x + y for x, y in zip(a.ends, b.ends)])
    a, b = _aligned(a, b)
    return Format(a.frac, a.low + b.low, a.high + b.high)


def _product(node: Node, args: Sequence[Format]) -> Format:
    for other, value in ((1, 0), (0, 1)):
        shift = power_of_two(node.args[other])
        if shift is not None:
            return _shifted(args[value], shift)
    a, b = args
    if a.frac is None or b.frac is None:
        return _ends([x * y for x in a.ends for y in b.ends])
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Format(a.frac + b.frac, min(corners), max(corners))


def _shifted(value: Format, shift: int) -> Format:
    if value.frac is None:
        return Format(None, value.low * 2.0**shift, value.high * 2.0**shift)
    return Format(value.frac - shift, value.low, value.high)


def _ends(corners: Sequence[float]) -> Format:
    return ANY if any(map(math.isnan, corners)) else Format(None, min(corners), max(corners))


def _negative(node: Node, args: Sequence[Format]) -> Format:
    return Format(args[0].frac, -args[0].high, -args[0].low)


def _absolute(node: Node, args: Sequence[Format]) -> Format:
    low, high = args[0].low, args[0].high
    return Format(args[0].frac, max(low, -high, 0), max(-low, high))


def _extremum(node: Node, args: Sequence[Format]) -> Format:
    choose: Callable[..., Any] = min if node.op == "minimum" else max
    a, b = args
    if a.frac is None or b.frac is None:
        # a bound that is infinite chooses nothing
        for value, bound in ((a, b), (b, a)):
            if value.frac is not None and bound.low == bound.high == choose(math.inf, -math.inf) * -1:
                return value
        return Format(None, *[choose(x, y) for x, y in zip(a.ends, b.ends)])
    a, b = _aligned(a, b)
    return Format(a.frac, choose(a.low, b.low), choose(a.high, b.high))


def _coarser(end: Format, value: Format) -> Format:
    """The format of a constant end with as few fractional bits as a value has, where it stays exact."""
    if end.frac is None or value.frac is None or end.low != end.high or value.frac >= end.frac:
        return end
    coarser = end.at(value.frac)
    return coarser if coarser.ends == end.ends else end


def _clamp(node: Node, args: Sequence[Format]) -> Format:
    value, low, high = args[0], *(_coarser(end, args[0]) for end in args[1:])
    raised = _extremum(Node("maximum", (node.args[0], node.args[1])), [value, low])
    return _extremum(Node("minimum", (node.args[0], node.args[2])), [raised, high])


def _choice(node: Node, args: Sequence[Format]) -> Format:
    return union(args[1], args[2])


def _whole(node: Node, args: Sequence[Format]) -> Format:
    (value,) = args
    nearest: Callable[[Any], int] = round if node.op == "round" else math.floor
    if value.frac is not None:
        if value.frac <= 0:
            return value
        scale = Fraction(1, 1 << value.frac)
        return Format(0, nearest(value.low * scale), nearest(value.high * scale))
    if not math.isfinite(value.low) or not math.isfinite(value.high):
        return ANY
    return Format(0, nearest(value.low), nearest(value.high))


def _sign(node: Node, args: Sequence[Format]) -> Format:
    return Format(0, -1 if args[0].low < 0 else 0, 1 if args[0].high > 0 else 0)


def _same(node: Node, args: Sequence[Format]) -> Format:
    return args[0]


def _flag(node: Node, args: Sequence[Format]) -> Format:
    return FLAG


RULES: Dict[str, Rule] = {
    "add": _sum,
    "sub": _sum,
    "mul": _product,
    "neg": _negative,
    "abs": _absolute,
    "minimum": _extremum,
    "maximum": _extremum,
    "clamp": _clamp,
    "where": _choice,
    "select": _choice,
    "round": _whole,
    "floor": _whole,
    "sign": _sign,
    "detach": _same,
    "spike": _flag,
    **{row.name: _flag for row in OPERATION.values() if row.kind in ("comparison", "logic")},
}
#: Operations that floats may go through on their way to a grid: each gives the same float on every backend.
_OF_FLOATS = ("clamp", "minimum", "maximum", "detach", "neg", "round", "floor")


def format_of(node: Node, args: Sequence[Format]) -> Format:
    """The format of an operation's value, given those of its arguments; a float where nothing is known."""
    rule = RULES.get(node.op)
    if rule is None:
        return FLAG if node.is_bool else ANY
    return rule(node, args)


def coefficients_of(order: Sequence[Node]) -> Set[Node]:
    """Of these nodes, arguments first, those that depend on parameters and constants alone."""
    return {node for node in order if node.op in ("param", "const")} | set(loop_invariant(order))


# -- a program


class Analysis:
    """The formats of a program's values, from those of its inputs; see :func:`analyse`."""

    def __init__(self, program: Program, inputs: Mapping[str, Format], dtype: torch.dtype) -> None:
        self.program, self.dtype = program, dtype
        self.order = topological([*program.outputs, *program.next, *program.initial])
        self.coefficients = coefficients_of(self.order)
        unknown = [name for name in inputs if name not in program.inputs]
        if unknown:
            raise ValueError(f"inputs has {unknown[0]!r}, which is no input of {program.name}: {program.inputs}")
        self.inputs = {Node("input", (), name): inputs.get(name, ANY) for name in program.inputs}

    def formats(self, states: Mapping[str, Format]) -> Dict[Node, Format]:
        """The formats of all values in a step, given those of the states at its start."""
        known = {**self.inputs, **{Node("state", (), name): value for name, value in states.items()}}
        for node in self.order:
            if node.op == "const":
                known[node] = of_number(number_of(node), SIGNIFICAND[self.dtype])
            elif node.op == "param":
                known[node] = ANY
            elif node not in known:
                known[node] = format_of(node, [known[arg] for arg in node.args])
                if node in self.coefficients and not self._fits(known[node]):
                    known[node] = Format(None, *known[node].ends)
        return known

    def _fits(self, value: Format) -> bool:
        """True if the dtype holds all values of a format, or takes them for floats."""
        return value.frac is None or (
            value.bits <= SIGNIFICAND[self.dtype] and abs(value.frac) + value.bits <= _LARGEST_SHIFT
        )

    def states(self) -> Dict[str, Format]:
        """The format of each state at the start of a step."""
        program = self.program
        saturated = self._next(dict.fromkeys(program.states, ANY))
        initial = self.formats(dict.fromkeys(program.states, ANY))
        states = {name: initial[node] for name, node in zip(program.states, program.initial)}
        moving: List[str] = []
        for name, value in states.items():
            if value.is_float:
                raise Inexact(f"{program.name}: the initial value of state {name!r} is a float that nothing rounds")
        for turn in range(_LARGEST_SHIFT):
            following = self._next(states)
            grown = {name: union(states[name], following[name]) for name in states}
            moving = [name for name in states if grown[name] != states[name]]
            if not moving:
                return states
            if turn >= _PATIENCE:
                far = turn >= _LONG_PATIENCE
                grown = {name: _widened(states[name], value, saturated[name], far) for name, value in grown.items()}
            states = grown
        raise Inexact(
            f"{program.name}: state {moving[0]!r} has no format: each step adds to its range or to its fractional "
            "bits; clamp its next value, and round it to a multiple of a power of two"
        )

    def _next(self, states: Mapping[str, Format]) -> Dict[str, Format]:
        known = self.formats(states)
        return {name: known[node] for name, node in zip(self.program.states, self.program.next)}

    def prove(self, known: Mapping[Node, Format]) -> None:
        """Raise :class:`Inexact` for the first operation whose value the dtype does not hold exactly."""
        for node in self.order:
            value, is_coefficient = known[node], node in self.coefficients
            floats = [arg for arg in node.args if known[arg].is_float]
            if not is_coefficient and floats and not _takes_floats(node):
                raise Inexact(self._not_rounded(node, floats[0]))
            if not is_coefficient and node.args and value.is_float and not floats:
                raise Inexact(f"{self._place(node)} is no operation on whole numbers: {_NO_OPERATION}")
            if not value.is_float:
                self._check_bits(node, known)
        for node in (*self.program.outputs, *self.program.next):
            if known[node].is_float:
                raise Inexact(self._not_rounded(node, node))

    def _check_bits(self, node: Node, known: Mapping[Node, Format]) -> None:
        value, most, name = known[node], SIGNIFICAND[self.dtype], str(self.dtype).replace("torch.", "")
        if value.bits > most:
            of = " and ".join(str(known[arg]) for arg in node.args)
            wider = "" if self.dtype == torch.float64 else ", or compute in float64, which holds 53"
            raise Inexact(
                f"{self._place(node)} of {of} needs {value.bits} bits, and {name} holds {most}: take "
                f"{value.bits - most} bits off the operands (word, frac or factors of sc.quant.fixed){wider}"
            )
        if node.args and abs(value.frac or 0) + value.bits > _LARGEST_SHIFT:
            raise Inexact(f"{self._place(node)} is a multiple of 2**-{value.frac}, too far from 1 for {name}")

    def _place(self, node: Node) -> str:
        leaves = [str(leaf.attr) for leaf in topological([node]) if leaf.is_leaf and leaf.op != "const"]
        return f"{self.program.name}: the operation {node.op!r} on values of {', '.join(dict.fromkeys(leaves))}"

    def _not_rounded(self, node: Node, value: Node) -> str:
        what = f"{value.op} {value.attr!r}" if value.is_leaf else f"the result of {value.op!r}"
        return f"{self._place(node)} takes {what}, a float that nothing has rounded: {_NOT_ROUNDED}"


def _widened(before: Format, value: Format, saturated: Format, far: bool) -> Format:
    """A format whose ends that still move are those of a saturation; far: without one, 0 or twice as large."""
    low, high = (end * 2.0 ** (value.frac or 0) for end in saturated.ends)
    before, lowest, highest = before.at(value.frac or 0), value.low, value.high
    if value.low < before.low:
        lowest = math.floor(low) if math.isfinite(low) else min(0, 2 * lowest) if far else lowest
    if value.high > before.high:
        highest = math.ceil(high) if math.isfinite(high) else max(0, 2 * highest) if far else highest
    return Format(value.frac, lowest, highest)


_NOT_ROUNDED = "round it to a multiple of a power of two and clamp it first, or let sc.quant.fixed do it"
_NO_OPERATION = (
    "give it a table, sc.quant.fixed(neuron, tables={op: (low, high, size)}), or write it with + - * and choices"
)


def _takes_floats(node: Node) -> bool:
    """True if a float may go through this operation on its way to a grid."""
    scales = node.op == "mul" and any(power_of_two(arg) is not None for arg in node.args)
    cancels = node.op == "sub" and without_detach(node.args[0]) == without_detach(node.args[1])
    return scales or cancels or node.op in _OF_FLOATS


def analyse(
    program: Program, inputs: Mapping[str, Format] = {}, dtype: torch.dtype = torch.float32
) -> Dict[Node, Format]:
    """The format of every value of a fixed-point program: node -> :class:`Format`, its leaves and constants included.

    ``inputs``: formats of inputs that are on a grid, by name; others are floats, which the program rounds. ``dtype``:
    that of the arithmetic, float32 or float64. Coefficients, which depend on parameters alone, are floats until they
    are rounded. Of a constant and of a product with a constant power of two, see the rules of the module.

    Raises :class:`Inexact`, a ValueError, where a value needs more bits than the dtype holds, where an operation is
    none on whole numbers, and where a float meets a value on a grid. It names the operation and what to change.
    """
    if dtype not in SIGNIFICAND:
        raise ValueError(f"dtype={dtype} must be torch.float32 or torch.float64, which arithmetic is in")
    analysis = Analysis(program, inputs, dtype)
    known = analysis.formats(analysis.states())
    analysis.prove(known)
    return known
