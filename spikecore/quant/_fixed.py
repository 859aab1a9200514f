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
- The grids of coefficients are those of the values of parameters: the least and the greatest of one that is not learnt,
  and the range of a learnt one, which ends at half and at twice its value, or where ``bounds`` that were given to the
  neuron end. A parameter that is set gets new grids. So no coefficient saturates. A threshold that rounds to 0 is
  refused.
- ``exp``, ``log``, ``sigmoid`` and ``tanh`` of coefficients are written with ``+ - * /`` and square roots, whose bits
  are the same on every backend. Of other values they are tables, piecewise linear, that ``tables`` declares.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore._shell import parameters
from spikecore._shell.binding import equations
from spikecore._shell.checks import shown
from spikecore._shell.ranges import Interval
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
#: The least and the greatest value.
Ends = Tuple[float, float]


@dataclass(frozen=True)
class FixedPoint:
    """How a neuron computes in fixed point; :func:`fixed` makes one, and it is ``neuron.arithmetic`` then.

    word, frac: bits of inputs, states and outputs, and how many of them are fractional. factors: significant bits of a
    coefficient as a factor. rounding: of inputs and products. dtype: the dtype whose significand is enough. tables:
    operation -> :data:`Table`. values: the ends of each parameter's values, for which there are grids.
    """

    word: int
    frac: int
    factors: int
    rounding: str = "nearest"
    dtype: torch.dtype = torch.float32
    tables: Tuple[Tuple[str, Table], ...] = ()
    values: Tuple[Tuple[str, Ends], ...] = ()

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

    def following(
        self, neuron: Neuron, values: Mapping[str, Any], ranges: Mapping[str, Interval]
    ) -> Tuple[FixedPoint, Dict[str, Interval]]:
        """See :class:`~spikecore._shell.binding.Arithmetic`."""
        how, ranges, program = _with_values(self, neuron, values, ranges)
        how.rewrite(program)
        return how, ranges

    def outside(self, values: Mapping[str, Any]) -> str:
        """What is wrong with values of parameters for which there are no grids, "" if there is none."""
        for name, (low, high) in self.values:
            least, most = _ends(values.get(name), (low, high))
            if not low <= least <= most <= high:
                value = f"{least:g}" if least == most else f"from {least:g} to {most:g}"
                where = f"values from {low:g} to {high:g}" if low < high else f"{low:g}"
                return f"{name} is {value}, and its grids are for {where}"
        return ""

    def stored(self) -> Tensor:
        """All fields, as a tensor; see :func:`packed`."""
        return packed({**self._words, "frac": self.frac, "values": dict(self.values)})

    def restored(
        self, stored: Tensor, neuron: Neuron, values: Mapping[str, Any], ranges: Mapping[str, Interval]
    ) -> Tuple[FixedPoint, Dict[str, Interval]]:
        """See :class:`~spikecore._shell.binding.Arithmetic`."""
        content = unpacked(stored, self._words)
        boxes = {name: (float(low), float(high)) for name, (low, high) in content["values"].items()}
        how = replace(self, frac=content["frac"], values=tuple(boxes.items()))
        fault = how.outside(values)
        if fault:
            raise ValueError(f"{fault} in the checkpoint; build the network with the values of the saved one")
        ranges = {**ranges, **{name: Interval(*boxes[name]) for name in neuron._parameters if name in boxes}}
        how.rewrite(equations(neuron, ranges)[0])
        return how, ranges

    @property
    def _words(self) -> Dict[str, Any]:
        """What arguments decide, and data do not."""
        dtype, tables = str(self.dtype).replace("torch.", ""), [[op, [*table]] for op, table in self.tables]
        rest = {"rounding": self.rounding, "dtype": dtype, "tables": tables}
        return {"word": self.word, "factors": self.factors, **rest}

    def __repr__(self) -> str:
        parts = [f"word={self.word}", f"frac={self.frac}", f"factors={self.factors}", f"rounding={self.rounding!r}"]
        parts += ["dtype=float64"] if self.dtype == torch.float64 else []
        parts += [f"tables={dict(self.tables)}"] if self.tables else []
        return f"FixedPoint({', '.join(parts)})"


def packed(content: Mapping[str, Any]) -> Tensor:
    """A format for a ``state_dict``: a tensor, since some files have nothing else, of the bytes of a text in JSON."""
    return torch.tensor([*json.dumps(content).encode()], dtype=torch.uint8, device="cpu")


