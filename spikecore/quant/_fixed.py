"""Fixed point as a transformation of a program, and the neurons that compute with it.

The program that comes out has the operations of the language alone, and its values are whole multiples of powers of two
(:mod:`spikecore.quant._analysis` proves it). Rules of this module, for a ``word`` of w bits, ``frac`` f:

- An input is rounded to a multiple of ``2**-f`` and saturated to w bits::

      c = clamp(x, -2**(w-1-f), (2**(w-1) - 1) * 2**-f)
      q = round(c * 2**f) * 2**-f + (c - detach(c))

  The last term is 0, and has the derivative 1 within the range and 0 beyond it.
- Sums are exact. A product has saturated factors, and is rounded to f fractional bits, with derivative 1. Where a
  factor holds whole numbers, as spikes do, the product is exact.
- What depends on parameters alone is a coefficient, computed once a call and rounded where it is read: to a multiple of
  ``2**-f`` as a summand or beside whole numbers; as a factor to ``factors`` significant bits, on a grid of its own.
- ``a / b`` is ``a`` times the coefficient ``1 / b``; a divisor that changes from step to step is refused. Coefficients
  of a product are multiplied first: ``c v / d`` is ``v`` times ``c (1 / d)``, which is rounded once.
- Next values of states, and outputs, are saturated. An initial value is a coefficient.
- ``exp``, ``log``, ``sigmoid`` and ``tanh`` of coefficients are written with ``+ - * /`` and square roots, whose bits
  are the same on every backend. Of other values they are tables, piecewise linear, that ``tables`` declares.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from spikecore._shell.checks import shown
from spikecore.functional import reset
from spikecore.lang import Expr, Node, Program, ops, topological
from spikecore.lang.eager import evaluate, operands
from spikecore.lang.node import const
from spikecore.lang.operations import OPERATION
from spikecore.neuron import Neuron
from spikecore.quant._analysis import (
    ANY,
    FLAG,
    RULES,
    SIGNIFICAND,
    Format,
    analyse,
    coefficients_of,
    format_of,
    number_of,
    of_number,
    power_of_two,
    signed,
)

#: Rounding -> the operation that does it; ties of "nearest" go to even numbers.
ROUNDINGS = {"nearest": "round", "floor": "floor"}
#: (low, high, size): the range in which a table is exact at its ends, and its number of segments, a power of two.
Table = Tuple[float, float, int]


@dataclass(frozen=True)
class FixedPoint:
    """How a neuron computes in fixed point; :func:`fixed` makes one, and it is ``neuron.arithmetic`` then.

    word, frac: bits of inputs, states and outputs, and how many of them are fractional. factors: significant bits of a
    coefficient as a factor. rounding: of inputs and products. dtype: the dtype whose significand is enough. tables:
    operation -> :data:`Table`. values: the least and the greatest value that each parameter had, from which grids of
    factors are chosen; learnt ones may double before they saturate.
    """

    word: int
    frac: int
    factors: int
    rounding: str = "nearest"
    dtype: torch.dtype = torch.float32
    tables: Tuple[Tuple[str, Table], ...] = ()
    values: Tuple[Tuple[str, Tuple[float, float]], ...] = ()
    learnt: Tuple[str, ...] = ()

    @property
    def format(self) -> Format:
        """The format of inputs, states and outputs."""
        return signed(self.word, self.frac)

    def rewrite(self, program: Program) -> Program:
        """The program in fixed point, proven to be exact in :attr:`dtype`."""
        return _rewritten(self, program)

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether arithmetic in this dtype is exact."""
        return SIGNIFICAND[dtype] >= SIGNIFICAND[self.dtype]

    def __repr__(self) -> str:
        parts = [f"word={self.word}", f"frac={self.frac}", f"factors={self.factors}", f"rounding={self.rounding!r}"]
        parts += ["dtype=float64"] if self.dtype == torch.float64 else []
        parts += [f"tables={dict(self.tables)}"] if self.tables else []
        return f"FixedPoint({', '.join(parts)})"


