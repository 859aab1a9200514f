"""Fixed-point programs computed with Python's integers, apart from the library's analysis, also as a backend.

``python -m spikecore.testing.random_programs integers --install integers:IntegersBackend --fixed`` compares them with
the suite's oracle on random programs.

A value on a grid is a pair ``(n, frac)``, which stands for ``n * 2**-frac``; a float that nothing has rounded yet is a
Fraction. Coefficients are computed with NumPy in the dtype of the arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

import spikecore as sc
from plain_loop import Loop, Plain
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


def results(neuron: Any, x: torch.Tensor, backend: str) -> List[torch.Tensor]:
    """Outputs, and states after every step, on the CPU."""
    sc.set_backend(neuron, backend)
    with torch.no_grad():
        outputs, _, *trace = neuron.run(x, record=tuple(neuron.states))
    return [
        value.cpu()
        for value in (*(outputs if isinstance(outputs, tuple) else (outputs,)), *(trace[0].values() if trace else ()))
    ]


#: op -> NumPy's function.
FLOATS: Dict[str, Any] = {
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
    "select": lambda z, a, b: np.where(z != 0, a, b),
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
                elif node in fixed and node.op == "spike":
                    u = self.coefficients[node.args[0]]
                    self.coefficients[node] = dtype(u > 0 if node.attr.strict else u >= 0)
                elif node in fixed:
                    self.coefficients[node] = FLOATS[node.op](*[self.coefficients[arg] for arg in node.args])

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

    def run(
        self, xs: Sequence[np.ndarray], formats: Mapping[Node, Any], state: Optional[Sequence[np.ndarray]] = None
    ) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        """Outputs and states after each step of inputs ``[T, N]``, from states ``[N]`` or from rest, and a check of
        every value against its format.
        """
        steps, count = xs[0].shape
        outputs = [np.zeros((steps, count)) for _ in self.program.outputs]
        traces = [np.zeros((steps, count)) for _ in self.program.next]
        for i in range(count):
            states = self.start() if state is None else [on_grid(value[i]) for value in state]
            for t in range(steps):
                values = self.step([x[t, i] for x in xs], states)
                for node, value in values.items():
                    check_format(node, value, formats[node])
                states = [values[node] for node in self.program.next]
                for rows, roots in ((outputs, self.program.outputs), (traces, self.program.next)):
                    for row, root in zip(rows, roots):
                        row[t, i] = fraction(values[root])
        return outputs, traces


def check_format(node: Node, value: Any, known: Any) -> None:
    """A value is one of a format."""
    if isinstance(value, tuple) and not known.is_float:
        n, _, frac = aligned(value, (0, known.frac))
        extra = frac - known.frac
        assert n == n >> extra << extra, (node.op, value, known)
        assert known.low <= n >> extra <= known.high, (node.op, value, known)


class IntegerLoop(Loop):
    """Values are those of integers; derivatives are those of the loop in floats."""

    def __call__(self, inputs: Any, state: Any, params: Any, record: Any) -> Any:
        """Runner of :meth:`spikecore.backend.Backend.compile`."""
        outputs, final, trace = super().__call__(inputs, state, params, record)
        rows, states = self.integers(inputs, state, params)
        if len(inputs[0]):
            final = [valued(value, row[-1]) for value, row in zip(final, states)]
        recorded = [states[self.program.states.index(name)] for name in record]
        return (tuple(map(valued, outputs, rows)), tuple(final), tuple(map(valued, trace, recorded)))

    def integers(self, inputs: Any, state: Any, params: Any) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        """Outputs and states after each step, ``[T, N]``; each neuron has parameters of its own."""
        shape = inputs[0].shape[1:]
        xs = [columns(x, x.shape) for x in inputs]
        start = None if state is None else [columns(value, shape, 0) for value in state]
        values = [columns(value, shape, 0) for value in params]
        formats = sc.quant.analyse(self.program, dtype=self.compute)
        dtype = np.float64 if self.compute == torch.float64 else np.float32
        results = []
        for i in range(xs[0].shape[1]):
            numbers = {name: value[i] for name, value in zip(self.program.params, values)}
            given = None if start is None else [value[i : i + 1] for value in start]
            results.append(Integers(self.program, numbers, dtype).run([x[:, i : i + 1] for x in xs], formats, given))
        outputs, states = [[np.concatenate(rows, 1) for rows in zip(*part)] for part in zip(*results)]
        return outputs, states


def columns(value: Any, shape: Sequence[int], leading: int = 1) -> np.ndarray:
    """A number or a tensor spread over a shape, all dimensions behind the leading ones as one."""
    array = np.broadcast_to(torch.as_tensor(value, dtype=torch.float64).detach().numpy(), tuple(shape))
    return array.reshape(*shape[:leading], math.prod(shape[leading:]))


def valued(value: torch.Tensor, exact: np.ndarray) -> torch.Tensor:
    """A tensor with other values and its own derivative; a 0 keeps the sign that integers do not have."""
    other = torch.from_numpy(exact).reshape(value.shape).to(value.dtype)
    return torch.where(value == other, value, value + (other - value).detach())


class IntegersBackend(Plain):
    """Python's integers as a backend of programs in fixed point."""

    name = "integers"
    loop = IntegerLoop
