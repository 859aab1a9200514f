"""Fixed point as a transformation of a program, and the neurons that compute with it.

The program that comes out has the operations of the language alone, and its values are whole multiples of powers of two
(:mod:`spikecore_chips.quant._analysis` proves it). Rules of this module, for a ``word`` of w bits, ``frac`` f:

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
- Grids of coefficients hold all values that parameters may have, ``how.values``. A threshold must not round to 0.
- ``exp``, ``log``, ``sigmoid`` and ``tanh`` of coefficients are written with ``+ - * /`` and square roots, whose bits
  are the same on every backend. Of other values they are tables, piecewise linear, that ``tables`` declares.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from spikecore.lang import Expr, Node, Program, ops, topological
from spikecore.lang.eager import evaluate, operands
from spikecore.lang.node import const
from spikecore.lang.operations import OPERATION
from spikecore_chips.quant._analysis import (
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
)

if TYPE_CHECKING:
    from spikecore_chips.quant._fixed import FixedPoint

#: Rounding -> the operation that does it; ties of "nearest" go to even numbers.
ROUNDINGS = {"nearest": "round", "floor": "floor"}
#: The least and the greatest value.
Ends = Tuple[float, float]


class ThresholdIsZero(ValueError):
    """A threshold rounds to 0."""


@lru_cache(maxsize=256)
def rewritten(how: FixedPoint, program: Program) -> Program:
    """A program in fixed point, which is proven to be exact."""
    new = _Rewriting(how, program).program()
    analyse(new, dtype=how.dtype)
    return new


class _Rewriting:
    """A program on its way to fixed point: each old value's new node, and each new node's format."""

    def __init__(self, how: FixedPoint, program: Program) -> None:
        self.how, self.old = how, program
        self.order = topological([*program.outputs, *program.next, *program.initial])
        self.coefficients = coefficients_of(self.order)
        self.new: Dict[Node, Node] = {}
        self.formats: Dict[Node, Format] = {}
        self.labels: Dict[Node, str] = {}
        self.thresholds = _thresholds(self.order)
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
            named={name: self.new[node] for name, node in old.named.items() if node in self.new},
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

    def coefficient(self, node: Node, grid: Format, is_factor: bool = False) -> Node:
        """A coefficient rounded to a grid, to the nearest, and saturated."""
        frac = int(grid.frac or 0)
        least, most = self.sizes[node]
        # numbers of an equation, such as the end of a clamp, may be beyond the range
        if most > grid.ends[1] and (node.op != "const" or (node in self.thresholds and math.isfinite(most))):
            raise ValueError(
                f"sc.quant.fixed: {self.old.name}: {node!r} is {most:g}, beyond the range "
                f"[{grid.ends[0]:g}, {grid.ends[1]:g}] of word={self.how.word}, frac={self.how.frac}: take fewer "
                "fractional bits"
            )
        if node in self.thresholds and 0.0 < math.ldexp(least, frac) <= 0.5 and not is_factor:
            raise ThresholdIsZero(
                f"sc.quant.fixed: {self.old.name}: {node!r} is {least:g}, and rounds to 0 in multiples of "
                f"{math.ldexp(1.0, -frac):g}, word={self.how.word}, frac={self.how.frac}: take more fractional bits"
            )
        if node.op == "const":
            number = number_of(node)
            if math.isinf(number):
                return self.add(node)
            n = min(max(round(math.ldexp(number, frac)), int(grid.low)), int(grid.high))
            return self.add(const(math.ldexp(n, -frac)))
        rounded = self.rounded(self.add(_portable(node), ANY), grid, "round")
        if node.op == "param":
            self.labels[rounded] = f"{node.attr}_fixed"
        return rounded

    def factor(self, node: Node) -> Node:
        """A coefficient rounded to its significant bits."""
        (_, most), bits = self.sizes[node], self.how.factors
        frac = bits - (math.frexp(most)[1] if most else 0)
        return self.coefficient(node, Format(frac, -(1 << bits), 1 << bits), True)

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
        if node.op in FUNCTIONS:
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
        value, others = _gathered(value, self.coefficients)
        for op, other in others:
            other = self._reciprocal(other) if op == "div" else other
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
        """True if a value is a spike, or whole where values of the word are fractions: a product is then exact."""
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
            way_out = (
                f"declare a table before sc.quant.prepare, sc.quant.fixed(neuron, tables={{{node.op!r}: (low, high, "
                "size)}): its range, and its number of segments"
                if len(node.args) == 1
                else "write it with + - * and sc.ops.floor"
            )
            raise ValueError(
                f"sc.quant.fixed: {self.old.name}: {node.op} in {node!r} is no operation on integers; {way_out}"
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


def saturating(program: Program, how: Optional[FixedPoint]) -> List[Node]:
    """The nodes that saturate in each step of a program that ``how`` rewrote; None: those that would, beside inputs and
    states.
    """
    order = topological([*program.outputs, *program.next])
    constant = coefficients_of(order)
    if how is not None:
        clamps = [node.args for node in order if node.op == "clamp" and node not in constant]
        ends = [tuple(arg.attr for arg in args[1:]) for args in clamps]
        return [*dict.fromkeys(args[0] for args, at in zip(clamps, ends) if at == how.format.ends)]
    factors: List[Node] = [node for node in program.outputs if node.op != "spike"]
    for node in order:
        if node not in constant and node.op in ("mul", "div"):
            factors += [_gathered(arg, constant)[0] for arg in node.args if arg not in constant]
    return [*dict.fromkeys(node for node in factors if node not in constant and not (node.is_leaf or node.is_bool))]


def _gathered(value: Node, constant: Collection[Node]) -> Tuple[Node, List[Tuple[str, Node]]]:
    """``(c1 v) / c2`` as v, and what it is multiplied with and divided by, the last first."""
    others: List[Tuple[str, Node]] = []
    while value.op in ("mul", "div"):
        a, b = value.args
        if b in constant:
            value, other = a, (value.op, b)
        elif a in constant and value.op == "mul":
            value, other = b, (value.op, a)
        else:
            break
        others.append(other)
    return value, others


def _nearest(value: float, frac: int) -> float:
    return math.ldexp(round(math.ldexp(value, frac)), -frac)


def _function(op: str, at: Sequence[float]) -> List[float]:
    values: List[float] = OPERATION[op].torch(torch.tensor(at, dtype=torch.float64, device="cpu")).tolist()
    return values


def _thresholds(order: Sequence[Node]) -> Set[Node]:
    """The nodes that spikes subtract from potentials, and their summands."""
    thresholds: Set[Node] = set()
    waiting = [u.args[1] for node in order if node.op == "spike" for u in node.args if u.op == "sub"]
    while waiting:
        node = waiting.pop()
        thresholds.add(node)
        waiting += node.args if node.op in ("add", "sub") else ()
    return thresholds


def _sizes(how: FixedPoint, nodes: Sequence[Node]) -> Dict[Node, Ends]:
    """The least size, but for 0, and the largest of each coefficient: at the ends and in the middle of all values."""
    # a spike of parameters alone: its value needs none of the numbers of its surrogate
    order = topological(nodes)
    numbers = [number for node in order if node.op == "spike" for number in operands(node)[1:]]
    ends = {**{Node("param", (), name): ends for name, ends in how.values}, **dict.fromkeys(numbers, (1.0, 1.0))}
    leaves = [leaf for leaf in dict.fromkeys([*numbers, *order]) if leaf.op == "param"]
    points = [sorted({ends[leaf][0], sum(ends[leaf]) / 2, ends[leaf][1]}) for leaf in leaves]
    columns = [torch.tensor(column, dtype=torch.float64, device="cpu") for column in zip(*itertools.product(*points))]
    like = torch.zeros((), dtype=torch.float64, device="cpu")
    sizes = {}
    for node, value in zip(nodes, evaluate(nodes, dict(zip(leaves, columns)), like)):
        size = value.double().abs().flatten()
        least = size[size > 0]
        sizes[node] = (float(least.min()) if least.numel() else 0.0, float(size.max()))
    return sizes


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
FUNCTIONS = tuple(row.name for row in OPERATION.values() if row.kind == "number" and row.name not in {*RULES, "div"})


def _portable(root: Node) -> Node:
    """A coefficient without functions whose bits differ between backends."""
    new: Dict[Node, Node] = {}
    for node in topological([root]):
        args = tuple(new[arg] for arg in node.args)
        if node.op in _PORTABLE:
            new[node] = _PORTABLE[node.op](Expr(args[0])).node
        elif node.op in FUNCTIONS and not OPERATION[node.op].exact:
            raise ValueError(
                f"sc.quant.fixed: {node!r}: backends differ in the last bits of {node.op}; coefficients may have "
                f"{', '.join(_PORTABLE)} and sqrt. Compute it outside, and make it a parameter"
            )
        else:
            new[node] = Node(node.op, args, node.attr)
    return new[root]


def default_frac(how: FixedPoint, program: Program) -> int:
    """The fractional bits that leave eight times the largest summand, or 1."""
    order = topological([*program.outputs, *program.next, *program.initial])
    coefficients = coefficients_of(order)
    summands = [*program.initial]
    for node in order:
        if node not in coefficients and node.op not in ("mul", "div"):
            summands += [arg for arg in node.args if arg in coefficients and not arg.is_bool]
    most = max([1.0, *[size for _, size in _sizes(how, summands).values() if math.isfinite(size)]])
    return how.word - 4 - math.ceil(math.log2(most))