@lru_cache(maxsize=256)
def _rewritten(how: FixedPoint, program: Program) -> Program:
    rewritten = _Rewriting(how, program).program()
    analyse(rewritten, dtype=how.dtype)
    return rewritten


class _Rewriting:
    """A program on its way to fixed point: each old value's new node, and each new node's format."""

    def __init__(self, how: FixedPoint, program: Program) -> None:
        self.how, self.old = how, program
        self.order = topological([*program.outputs, *program.next, *program.initial])
        self.coefficients = coefficients_of(self.order)
        self.new: Dict[Node, Node] = {}
        self.formats: Dict[Node, Format] = {}
        self.labels: Dict[Node, str] = {}
        self.sizes = _sizes(how, [node for node in self.order if node in self.coefficients and not node.is_bool])

    def program(self) -> Program:
        """The program in fixed point."""
        old, word = self.old, self.how.format
        for name in old.inputs:
            leaf = Node("input", (), name)
            self.new[leaf] = self.rounded(self.add(leaf, ANY), word)
        for name in old.states:
            leaf = Node("state", (), name)
            self.new[leaf] = self.add(leaf, FLAG if name in self._flags() else word)
        for node in self.order:
            if node not in self.new and node not in self.coefficients:
                self.new[node] = self.operation(node)
        return Program(
            old.name,
            inputs=old.inputs,
            states=old.states,
            params=old.params,
            outputs=[self.saturated(self.value(node)) for node in old.outputs],
            next=[self.saturated(self.value(node)) for node in old.next],
            initial=[self.value(node) for node in old.initial],
            labels={**self.labels, **{self.new[node]: label for node, label in old.labels.items() if node in self.new}},
            numbers=old.numbers,
        )

    def _flags(self) -> List[str]:
        """The states that are spikes of the step before."""
        rows = zip(self.old.states, self.old.next, self.old.initial)
        return [name for name, following, first in rows if following.op == "spike" and first in (const(0), const(1))]

    # -- values

    def add(self, node: Node, known: Optional[Format] = None) -> Node:
        """The node, with its format noted."""
        if node not in self.formats:
            for arg in node.args:
                self.add(arg)
            if node.op == "const":
                known = of_number(number_of(node), SIGNIFICAND[self.how.dtype])
            self.formats[node] = known or format_of(node, [self.formats[arg] for arg in node.args])
        return node

    def value(self, node: Node) -> Node:
        """The new node of an old one; a coefficient as a summand."""
        if node in self.new:
            return self.new[node]
        if node.is_bool:
            self.new[node] = self.add(_portable(node), Format(0, 0, 1))
        else:
            self.new[node] = self.coefficient(node, self.how.format)
        return self.new[node]

    def coefficient(self, node: Node, grid: Format) -> Node:
        """A coefficient rounded to a grid, to the nearest, and saturated."""
        frac = int(grid.frac or 0)
        if node.op == "const":
            number = number_of(node)
            if math.isinf(number):
                return self.add(node)
            n = min(max(round(math.ldexp(number, frac)), int(grid.low)), int(grid.high))
            return self.add(const(math.ldexp(n, -frac)))
        if self.sizes[node] > grid.ends[1]:
            raise ValueError(
                f"sc.quant.fixed: {self.old.name}: {node!r} is {self.sizes[node]:g}, beyond the range "
                f"[{grid.ends[0]:g}, {grid.ends[1]:g}] of word={self.how.word}, frac={self.how.frac}: take fewer "
                "fractional bits"
            )
        rounded = self.rounded(self.add(_portable(node), ANY), grid, "round")
        if node.op == "param":
            self.labels[rounded] = f"{node.attr}_fixed"
        return rounded

    def factor(self, node: Node) -> Node:
        """A coefficient rounded to its significant bits."""
        most, bits = self.sizes[node], self.how.factors
        frac = bits - (math.frexp(most)[1] if most else 0)
        return self.coefficient(node, Format(frac, -(1 << bits), 1 << bits))

    def rounded(self, node: Node, grid: Format, operation: str = "") -> Node:
        """A value rounded to a grid; saturated, too, if its interval is beyond it."""
        x, frac = Expr(self.clamped(node, grid)), int(grid.frac or 0)
        of_x = self.formats[x.node].frac
        if of_x is not None and of_x <= frac:
            return x.node
        scaled = Node(operation or ROUNDINGS[self.how.rounding], ((x * 2.0**frac).node,))
        return self.add((Expr(scaled) * 2.0**-frac + (x - ops.detach(x))).node)

    def clamped(self, node: Node, grid: Format) -> Node:
        """A value clamped to the ends of a grid, if its interval is beyond them."""
        (low, high), (lowest, highest) = grid.ends, self.formats[node].ends
        if low <= lowest and highest <= high:
            return node
        return self.add(ops.clamp(Expr(node), low, high).node)

    def saturated(self, node: Node) -> Node:
        """A value on the grid of the word; spikes as they are."""
        return node if self.formats[node] == FLAG else self.rounded(node, self.how.format)

    # -- operations

    def operation(self, node: Node) -> Node:
        """The new node of an operation on values that change from step to step."""
        if node.op == "mul":
            return self.product(*node.args)
        if node.op == "div":
            if node.args[1] not in self.coefficients:
                raise ValueError(
                    f"sc.quant.fixed: {self.old.name}: {node!r} divides by a value that changes from step to step, and "
                    "there is no such operation on integers; multiply by a parameter, or by a table of the reciprocal"
                )
            return self.product(node.args[0], self._reciprocal(node.args[1]))
        if node.op in _FUNCTIONS:
            return self.table(node)
        return self.add(Node(node.op, tuple(self.value(arg) for arg in node.args), node.attr))

    def _reciprocal(self, divisor: Node) -> Node:
        if divisor.op == "const":
            return self._coefficient(const(1.0 / number_of(divisor)))
        return self._coefficient((1.0 / Expr(divisor)).node)

    def _coefficient(self, node: Node) -> Node:
        """A coefficient that the program did not have."""
        if node not in self.coefficients:
            self.coefficients.add(node)
            self.sizes.update(_sizes(self.how, [node]))
        return node

    def _gathered(self, value: Node, coefficient: Node) -> Tuple[Node, Node]:
        """``(c1 v) c2`` as v and ``c1 c2``: the coefficients of a product are multiplied first."""
        while value.op in ("mul", "div"):
            a, b = value.args
            if b in self.coefficients:
                value, other = a, self._reciprocal(b) if value.op == "div" else b
            elif a in self.coefficients and value.op == "mul":
                value, other = b, a
            else:
                break
            coefficient = self._coefficient((Expr(other) * Expr(coefficient)).node)
        return value, coefficient

    def product(self, a: Node, b: Node) -> Node:
        """The product of two values or coefficients, rounded to the fractional bits of the word."""
        is_coefficient = (a in self.coefficients, b in self.coefficients)
        if not any(is_coefficient):
            x, y = self.new[a], self.new[b]
            if not self.is_count(x) and not self.is_count(y):
                x, y = self.clamped(x, self.how.format), self.clamped(y, self.how.format)
        else:
            value, coefficient = self._gathered(*((b, a) if is_coefficient[0] else (a, b)))
            x = self.new[value]
            if self.is_count(x):
                y = self.value(coefficient)
            elif power_of_two(coefficient) is not None:
                y = self.add(coefficient)
            else:
                x, y = self.clamped(x, self.how.format), self.factor(coefficient)
            x, y = (y, x) if is_coefficient[0] else (x, y)
        return self.on_grid(self.add(Node("mul", (x, y))))

    def is_count(self, node: Node) -> bool:
        """Whether a value is a spike, or whole where values of the word are fractions: a product is then exact."""
        return self.formats[node] == FLAG or (self.how.frac > 0 and self.formats[node].is_whole)

    def on_grid(self, node: Node) -> Node:
        """A value rounded to the fractional bits of the word, and not saturated."""
        low, high = self.formats[node].ends
        scale = 2.0**self.how.frac
        return self.rounded(node, Format(self.how.frac, math.floor(low * scale), math.ceil(high * scale)))

    def table(self, node: Node) -> Node:
        """A function of a value: its table, linear between ``size + 1`` values at equal distances."""
        tables = dict(self.how.tables)
        if node.op not in tables or len(node.args) != 1:
            raise ValueError(
                f"sc.quant.fixed: {self.old.name}: {node.op} in {node!r} is no operation on integers; declare a table, "
                f"tables={{{node.op!r}: (low, high, size)}}: its range, and its number of segments"
            )
        low, high, size = tables[node.op]
        width, frac = (high - low) / size, self.how.frac
        ends = [low + k * width for k in range(size + 1)]
        bases = _function(node.op, ends)
        slopes = [(b - a) / width for a, b in zip(bases, bases[1:])]
        bits = self.how.factors - math.frexp(max(map(abs, slopes)))[1]
        x = Expr(self.rounded(self.value(node.args[0]), self.how.format))
        offset = ops.clamp(x, low, high) - low
        place = ops.minimum(ops.floor(offset * (1.0 / width)), size - 1.0)
        base, slope = Expr(const(_nearest(bases[0], frac))), Expr(const(_nearest(slopes[0], bits)))
        for k in range(1, size):
            beyond = place >= float(k)
            base = ops.where(beyond, _nearest(bases[k], frac), base)
            slope = ops.where(beyond, _nearest(slopes[k], bits), slope)
        rise = self.on_grid(self.add(((offset - place * width) * slope).node))
        return self.add((base + Expr(rise)).node)


