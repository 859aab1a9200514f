"""Every operation of the language: its value and its derivative, at ordinary points, at ties and in the tails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence, Tuple

import numpy as np
import pytest
import torch

from derivatives import assert_equal, by_rules, by_torch, columns, recorded, weights
from spikecore import surrogate
from spikecore.lang import ops, topological
from spikecore.lang.eager import TORCH
from spikecore.lang.operations import ROWS as OF_LANGUAGE
from spikecore.lang.operations import Operation
from spikecore.testing._oracle.rules import VALUE

INF, NAN = math.inf, math.nan
Point = Tuple[float, ...]


@dataclass
class Row:
    """One operation: how a definition writes it, the same by hand in torch and in Python, and where to look."""

    #: In the language.
    write: Callable[..., Any]
    #: On tensors, with torch's own derivative.
    torch: Callable[..., torch.Tensor]
    #: On Python floats; finite differences are taken of this.
    python: Callable[..., float]
    #: Points around which the function is smooth.
    smooth: Sequence[Point]
    #: Ties, bounds, tails and infinities: torch's value and derivative hold.
    edges: Sequence[Point] = ()

    @property
    def points(self) -> Sequence[Point]:
        return [*self.smooth, *self.edges]


def same(function: Callable[..., Any], *points: Sequence[Point]) -> Row:
    """A row whose operation is a Python operator, written the same way everywhere."""
    return Row(function, function, function, *points)


def on_tensors(value: Callable[..., torch.Tensor], like: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A torch function with one value and the derivative of another function."""

    def function(*args: torch.Tensor) -> torch.Tensor:
        slope = like(*args)
        return value(*args).detach() + (slope - slope.detach())

    return function


def chosen(z: Any, a: Any, b: Any) -> Any:
    """The arithmetic form of ``select``."""
    return z * a + (1.0 - z) * b


def either(compare: Callable[..., Any]) -> Row:
    """A row for something that gives a truth value: it chooses between two functions of its arguments."""
    return Row(
        lambda a, b: ops.where(compare(a, b), a * a, 3.0 * b),
        lambda a, b: torch.where(compare(a, b), a * a, 3.0 * b),
        lambda a, b: a * a if compare(a, b) else 3.0 * b,
        [(1.5, 0.5), (0.5, 1.5), (-1.0, 2.0), (2.0, -1.0), (-2.0, -1.0)],
        [(0.5, 0.5), (0.0, -0.0), (-1.0, -1.0), (INF, INF), (-INF, 1.0), (1e-310, 0.0), (NAN, 1.0), (1.0, NAN)],
    )


ORDINARY = [(0.3,), (-0.7,), (1.0,), (2.5,), (-3.2,)]
POSITIVE = [(0.3,), (1.0,), (2.5,), (40.0,), (1e-3,)]
PAIRS = [(0.3, 2.0), (-1.5, 0.5), (2.0, -3.0), (-0.4, -0.9), (1.0, 1.0)]
ZEROS = [(0.0,), (-0.0,)]
INFINITIES = [(INF,), (-INF,)]
HUGE = [(1e300,), (-1e300,), (1e-300,), (-1e-300,), (5e-324,)]

#: Functions of one number, which need no row of their own.
OF_ONE_NUMBER = [row for row in OF_LANGUAGE if row.is_function and row.arity == 1]