def unpacked(stored: Any, words: Mapping[str, Any]) -> Dict[str, Any]:
    """What was packed. Raises ValueError where ``words``, which arguments decide, are others in it."""
    try:
        content: Dict[str, Any] = json.loads(bytes(stored.to(torch.uint8).tolist()))
        others = [name for name in words if content[name] != words[name]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("what the checkpoint has for its format is none of sc.quant") from None
    if others:
        name = others[0]
        raise ValueError(
            f"{name} is {content[name]!r} in the checkpoint, and {words[name]!r} here; prepare the network with the "
            "arguments that the saved one had"
        )
    return content


def _ends(value: Any, otherwise: Ends) -> Ends:
    """The least and the greatest value of a parameter; ``otherwise`` where it has none that can be known."""
    if not isinstance(value, Tensor):
        return otherwise if value is None else (float(value), float(value))
    value = value.detach()
    return otherwise if value.is_meta or not value.numel() else (float(value.min()), float(value.max()))


def _with_values(
    how: FixedPoint, neuron: Any, values: Mapping[str, Any], ranges: Mapping[str, Interval]
) -> Tuple[FixedPoint, Dict[str, Interval], Program]:
    """An arithmetic with grids for these values, the ranges of what is learnt, and the neuron's program with these."""
    boxes, given = dict(how.values), neuron._given_bounds or {}
    ranges = dict(ranges)
    for name, value in values.items():
        low, high = _ends(value, boxes.get(name, (0.0, 0.0)))
        if math.isnan(low + high):
            raise ValueError(f"sc.quant.fixed: {type(neuron).__name__}: {name} has values that are NaN")
        if name in neuron._parameters or isinstance(value, nn.Parameter):
            within, most = ranges.get(name, Interval()), 2 * max(-low, high, low, -high) or 1.0
            far = (low / 2 if low > 0 else -most), (high / 2 if high < 0 else most)
            ends = [end if name in given and math.isfinite(end) else None for end in (within.low, within.high)]
            low = max(within.low, far[0]) if ends[0] is None or within.open else ends[0]
            high = min(within.high, far[1]) if ends[1] is None else ends[1]
            ranges[name] = Interval(low, high)
        boxes[name] = low, high
    how = replace(how, values=tuple(boxes.items()))
    return how, ranges, equations(neuron, ranges)[0]


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
        if most > grid.ends[1] and not (node.op == "const" and (is_factor or math.isinf(most))):
            raise ValueError(
                f"sc.quant.fixed: {self.old.name}: {node!r} is {most:g}, beyond the range "
                f"[{grid.ends[0]:g}, {grid.ends[1]:g}] of word={self.how.word}, frac={self.how.frac}: take fewer "
                "fractional bits"
            )
        if node in self.thresholds and 0.0 < math.ldexp(least, frac) <= 0.5 and not is_factor:
            raise ValueError(
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


def saturating(program: Program, how: Optional[FixedPoint]) -> List[Node]:
    """What saturates in each step of a program that ``how`` rewrote; None: what would, beside inputs and states."""
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
    """What a spike subtracts from a potential, and the summands of it."""
    thresholds: Set[Node] = set()
    waiting = [u.args[1] for node in order if node.op == "spike" for u in node.args if u.op == "sub"]
    while waiting:
        node = waiting.pop()
        thresholds.add(node)
        waiting += node.args if node.op in ("add", "sub") else ()
    return thresholds


def _sizes(how: FixedPoint, nodes: Sequence[Node]) -> Dict[Node, Ends]:
    """How small, but for 0, and how large each coefficient may be: at the ends and in the middle of all values."""
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
    factors = max(1, min(15, SIGNIFICAND[dtype] - word)) if factors is None else factors
    values = parameters.current(new)
    how = FixedPoint(word, frac or 0, factors, rounding, dtype, _checked_tables(tables))
    how, ranges, program = _with_values(how, new, values, parameters.ranges_with(new, values))
    how = replace(how, frac=_default_frac(how, program) if frac is None else frac)
    how.rewrite(program)
    parameters.adopt(new, ranges)
    new.arithmetic = how
    return new


def _default_frac(how: FixedPoint, program: Program) -> int:
    """The fractional bits that leave eight times the largest summand, or 1."""
    order = topological([*program.outputs, *program.next, *program.initial])
    coefficients = coefficients_of(order)
    summands = [*program.initial]
    for node in order:
        if node not in coefficients and node.op not in ("mul", "div"):
            summands += [arg for arg in node.args if arg in coefficients and not arg.is_bool]
    most = max([1.0, *[size for _, size in _sizes(how, summands).values() if math.isfinite(size)]])
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
    kind = type(neuron).__name__
    if neuron.gradient != "surrogate":
        raise ValueError(
            f"sc.quant.fixed: this {kind} has gradient={neuron.gradient!r}, which divides by slopes that change from "
            "step to step, and there is no such operation on integers; set gradient='surrogate'"
        )
    if parametrize.is_parametrized(neuron):
        raise ValueError(
            f"sc.quant.fixed: this {kind} has a parametrisation, of whose values no range is known; "
            "torch.nn.utils.parametrize.remove_parametrizations leaves what it computes, and learn=(name,) learns it"
        )
    if dtype not in SIGNIFICAND:
        raise ValueError(f"sc.quant.fixed: dtype={dtype} must be torch.float32 or torch.float64")
    most = SIGNIFICAND[dtype]
    if not isinstance(word, int) or not 2 <= word <= most:
        raise ValueError(f"sc.quant.fixed: word={shown(word)} must be a whole number of bits from 2 to {most}")
    for name, value in (("frac", frac), ("factors", factors)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"sc.quant.fixed: {name}={shown(value)} must be a whole number of bits, or None")
    if factors is not None and factors < 1:
        raise ValueError(
            f"sc.quant.fixed: factors={factors} must be a number of significant bits, 1 or more, or None for what "
            "dtype has beside a word"
        )
    if rounding not in ROUNDINGS:
        raise ValueError(f"sc.quant.fixed: rounding={rounding!r} must be one of {', '.join(map(repr, ROUNDINGS))}")