def _nearest(value: float, frac: int) -> float:
    return math.ldexp(round(math.ldexp(value, frac)), -frac)


def _function(op: str, at: Sequence[float]) -> List[float]:
    values: List[float] = OPERATION[op].torch(torch.tensor(at, dtype=torch.float64, device="cpu")).tolist()
    return values


def _sizes(how: FixedPoint, nodes: Sequence[Node]) -> Dict[Node, float]:
    """How large each coefficient was when its neuron became fixed, and twice that if it may be learnt."""
    # a spike of parameters alone: its value needs none of the numbers of its surrogate
    numbers = [number for node in topological(nodes) if node.op == "spike" for number in operands(node)[1:]]
    values = {**dict.fromkeys(numbers, (1.0, 1.0)), **{Node("param", (), name): ends for name, ends in how.values}}
    like = torch.zeros((), dtype=torch.float64, device="cpu")
    most = dict.fromkeys(nodes, 0.0)
    for end in (0, 1):
        leaves = {leaf: torch.full_like(like, ends[end]) for leaf, ends in values.items()}
        for node, value in zip(nodes, evaluate(nodes, leaves, like)):
            most[node] = max(most[node], abs(float(value)))
    learnt = {Node("param", (), name) for name in how.learnt}
    return {node: size * (1 + bool(learnt.intersection(topological([node])))) for node, size in most.items()}