ROWS = {
    "add": same(lambda a, b: a + b, PAIRS, [(1e300, 1.0), (1e308, 1e308), (INF, 1.0), (INF, -INF)]),
    "sub": same(lambda a, b: a - b, PAIRS, [(1e300, 1.0), (-1e308, 1e308), (INF, 1.0), (INF, INF)]),
    "mul": same(lambda a, b: a * b, PAIRS, [(1e300, 1e300), (1e-300, 1e-300), (INF, 0.0), (0.0, 0.0), (INF, -2.0)]),
    "div": Row(
        lambda a, b: a / b,
        lambda a, b: a / b,
        lambda a, b: a / b,
        PAIRS,
        [(1.0, 0.0), (-1.0, -0.0), (0.0, 0.0), (0.0, 2.0), (1.0, INF), (INF, INF), (1e300, 1e-300), (1e-300, 1e300)],
    ),
    "neg": same(lambda a: -a, ORDINARY, [*ZEROS, *INFINITIES, *HUGE]),
    "sign": Row(
        ops.sign, torch.sign, lambda x: math.copysign(1.0, x), ORDINARY, [*ZEROS, *INFINITIES, *HUGE, (5e-324,)]
    ),
    "floor": Row(
        ops.floor,
        torch.floor,
        lambda x: float(math.floor(x)),
        [(0.3,), (-0.7,), (2.5,), (-3.2,)],
        [*ZEROS, *INFINITIES, *HUGE, (1.0,), (-1.0,), (4503599627370497.5,)],
    ),
    "round": Row(
        ops.round,
        torch.round,
        lambda x: float(round(x)),
        [(0.3,), (-0.7,), (1.0,), (2.4,), (-3.2,)],
        [*ZEROS, *INFINITIES, *HUGE, (0.5,), (1.5,), (2.5,), (-0.5,), (-1.5,), (0.49999999999999994,)],
    ),
    "power": Row(
        ops.power,
        torch.pow,
        lambda x, n: x**n,
        [(0.3, 2.0), (2.5, -1.5), (1.0, 3.0), (7.0, 0.5), (0.2, 0.1)],
        [
            *[(0.0, 0.0), (0.0, 2.0), (0.0, 1.0), (0.0, 0.5), (0.0, -1.0), (-0.0, 3.0), (2.0, 0.0), (-2.0, 0.0)],
            *[(-2.0, 3.0), (-2.0, 2.0), (-2.0, -1.0), (-2.0, 0.5), (INF, 0.5), (INF, -1.0), (2.0, INF), (2.0, -INF)],
            *[(1e200, 2.0), (1e-200, 2.0), (1.0, INF), (INF, 0.0)],
        ],
    ),
    "minimum": Row(
        ops.minimum,
        torch.minimum,
        min,
        [(0.3, 2.0), (2.0, 0.3), (-1.0, 1.0), (-1.0, -2.0)],
        [(1.0, 1.0), (0.0, 0.0), (-0.5, -0.5), (INF, INF), (-INF, INF), (1e300, INF), (NAN, 1.0), (1.0, NAN)],
    ),
    "maximum": Row(
        ops.maximum,
        torch.maximum,
        max,
        [(0.3, 2.0), (2.0, 0.3), (-1.0, 1.0), (-1.0, -2.0)],
        [(1.0, 1.0), (0.0, 0.0), (-0.5, -0.5), (INF, INF), (-INF, INF), (1e300, INF), (NAN, 1.0), (1.0, NAN)],
    ),
    "clamp": Row(
        ops.clamp,
        torch.clamp,
        lambda x, low, high: min(max(x, low), high),
        [(0.3, -1.0, 1.0), (-2.0, -1.0, 1.0), (2.0, -1.0, 1.0), (0.3, 0.5, 1.0)],
        [
            *[(-1.0, -1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (2.0, 1.0, 1.0)],
            *[(0.0, 1.0, -1.0), (2.0, 1.0, -1.0), (-2.0, 1.0, -1.0), (1.0, 1.0, -1.0), (-1.0, 1.0, -1.0)],
            *[(INF, -1.0, 1.0), (-INF, -1.0, 1.0), (INF, -1.0, INF), (5.0, -INF, INF), (1e300, -1.0, 1.0)],
        ],
    ),
    "select": Row(
        ops.select,
        on_tensors(lambda z, a, b: torch.where(z != 0, a, b), chosen),
        chosen,
        [(1.0, 0.3, 2.0), (0.0, 0.3, 2.0), (1.0, -0.5, -2.0), (0.0, 4.0, 0.25)],
        [(1.0, 1e30, -1e30), (0.0, 1e-30, 1e30), (1.0, 0.0, -0.0), (0.0, 1.5, 1.5), (-0.0, 1.0, 2.0)],
    ),
    "detach": Row(
        lambda x: ops.detach(x) * x,
        lambda x: x.detach() * x,
        lambda x: x * x,
        [],
        [*ORDINARY, *ZEROS, *HUGE],
    ),
    "spike": Row(
        lambda u: ops.spike(u, surrogate.ATan(alpha=2.0)),
        # any function with the surrogate's derivative
        on_tensors(lambda u: (u >= 0).to(u.dtype), lambda u: torch.atan(math.pi * u) / math.pi),
        lambda u: 1.0 if u >= 0.0 else 0.0,
        [],
        [*ORDINARY, *ZEROS, *INFINITIES, *HUGE, (-5e-324,)],
    ),
    "ge": either(lambda a, b: a >= b),
    "gt": either(lambda a, b: a > b),
    "le": either(lambda a, b: a <= b),
    "lt": either(lambda a, b: a < b),
    "eq": either(lambda a, b: a == b),
    "ne": either(lambda a, b: a != b),
    "and": either(lambda a, b: (a > 0.0) & (b > 1.0)),
    "or": either(lambda a, b: (a > 0.0) | (b > 1.0)),
    # ~ of a Python bool is no truth value, so Python compares the other way round
    "not": Row(
        lambda a, b: ops.where(~(a > b), a * a, 3.0 * b),
        lambda a, b: torch.where(~(a > b), a * a, 3.0 * b),
        lambda a, b: 3.0 * b if a > b else a * a,
        [(1.5, 0.5), (0.5, 1.5), (-1.0, 2.0), (2.0, -1.0)],
        [(0.5, 0.5), (0.0, -0.0), (INF, INF), (NAN, 1.0), (1.0, NAN)],
    ),
    "where": Row(
        lambda c, a, b: ops.where(c >= 0.0, a * b, a - b),
        lambda c, a, b: torch.where(c >= 0.0, a * b, a - b),
        lambda c, a, b: a * b if c >= 0.0 else a - b,
        [(0.5, 2.0, 3.0), (-0.5, 2.0, 3.0), (1.0, -1.0, 0.3)],
        [(0.0, 2.0, 3.0), (-0.0, 2.0, 3.0), (-5e-324, 2.0, 3.0), (1.0, INF, 2.0), (-1.0, INF, 2.0), (NAN, 2.0, 3.0)],
    ),
}


def function(row: Operation) -> Row:
    """A row for a function of one number that has no special points: Python's value is the suite's."""
    value, smooth = VALUE[row.name], POSITIVE if row.unbounded else ORDINARY
    edges = [*ZEROS, *INFINITIES, *HUGE, (NAN,), (20.0,), (-20.0,), (800.0,), (-800.0,)]
    return Row(getattr(ops, row.name), row.torch, lambda x: float(value(np.float64(x))), smooth, edges)


ROWS.update({row.name: function(row) for row in OF_ONE_NUMBER if row.name not in ROWS})

every_operation = pytest.mark.parametrize("op", ROWS)


def slope(function: Callable[..., float], point: Point, position: int) -> float:
    """The central difference of a Python function with respect to one argument."""
    step = 1e-5 * max(abs(point[position]), 1e-3)
    ends = []
    for sign in (1.0, -1.0):
        moved = list(point)
        moved[position] += sign * step
        ends.append((moved[position], function(*moved)))
    (above, f_above), (below, f_below) = ends
    return (f_above - f_below) / (above - below)


class TestEveryOperation:
    @every_operation
    def test_value(self, op):
        """Python's at ordinary points; torch's everywhere, ties and infinities included, bit for bit."""
        row = ROWS[op]
        _, root = recorded(row.write, len(row.points[0]))
        assert op in {node.op for node in topological([root])}
        points = row.smooth or [p for p in row.edges if all(map(math.isfinite, p))]
        value, _ = by_rules(row.write, columns(points), weights(points))
        expected = torch.tensor([row.python(*point) for point in points], dtype=torch.float64)
        assert_equal(expected, value, rtol=1e-14)
        for dtype in (torch.float32, torch.float64):
            args, cotangent = columns(row.points, dtype), weights(row.points, dtype)
            expected, _ = by_torch(row.torch, args, cotangent)
            value, _ = by_rules(row.write, args, cotangent)
            assert_equal(expected, value)
            number = ~expected.isnan()
            assert torch.equal(expected.signbit()[number], value.signbit()[number])

    @every_operation
    def test_derivative(self, op):
        """The central difference where the function is smooth; torch's everywhere, ties and tails included."""
        row = ROWS[op]
        if row.smooth:
            cotangent = weights(row.smooth)
            _, gradients = by_rules(row.write, columns(row.smooth), cotangent)
            for position, actual in enumerate(gradients):
                slopes = torch.tensor([slope(row.python, point, position) for point in row.smooth], dtype=torch.float64)
                torch.testing.assert_close(actual, cotangent * slopes, rtol=1e-6, atol=1e-9)
        args, cotangent = columns(row.points), weights(row.points)
        _, expected = by_torch(row.torch, args, cotangent)
        _, actual = by_rules(row.write, args, cotangent)
        for e, a in zip(expected, actual):
            assert_equal(e, a, rtol=1e-13)

    @every_operation
    def test_by_hand(self, op):
        """On tensors an operation gives value and derivative of the recorded one; on Python numbers a Python float."""
        row = ROWS[op]
        args, cotangent = columns(row.points), weights(row.points)
        value, expected = by_rules(row.write, args, cotangent)
        eager_value, actual = by_torch(row.write, args, cotangent)
        assert_equal(value, eager_value)
        for e, a in zip(expected, actual):
            assert_equal(e, a, rtol=1e-13)
        # ~ of a Python bool is an integer operation, and Python's own
        for point in () if op == "not" else row.smooth or ORDINARY:
            result = row.write(*point)
            assert isinstance(result, float)
            assert math.isclose(result, row.python(*point), rel_tol=1e-14)


class TestRelu:
    """relu is no operation of its own: it is a choice between its argument and 0."""

    POINTS = (*ORDINARY, *ZEROS, *INFINITIES, *HUGE, (NAN,))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_value_and_derivative_are_those_of_torch(self, dtype):
        """Everywhere, 0 and NaN included; of zeros, whose sign torch leaves open, it makes +0."""
        args, cotangent = columns(self.POINTS, dtype), weights(self.POINTS, dtype)
        expected, gradients = by_torch(torch.relu, args, cotangent)
        for compute in (by_rules, by_torch):
            value, (to_x,) = compute(ops.relu, args, cotangent)
            assert_equal(expected, value)
            assert_equal(gradients[0], to_x)
            assert not value.signbit()[~value.isnan()].any()


def test_clamp_may_have_one_bound():
    """A bound that is left out is infinite."""
    low, high = lambda x: ops.clamp(x, 0.0), lambda x: ops.clamp(x, high=0.0)
    args, cotangent = columns([(-2.0,), (3.0,)]), torch.ones(2).double()
    for write, value, gradient in ((low, [0.0, 3.0], [0.0, 1.0]), (high, [-2.0, 0.0], [1.0, 0.0])):
        actual, (to_x,) = by_rules(write, args, cotangent)
        assert (value, gradient) == (actual.tolist(), to_x.tolist())


@pytest.mark.parametrize("other", [INF, NAN, 1e308])
def test_select_is_exact_beside_anything(other):
    """Neither value nor gradient of the branch taken is touched by what stands in the other one."""
    args = columns([(1.0, 0.1, other), (0.0, other, 0.1)])
    value, (_, to_a, to_b) = by_rules(ops.select, args, torch.tensor([2.0, 3.0]).double())
    assert value.tolist() == [0.1, 0.1]
    assert (to_a.tolist(), to_b.tolist()) == ([2.0, 0.0], [0.0, 3.0])


def test_select_of_other_shapes():
    """Each argument gets a gradient of its own shape."""
    z = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    ops.select(z, a, torch.full((2, 3), 5.0, dtype=torch.float64)).sum().backward()
    assert (a.grad.item(), z.grad.tolist()) == (4.0, [-6.0, -6.0, -6.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [12, 1 << 13])
def test_select_in_every_precision(size, dtype):
    """The bits of ``torch.where``, for small and large tensors, NaN, infinities and zeros of either sign."""
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, NAN, INF, -INF, 1e-45], dtype=torch.float64)
    z, a, b = (special[torch.randint(len(special), (size,), generator=generator)].to(dtype) for _ in range(3))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[z.element_size()]
    for one, other in ((a, b), (torch.tensor(-0.0, dtype=dtype), b), (b[:1], a)):
        assert torch.equal(ops.select(z, one, other).view(bits), torch.where(z != 0, one, other).view(bits))


