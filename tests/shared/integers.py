"""Fixed-point programs computed with Python's integers, apart from the library's analysis, and random ones to compute.

A value on a grid is a pair ``(n, frac)``, which stands for ``n * 2**-frac``; a float that nothing has rounded yet is a
Fraction. Coefficients are computed with NumPy in the dtype of the arithmetic.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.lang import Node, Program, loop_invariant, topological

Grid = Tuple[int, int]

#: Tables of the neurons that need one, and neurons whose product of two states has more bits than float32 holds.
TABLES: Dict[str, Dict[str, Any]] = {"CLIF": {"sigmoid": (-4.0, 4.0, 16)}, "EIF": {"exp": (-4.0, 2.0, 12)}}
WIDE = ("BRF", "Izhikevich", "QIF")


def fixed_model(name: str, **how: Any) -> Any:
    """The model of this name in fixed point, with words of 12 bits where 16 would need float64."""
    how = {"word": 12 if name in WIDE else 16, **how}
    if name in TABLES:
        how = {**how, "word": min(how["word"], 12), "tables": TABLES[name]}
    return sc.quant.fixed(sc.neurons.example(name), **how)


def fixed_drawn(seed: int) -> Any:
    """A random neuron in fixed point, of 16 bits where float32 holds its products, else of 12."""
    try:
        return sc.quant.fixed(drawn(seed), word=16)
    except sc.quant.Inexact:
        return sc.quant.fixed(drawn(seed), word=12)


def results(neuron: Any, x: torch.Tensor, backend: str) -> List[torch.Tensor]:
    """Outputs, and states after every step, on the CPU."""
    sc.set_backend(neuron, backend)
    with torch.no_grad():
        outputs, _, *trace = neuron.run(x, record=tuple(neuron.states))
    return [
        value.cpu()
        for value in (*(outputs if isinstance(outputs, tuple) else (outputs,)), *(trace[0].values() if trace else ()))
    ]


def check_same_bits(neuron: Any, x: torch.Tensor, backend: str) -> None:
    """Outputs and states of a backend on the device of x, and those of the reference on the CPU, are the same bits."""
    for got, expected in zip(results(neuron, x, backend), results(neuron.cpu(), x.cpu(), "torch")):
        assert torch.equal(got, expected)


_FLOATS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "round": np.rint,
    "floor": np.floor,
    "sign": np.sign,
    "detach": np.positive,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "where": np.where,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}


def on_grid(value: Any) -> Grid:
    """A float as a whole number over a power of two."""
    n, denominator = Fraction(float(value)).as_integer_ratio()
    return n, denominator.bit_length() - 1


def fraction(value: Any) -> Fraction:
    """The number that a value stands for."""
    if not isinstance(value, tuple):
        return Fraction(value)
    n, frac = value
    return Fraction(n, 1 << frac) if frac >= 0 else Fraction(n << -frac)


def aligned(a: Grid, b: Grid) -> Tuple[int, int, int]:
    frac = max(a[1], b[1])
    return a[0] << (frac - a[1]), b[0] << (frac - b[1]), frac


def half_even(n: int, shift: int) -> int:
    """``n / 2**shift``, rounded to the nearest whole number, ties to even, with shifts alone."""
    if shift <= 0:
        return n << -shift
    whole, rest, half = n >> shift, n & ((1 << shift) - 1), 1 << (shift - 1)
    return whole + (rest > half or (rest == half and whole & 1))


def _compare(op: str, a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        a, b, _ = aligned(a, b)
    else:
        a, b = fraction(a), fraction(b)
    return {"ge": a >= b, "gt": a > b, "le": a <= b, "lt": a < b, "eq": a == b, "ne": a != b}[op]


def _extremum(largest: bool, a: Any, b: Any) -> Any:
    infinite = [value for value in (a, b) if isinstance(value, float) and math.isinf(value)]
    if infinite:
        return b if infinite[0] is a else a
    return a if _compare("ge" if largest else "le", a, b) else b


class Integers:
    """One program with numbers for its parameters."""

    def __init__(self, program: Program, params: Mapping[str, float], dtype: Any = np.float32) -> None:
        self.program = program
        self.order = topological([*program.outputs, *program.next, *program.initial])
        fixed = {node for node in self.order if node.op in ("param", "const")} | set(loop_invariant(self.order))
        self.coefficients: Dict[Node, Any] = {}
        with np.errstate(all="ignore"):
            for node in self.order:
                if node in fixed and node.is_leaf:
                    value = node.attr if node.op == "const" else params[str(node.attr)]
                    self.coefficients[node] = dtype(value)
                elif node in fixed:
                    self.coefficients[node] = _FLOATS[node.op](*[self.coefficients[arg] for arg in node.args])

    def start(self) -> List[Grid]:
        return [on_grid(self.coefficients[node]) for node in self.program.initial]

    def step(self, inputs: Sequence[float], states: Sequence[Grid]) -> Dict[Node, Any]:
        """The values of one step."""
        leaves = [Fraction(float(x)) for x in inputs] + list(states)
        values: Dict[Node, Any] = dict(zip(self.program.leaves, leaves))
        for node in self.order:
            if node not in values:
                values[node] = self._operation(node, values)
        return values

    def _operation(self, node: Node, values: Mapping[Node, Any]) -> Any:
        if node in self.coefficients:
            value = self.coefficients[node]
            if node.is_bool:
                return bool(value)
            return on_grid(value) if np.isfinite(value) else float(value)
        op, args = node.op, [values[arg] for arg in node.args]
        if op == "spike":
            n = args[0][0]
            return int(n > 0 if node.attr.strict else n >= 0), 0
        if op in ("where", "select"):
            chosen = args[0] if op == "where" else args[0][0] != 0
            return args[1] if chosen else args[2]
        if op in ("and", "or", "not"):
            return {"and": all, "or": any, "not": lambda both: not both[0]}[op](args)
        if op in ("ge", "gt", "le", "lt", "eq", "ne"):
            return _compare(op, *args)
        if op in ("minimum", "maximum"):
            return _extremum(op == "maximum", *args)
        if op == "clamp":
            return _extremum(False, _extremum(True, args[0], args[1]), args[2])
        if op == "detach":
            return args[0]
        return self._number(op, args)

    def _number(self, op: str, args: Sequence[Any]) -> Any:
        if not all(isinstance(value, tuple) for value in args):
            a, b = [fraction(value) for value in (*args, 0)][:2]
            if op in ("round", "floor"):
                return (round(a) if op == "round" else math.floor(a)), 0
            if op == "sub":  # of a value and itself
                assert a == b
                return 0, 0
            return {"mul": a * b}[op]
        (n, frac), *_ = args
        if op in ("round", "floor"):
            if frac <= 0:
                return n, frac
            return (half_even(n, frac) if op == "round" else n >> frac), 0
        if op == "mul":
            return n * args[1][0], frac + args[1][1]
        if op in ("add", "sub"):
            a, b, frac = aligned(*args)
            n = a + b if op == "add" else a - b
            return (n, frac) if n else (0, 0)
        return {"neg": (-n, frac), "abs": (abs(n), frac), "sign": ((n > 0) - (n < 0), 0)}[op]

    def run(self, xs: Sequence[np.ndarray], formats: Mapping[Node, Any]) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        """Outputs and states after each step of inputs ``[T, N]``, and a check of every value against its format."""
        steps, count = xs[0].shape
        outputs = [np.zeros((steps, count)) for _ in self.program.outputs]
        traces = [np.zeros((steps, count)) for _ in self.program.next]
        for i in range(count):
            states = self.start()
            for t in range(steps):
                values = self.step([x[t, i] for x in xs], states)
                for node, value in values.items():
                    known = formats[node]
                    if isinstance(value, tuple) and not known.is_float:
                        n, _, frac = aligned(value, (0, known.frac))
                        extra = frac - known.frac
                        assert n == n >> extra << extra, (node.op, value, known)
                        assert known.low <= n >> extra <= known.high, (node.op, value, known)
                states = [values[node] for node in self.program.next]
                for rows, roots in ((outputs, self.program.outputs), (traces, self.program.next)):
                    for row, root in zip(rows, roots):
                        row[t, i] = fraction(values[root])
        return outputs, traces


# -- random neurons


class _Expressions:
    """Random expressions in operations that fixed point has, as functions of a definition's values."""

    def __init__(self, rng: random.Random, states: Sequence[str], params: Sequence[str]) -> None:
        self.rng, self.states, self.params = rng, states, params

    def leaf(self) -> Any:
        kind = self.rng.choice("xss")
        if kind == "x" or not self.states:
            return lambda x, s, p: x
        name = self.rng.choice(self.states)
        return lambda x, s, p: getattr(s, name)

    def number(self) -> Any:
        name, value = self.rng.choice([*self.params, ""]), self.rng.choice((0.5, 0.3, 1.7, 2.0, -0.9, 1e-2, 0.0))
        return (lambda x, s, p: getattr(p, name)) if name else (lambda x, s, p: value)

    def value(self, depth: int) -> Any:
        if depth <= 0:
            return self.leaf()
        rng, a, b, c = self.rng, self.value(depth - 1), self.value(depth - 1), self.number()
        divisor = rng.choice(self.params)
        kinds = {
            "add": lambda x, s, p: a(x, s, p) + b(x, s, p),
            "offset": lambda x, s, p: a(x, s, p) - c(x, s, p),
            "scale": lambda x, s, p: c(x, s, p) * a(x, s, p),
            "divide": lambda x, s, p: a(x, s, p) / getattr(p, divisor),
            "product": lambda x, s, p: a(x, s, p) * b(x, s, p),
            "gate": lambda x, s, p: sc.ops.where((a(x, s, p) > c(x, s, p)) | (b(x, s, p) <= 0.25), 1.0, a(x, s, p)),
            "extremum": lambda x, s, p: sc.ops.maximum(a(x, s, p), sc.ops.minimum(b(x, s, p), c(x, s, p))),
            "clamp": lambda x, s, p: sc.ops.clamp(a(x, s, p), -1.0, 0.75),
            "flat": lambda x, s, p: sc.ops.floor(a(x, s, p)) + sc.ops.sign(b(x, s, p)),
            "unary": lambda x, s, p: -abs(a(x, s, p)),
        }
        return kinds[rng.choice([*kinds])]

    def neuron(self) -> Any:
        """A neuron with a spike and these states."""
        potential, outputs, reset = self.value(2), self.value(1), self.rng.choice(self.states)
        following = {name: self.value(2) for name in self.states}
        strict = self.rng.random() < 0.5
        initial = {name: self.rng.choice((0.0, 0.3, self.params[0])) for name in self.states}
        params = {name: self.rng.choice((0.4, 1.25, 2.0, 3.0)) for name in self.params}

        def dynamics(self: Any, x: Any, s: Any, p: Any) -> Any:
            z = self.spike(potential(x, s, p) - p.a, strict)
            after = {name: value(x, s, p) * 0.75 for name, value in following.items()}
            after[reset] = sc.ops.select(z, p.b * 0.5, after[reset])
            return (z, outputs(x, s, p)), after

        kind = type("Drawn", (sc.Neuron,), {"states": initial, "params": params, "dynamics": dynamics})
        return kind()


def drawn(seed: int) -> Any:
    """A random neuron in floats."""
    rng = random.Random(seed)
    return _Expressions(rng, ("v", "w")[: rng.randint(1, 2)], ("a", "b", "c")).neuron()