# -- functions of coefficients, in operations whose bits are the same on every backend


def _exp(x: Any) -> Any:
    """``exp(x)``: the Taylor series at ``x / 32``, squared five times."""
    t = ops.clamp(x, -40.0, 40.0) * 2.0**-5
    y = 1.0 + t * (1.0 / 8.0)
    for k in range(7, 0, -1):
        y = 1.0 + t * (1.0 / k) * y
    for _ in range(5):
        y = y * y
    return y


def _log(x: Any) -> Any:
    """``log(x)``: 32 times the logarithm of the 32nd root, ``2 atanh((y - 1) / (y + 1))``."""
    y = x
    for _ in range(5):
        y = ops.sqrt(y)
    t = (y - 1.0) / (y + 1.0)
    square = t * t
    return 64.0 * (t + t * square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0))))


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + _exp(-x))


def _tanh(x: Any) -> Any:
    return 2.0 * _sigmoid(2.0 * x) - 1.0


_PORTABLE: Mapping[str, Callable[[Any], Any]] = {"exp": _exp, "log": _log, "sigmoid": _sigmoid, "tanh": _tanh}
#: Functions of numbers that are not operations on whole numbers.
_FUNCTIONS = tuple(row.name for row in OPERATION.values() if row.kind == "number" and row.name not in {*RULES, "div"})