def test_numbers_beside_tensors_take_their_dtype():
    """sc.ops gives a number the dtype of the tensors, whichever comes first."""
    x = torch.tensor([0.5, -0.5], dtype=torch.float64)
    assert ops.maximum(0.1, x).tolist() == [0.5, 0.1]
    assert torch.float64 == ops.maximum(0.0, x).dtype == ops.where(x > 0, 1.0, x).dtype
    assert torch.get_default_dtype() == ops.where(x > 0, 1.0, 0.0).dtype


class TestSpike:
    @pytest.mark.parametrize(("strict", "at_zero"), [(False, 1.0), (True, 0.0)])
    def test_fires_at_zero_unless_strict(self, strict, at_zero):
        """At exactly 0, of either sign, a spike fires unless it is strict; next to 0 both agree."""
        args = columns([(0.0,), (-0.0,), (5e-324,), (-5e-324,), (NAN,), (INF,), (-INF,)])
        value, _ = by_rules(lambda u: ops.spike(u, surrogate.ATan(), strict), args, torch.ones(7).double())
        assert [at_zero, at_zero, 1.0, 0.0, 0.0, 1.0, 0.0] == value.tolist()


BINADE = 1 << 23


def every(first, count=2 * BINADE):
    """So many float32 from a power of two on. Roots of numbers four times as large have the same digits."""
    begin = torch.tensor(first).view(torch.int32).item()
    return torch.arange(begin, begin + count, dtype=torch.int32).view(torch.float32)


def nearest(x):
    """NumPy's root, which is the processor's instruction: rounded as IEEE 754 has it."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def test_every_number():
    """All float32 of [1, 4), through float64, as on a CPU."""
    x = every(1.0)
    assert torch.equal(TORCH["sqrt"](x), nearest(x))
