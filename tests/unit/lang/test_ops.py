"""Every operation of the language: its value and its derivative, at ordinary points, at ties and in the tails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence, Tuple

import numpy as np
import pytest
import torch

from derivatives import GRADIENT, assert_equal, by_rules, by_torch, columns, recorded, weights
from spikecore import surrogate
from spikecore.lang import ops, topological
from spikecore.lang._program import reverse
from spikecore.lang.eager import TORCH
from spikecore.lang.node import OPERATIONS, const
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
    "exp": Row(ops.exp, torch.exp, math.exp, ORDINARY, [*ZEROS, *INFINITIES, (700.0,), (800.0,), (-700.0,), (-800.0,)]),
    "log": Row(ops.log, torch.log, math.log, POSITIVE, [*ZEROS, (-1.0,), (INF,), (1e300,), (1e-300,), (5e-324,)]),
    "sqrt": Row(ops.sqrt, torch.sqrt, math.sqrt, POSITIVE, [*ZEROS, (-1.0,), (INF,), (1e300,), (1e-300,)]),
    "tanh": Row(ops.tanh, torch.tanh, math.tanh, ORDINARY, [*ZEROS, *INFINITIES, *HUGE, (20.0,), (-20.0,)]),
    "sigmoid": Row(
        ops.sigmoid,
        torch.sigmoid,
        lambda x: 1.0 / (1.0 + math.exp(-x)),
        ORDINARY,
        [*ZEROS, *INFINITIES, *HUGE, (40.0,), (-40.0,), (800.0,), (-800.0,)],
    ),
    "softplus": Row(
        ops.softplus,
        lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
        ORDINARY,
        [*ZEROS, *INFINITIES, *HUGE, (NAN,), (19.5,), (20.5,), (40.0,), (-40.0,), (800.0,), (-700.0,)],
    ),
    "erf": Row(ops.erf, torch.erf, math.erf, ORDINARY, [*ZEROS, *INFINITIES, *HUGE, (NAN,), (6.0,), (-6.0,), (30.0,)]),
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
    edges = [*ZEROS, *INFINITIES, *HUGE, (NAN,)]
    return Row(getattr(ops, row.name), row.torch, lambda x: float(value(np.float64(x))), smooth, edges)


ROWS.update({row.name: function(row) for row in OF_ONE_NUMBER if row.name not in ROWS})

every_operation = pytest.mark.parametrize("op", ROWS)
differentiable = pytest.mark.parametrize("op", [op for op, row in ROWS.items() if row.smooth])


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
    def test_every_operation_has_a_torch_function(self):
        """The table that defines the language for every backend misses nothing."""
        assert set(OPERATIONS) == set(TORCH)

    @every_operation
    def test_records_itself(self, op):
        """What a row writes contains the operation that the row is for."""
        row = ROWS[op]
        _, root = recorded(row.write, len(row.points[0]))
        assert op in {node.op for node in topological([root])}

    @every_operation
    def test_value_is_that_of_python(self, op):
        """At ordinary points the value is what Python's own arithmetic gives."""
        row = ROWS[op]
        points = row.smooth or [p for p in row.edges if all(map(math.isfinite, p))]
        value, _ = by_rules(row.write, columns(points), weights(points))
        expected = torch.tensor([row.python(*point) for point in points], dtype=torch.float64)
        assert_equal(expected, value, rtol=1e-14)

    @every_operation
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_value_is_that_of_torch(self, op, dtype):
        """Everywhere, ties and infinities included, the value is torch's, bit for bit."""
        row = ROWS[op]
        args, cotangent = columns(row.points, dtype), weights(row.points, dtype)
        expected, _ = by_torch(row.torch, args, cotangent)
        value, _ = by_rules(row.write, args, cotangent)
        assert_equal(expected, value)
        number = ~expected.isnan()
        assert torch.equal(expected.signbit()[number], value.signbit()[number])

    @differentiable
    def test_derivative_is_the_slope(self, op):
        """Where the function is smooth, the derivative by every argument is its central difference."""
        row = ROWS[op]
        cotangent = weights(row.smooth)
        _, gradients = by_rules(row.write, columns(row.smooth), cotangent)
        for position, actual in enumerate(gradients):
            slopes = torch.tensor([slope(row.python, point, position) for point in row.smooth], dtype=torch.float64)
            torch.testing.assert_close(actual, cotangent * slopes, rtol=1e-6, atol=1e-9)

    @every_operation
    def test_derivative_is_that_of_torch(self, op):
        """Everywhere, ties and tails included, the derivative by every argument is torch's."""
        row = ROWS[op]
        args, cotangent = columns(row.points), weights(row.points)
        _, expected = by_torch(row.torch, args, cotangent)
        _, actual = by_rules(row.write, args, cotangent)
        for e, a in zip(expected, actual):
            assert_equal(e, a, rtol=1e-13)

    @every_operation
    def test_tensors_compute_what_is_recorded(self, op):
        """A definition called by hand on tensors gives the value and derivative of the recorded one."""
        row = ROWS[op]
        args, cotangent = columns(row.points), weights(row.points)
        value, expected = by_rules(row.write, args, cotangent)
        eager_value, actual = by_torch(row.write, args, cotangent)
        assert_equal(value, eager_value)
        for e, a in zip(expected, actual):
            assert_equal(e, a, rtol=1e-13)

    # ~ of a Python bool is an integer operation, and Python's own
    @pytest.mark.parametrize("op", [op for op in ROWS if op != "not"])
    def test_numbers_give_a_number(self, op):
        """On Python numbers alone, every function of sc.ops gives a Python float."""
        row = ROWS[op]
        for point in row.smooth or ORDINARY:
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

    def test_numbers_give_a_number(self):
        """Of Python numbers it is a float."""
        assert [ops.relu(2), ops.relu(-1.5), ops.relu(0.0)] == [2.0, 0.0, 0.0]
        assert isinstance(ops.relu(2), float)