def _portable(root: Node) -> Node:
    """A coefficient without functions whose bits differ between backends."""
    new: Dict[Node, Node] = {}
    for node in topological([root]):
        args = tuple(new[arg] for arg in node.args)
        if node.op in _PORTABLE:
            new[node] = _PORTABLE[node.op](Expr(args[0])).node
        elif node.op in _FUNCTIONS and not OPERATION[node.op].exact:
            raise ValueError(
                f"sc.quant.fixed: {node!r}: backends differ in the last bits of {node.op}; coefficients may have "
                f"{', '.join(_PORTABLE)} and sqrt. Compute it outside, and make it a parameter"
            )
        else:
            new[node] = Node(node.op, args, node.attr)
    return new[root]


# -- the function


def fixed(
    neuron: Neuron,
    word: int = 16,
    frac: Optional[int] = None,
    *,
    rounding: str = "nearest",
    factors: Optional[int] = None,
    tables: Mapping[str, Table] = {},
    dtype: torch.dtype = torch.float32,
) -> Neuron:
    """The neuron with arithmetic in fixed point: a copy, of the same class, which every backend runs and trains.

    ::

        lif = sc.quant.fixed(sc.LIF(tau=2.0), word=16, frac=12)
        print(lif.program)

    Inputs, states and outputs are ``n * 2**-frac`` for integers n of ``word`` bits; spikes are 0 and 1. Which values
    are rounded and saturated is said in :mod:`spikecore.quant._fixed`, and shown by the program. All of a step are
    whole multiples of powers of two that ``dtype`` holds exactly: :func:`spikecore.quant.analyse` proves it, so that
    every backend, and integer arithmetic, has the same bits. Derivatives pass a rounding unchanged, and are 0 beyond a
    saturation. Parameters stay floats, as they were learnt, and are rounded where they are read; names in
    ``state_dict`` stay.

    word: bits of inputs, states and outputs, 2 to 24 (to 53 for float64), the sign included.
    frac: how many of them are fractional; None: as many as leave eight times the largest threshold, or other number
        that is added or compared, or 1.
    rounding: "nearest", ties to even, or "floor".
    factors: significant bits of a coefficient that is a factor, such as ``1 / tau``; None: what dtype has beside a
        word, 15 at most: 8 for 16 bits in float32. A learnt one saturates at twice its value of now.
    tables: of functions of values that change from step to step: ``{"exp": (low, high, size)}`` has ``size`` linear
        pieces from low to high and is constant beyond; ``(high - low) / size`` must be a power of two.
    dtype: of the arithmetic, ``torch.float32`` or ``torch.float64``. With float64, inputs must be float64.

    Raises TypeError for what is no neuron, ValueError for a wrong argument, an operation that integers do not have, a
    parameter beyond the range, and a program that is not exact (:class:`spikecore.quant.Inexact`), with what to change.
    """
    _check(neuron, word, frac, rounding, factors, dtype)
    new = copy.deepcopy(neuron)
    new.arithmetic = None
    reset(new)
    program = new.program
    factors = max(1, min(15, SIGNIFICAND[dtype] - word)) if factors is None else factors
    how = FixedPoint(word, 0, factors, rounding, dtype, _checked_tables(tables), *_values(new, program))
    frac = _default_frac(how, program) if frac is None else frac
    how = replace(how, frac=frac)
    how.rewrite(program)
    new.arithmetic = how
    return new