class TestExtremes:
    @pytest.mark.parametrize("op", [ops.minimum, ops.maximum])
    def test_a_tie_gives_half_to_each(self, op):
        """At a tie of minimum and maximum each argument gets half the gradient."""
        _, (to_a, to_b) = by_rules(op, columns([(2.0, 2.0)]), torch.tensor([1.0]).double())
        assert (to_a.item(), to_b.item()) == (0.5, 0.5)

    @pytest.mark.parametrize("at", [-1.0, 0.0, 1.0])
    def test_clamp_passes_gradient_at_its_bounds(self, at):
        """The derivative of clamp is 1 within and at the bounds, and nothing goes to the bounds."""
        _, gradients = by_rules(ops.clamp, columns([(at, -1.0, 1.0)]), torch.tensor([1.0]).double())
        assert [g.item() for g in gradients] == [1.0, 0.0, 0.0]

    def test_clamp_may_have_one_bound(self):
        """A bound that is left out is infinite."""
        low, high = lambda x: ops.clamp(x, 0.0), lambda x: ops.clamp(x, high=0.0)
        args, cotangent = columns([(-2.0,), (3.0,)]), torch.ones(2).double()
        for write, value, gradient in ((low, [0.0, 3.0], [0.0, 1.0]), (high, [-2.0, 0.0], [1.0, 0.0])):
            actual, (to_x,) = by_rules(write, args, cotangent)
            assert (value, gradient) == (actual.tolist(), to_x.tolist())

    def test_abs_is_flat_at_zero(self):
        """The derivative of abs at 0 is 0."""
        _, (to_x,) = by_rules(ops.abs, columns([(0.0,), (-0.0,)]), torch.ones(2).double())
        assert to_x.tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("op", [ops.sign, ops.floor, ops.round])
    def test_steps_are_flat(self, op):
        """No gradient at all flows through sign, floor and round: it is a constant 0 in the adjoint."""
        leaves, root = recorded(op, 1)
        assert [const(0.0)] == reverse([(root, GRADIENT)], leaves)

    def test_where_gives_nothing_to_the_branch_not_chosen(self):
        """An infinite derivative in the branch not chosen does not become NaN in the other."""

        def write(x, y):
            return ops.where(x > 0.0, x, y)

        _, gradients = by_rules(write, columns([(1.0, INF), (-1.0, NAN)]), torch.tensor([INF, 2.0]).double())
        assert [g.tolist() for g in gradients] == [[INF, 0.0], [0.0, 2.0]]


class TestSelect:
    @pytest.mark.parametrize("other", [INF, -INF, NAN, 1e308])
    def test_value_is_exact_beside_anything(self, other):
        """Neither branch is touched by what stands in the other one."""
        args = columns([(1.0, 0.1, other), (0.0, other, 0.1)])
        value, _ = by_rules(ops.select, args, torch.ones(2).double())
        assert value.tolist() == [0.1, 0.1]

    @pytest.mark.parametrize("other", [INF, NAN])
    def test_gradient_goes_to_the_chosen_branch_alone(self, other):
        """The branch not chosen gets exactly 0, also beside an infinity or NaN."""
        args = columns([(1.0, 0.1, other), (0.0, other, 0.1)])
        _, (_, to_a, to_b) = by_rules(ops.select, args, torch.tensor([2.0, 3.0]).double())
        assert (to_a.tolist(), to_b.tolist()) == ([2.0, 0.0], [0.0, 3.0])

    def test_gradient_of_the_spike_is_the_difference(self):
        """The 0/1 argument gets a - b, whichever is chosen."""
        _, (to_z, _, _) = by_rules(ops.select, columns([(1.0, 5.0, 2.0), (0.0, 5.0, 2.0)]), torch.ones(2).double())
        assert to_z.tolist() == [3.0, 3.0]


#: Surrogates that between them use constants, comparisons, exponentials and powers, with their derivatives by hand.
SURROGATES = {
    surrogate.StraightThrough(): torch.ones_like,
    surrogate.Rectangular(alpha=2.0): lambda u: 2.0 * (u.abs() < 0.25),
    surrogate.PiecewiseExp(alpha=3.0): lambda u: 1.5 * torch.exp(-3.0 * u.abs()),
    surrogate.FastSigmoid(slope=5.0): lambda u: (1 + 5 * u.abs()) ** -2,
    surrogate.Triangular(gamma=0.3, width=0.5): lambda u: 0.3 * torch.relu(1 - u.abs() / 0.5),
}


class TestSpike:
    @pytest.mark.parametrize(("strict", "at_zero"), [(False, 1.0), (True, 0.0)])
    def test_fires_at_zero_unless_strict(self, strict, at_zero):
        """At exactly 0, of either sign, a spike fires unless it is strict; next to 0 both agree."""
        args = columns([(0.0,), (-0.0,), (5e-324,), (-5e-324,), (NAN,), (INF,), (-INF,)])
        value, _ = by_rules(lambda u: ops.spike(u, surrogate.ATan(), strict), args, torch.ones(7).double())
        assert [at_zero, at_zero, 1.0, 0.0, 0.0, 1.0, 0.0] == value.tolist()

    @pytest.mark.parametrize("strict", [False, True])
    @pytest.mark.parametrize("chosen_surrogate", SURROGATES, ids=repr)
    def test_derivative_is_its_surrogate(self, chosen_surrogate, strict):
        """The derivative is the surrogate's formula of the spike's argument, recorded and on tensors."""
        u = torch.linspace(-1.0, 1.0, 41, dtype=torch.float64)
        cotangent = torch.linspace(0.5, 1.5, 41, dtype=torch.float64)
        expected = cotangent * SURROGATES[chosen_surrogate](u)
        for differentiate in (by_rules, by_torch):
            _, (actual,) = differentiate(lambda x: ops.spike(x, chosen_surrogate, strict), [u], cotangent)
            assert_equal(expected, actual, rtol=1e-14)

    def test_number_in_number_out(self):
        """A spike of a Python number is a Python number."""
        assert [ops.spike(0.0, surrogate.ATan(), strict) for strict in (False, True, True)] == [1.0, 0.0, 0.0]
        assert isinstance(ops.spike(0.5, surrogate.ATan()), float)