def _values(neuron: Neuron, program: Program) -> Tuple[Tuple[Tuple[str, Tuple[float, float]], ...], Tuple[str, ...]]:
    """The ends of each parameter's values, and the names of those that are learnt."""
    values: List[Tuple[str, Tuple[float, float]]] = []
    for name, value in neuron.named_values().items():
        if isinstance(value, torch.Tensor):
            values.append((name, (float(value.detach().min()), float(value.detach().max()))))
        elif name not in program.numbers:
            values.append((name, (float(value), float(value))))
    learnt = [name for name, value in neuron.named_parameters(recurse=False)]
    return tuple(values), tuple(learnt)


def _default_frac(how: FixedPoint, program: Program) -> int:
    """The fractional bits that leave eight times the largest summand, or 1."""
    order = topological([*program.outputs, *program.next, *program.initial])
    coefficients = coefficients_of(order)
    summands = [*program.initial]
    for node in order:
        if node not in coefficients and node.op not in ("mul", "div"):
            summands += [arg for arg in node.args if arg in coefficients and not arg.is_bool]
    most = max([1.0, *[size for size in _sizes(how, summands).values() if math.isfinite(size)]])
    return how.word - 4 - math.ceil(math.log2(most))


def _checked_tables(tables: Mapping[str, Table]) -> Tuple[Tuple[str, Table], ...]:
    for op, table in tables.items():
        if op not in _FUNCTIONS or OPERATION[op].arity != 1:
            known = ", ".join(name for name in _FUNCTIONS if OPERATION[name].arity == 1)
            raise ValueError(f"sc.quant.fixed: tables has {op!r}; there are tables of: {known}")
        low, high, size = table
        if size < 1 or power_of_two(const((high - low) / size)) is None:
            raise ValueError(
                f"sc.quant.fixed: tables={{{op!r}: {table}}}: a segment is {(high - low) / size:g} wide, and must be a "
                "power of two, as in (-4.0, 4.0, 16)"
            )
    return tuple((op, (float(low), float(high), int(size))) for op, (low, high, size) in tables.items())


def _check(neuron: Any, word: Any, frac: Any, rounding: Any, factors: Any, dtype: Any) -> None:
    """Raise TypeError or ValueError for a wrong argument of :func:`fixed`."""
    if not isinstance(neuron, Neuron):
        raise TypeError(
            f"sc.quant.fixed: neuron={shown(neuron)} is no neuron; for a network, sc.quant.prepare(net, x) makes all "
            "of its neurons fixed"
        )
    if dtype not in SIGNIFICAND:
        raise ValueError(f"sc.quant.fixed: dtype={dtype} must be torch.float32 or torch.float64")
    most = SIGNIFICAND[dtype]
    if not isinstance(word, int) or not 2 <= word <= most:
        raise ValueError(f"sc.quant.fixed: word={shown(word)} must be a whole number of bits from 2 to {most}")
    for name, value in (("frac", frac), ("factors", factors)):
        if value is not None and not isinstance(value, int):
            raise TypeError(f"sc.quant.fixed: {name}={shown(value)} must be a whole number of bits, or None")
    if factors is not None and factors < 1:
        raise ValueError(
            f"sc.quant.fixed: factors={factors} must be a number of significant bits, 1 or more, or None for what "
            "dtype has beside a word"
        )
    if rounding not in ROUNDINGS:
        raise ValueError(f"sc.quant.fixed: rounding={rounding!r} must be one of {', '.join(map(repr, ROUNDINGS))}")
