"""Every operation of the language: its value and its derivative, at ordinary points, at ties and in the tails."""

from __future__ import annotations

import itertools
import math
from inspect import signature

import numpy as np
import pytest
import torch

from spikecore import surrogate
from spikecore.lang import Expr, Node, ops, topological
from spikecore.lang.eager import TORCH, evaluate
from spikecore.lang.operations import COMPOSED, OPERATION
from spikecore.lang.operations import ROWS as OF_LANGUAGE
from spikecore.lang.transform import cotangents

INF, NAN = math.inf, math.nan
NUMBERS = (0.0, -0.0, 0.3, -0.7, 1.0, -1.0, 1.5, 2.5, -3.2, 20.0, 1e300, -1e300, 1e-300, 5e-324, INF, -INF, NAN)
FEW = (0.0, -0.0, 0.3, -0.7, 1.0, 2.5, INF, NAN)


GRADIENT = Node("out_grad", (), 0)


def recorded(write, count):
    """The leaves and the root of an operation as a definition records it."""
    leaves = [Node("input", (), f"x{i}") for i in range(count)]
    return leaves, write(*map(Expr, leaves)).node


def columns(points, dtype=torch.float64):
    """The points as one tensor per argument."""
    return [torch.tensor(column, dtype=dtype) for column in zip(*points)]


def weights(points, dtype=torch.float64):
    """A cotangent for each point, no two alike and none special."""
    return 0.75 + 0.125 * torch.arange(len(points), dtype=dtype)


def by_rules(write, args, cotangent):
    """Value and derivatives as the language derives them."""
    leaves, root = recorded(write, len(args))
    found = cotangents([(root, GRADIENT)], leaves)
    values = {**dict(zip(leaves, args)), GRADIENT: cotangent}
    value, *gradients = evaluate([root, *found], values, like=args[0])
    return value, [gradient.expand_as(args[0]) for gradient in gradients]


def by_torch(function, args, cotangent):
    """Value and derivatives from autograd."""
    args = [arg.clone().requires_grad_() for arg in args]
    value = function(*args)
    gradients = (
        torch.autograd.grad(value, args, cotangent, allow_unused=True) if value.requires_grad else [None] * len(args)
    )
    return value.detach(), [torch.zeros_like(a) if g is None else g for a, g in zip(args, gradients)]


def assert_equal(expected, actual, rtol=0.0):
    """Equal up to a relative difference, NaN and infinity where they should be."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=0.0, equal_nan=True)


def on_tensors(value, like):
    """A torch function with one value and the derivative of another function."""

    def function(*args):
        slope = like(*args)
        return value(*args).detach() + (slope - slope.detach())

    return function


def either(compare):
    """Something that gives a truth value chooses between two functions of its arguments."""
    return tuple(lambda a, b, m=m: m.where(compare(a, b), a * a, 3.0 * b) for m in (ops, torch))


def both(function):
    return function, function


#: How a definition writes an operation, and the same in torch, with torch's own derivative.
WRITTEN = {
    **{row.name: (getattr(ops, row.name), row.torch) for row in OF_LANGUAGE if row.is_function},
    "add": both(lambda a, b: a + b),
    "sub": both(lambda a, b: a - b),
    "mul": both(lambda a, b: a * b),
    "div": both(lambda a, b: a / b),
    "neg": both(lambda a: -a),
    # z is 0 or 1
    "select": tuple(
        lambda z, a, b, select=select, m=m: select(m.where(z > 0.5, 1.0, 0.0), a, b)
        for select, m in ((ops.select, ops), (lambda z, a, b: torch.where(z != 0.0, a, b), torch))
    ),
    "detach": (lambda x: ops.detach(x) * x, lambda x: x.detach() * x),
    # any function with the surrogate's derivative
    "spike": (
        lambda u: ops.spike(u, surrogate.ATan(alpha=2.0)),
        on_tensors(lambda u: (u >= 0).to(u.dtype), lambda u: torch.atan(math.pi * u) / math.pi),
    ),
    "ge": either(lambda a, b: a >= b),
    "gt": either(lambda a, b: a > b),
    "le": either(lambda a, b: a <= b),
    "lt": either(lambda a, b: a < b),
    "eq": either(lambda a, b: a == b),
    "ne": either(lambda a, b: a != b),
    "and": either(lambda a, b: (a > 0.0) & (b > 1.0)),
    "or": either(lambda a, b: (a > 0.0) | (b > 1.0)),
    "not": either(lambda a, b: ~(a > b)),
    "where": tuple(lambda c, a, b, m=m: m.where(c >= 0.0, a * b, a - b) for m in (ops, torch)),
}


@pytest.mark.parametrize("op", WRITTEN)
def test_values_and_derivatives_are_those_of_torch(op):
    """Of the recorded operation and of the one on tensors; ties, infinities and NaN included, values bit for bit."""
    write, right = WRITTEN[op]
    arity = 2 if op == "not" else OPERATION[op].arity
    points = list(itertools.product(FEW if arity == 3 else NUMBERS, repeat=arity))
    points = [point for point in points if op != "spike" or point[0] == point[0]]  # a spike of NaN has a test below
    _, root = recorded(write, arity)
    assert op in {node.op for node in topological([root])}
    for dtype in (torch.float32, torch.float64):
        args, cotangent = columns(points, dtype), weights(points, dtype)
        expected, gradients = by_torch(right, args, cotangent)
        for compute in (by_rules, by_torch):
            value, found = compute(write, args, cotangent)
            assert_equal(expected, value)
            number = ~expected.isnan()
            assert torch.equal(expected.signbit()[number], value.signbit()[number])
            for wanted, gradient in zip(gradients, found):
                assert_equal(wanted, gradient, rtol=1e-5 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_is_that_of_torch(dtype):
    """Everywhere, 0 and NaN included; of zeros, whose sign torch leaves open, it makes +0."""
    points = [(number,) for number in NUMBERS]
    args, cotangent = columns(points, dtype), weights(points, dtype)
    expected, gradients = by_torch(torch.relu, args, cotangent)
    for compute in (by_rules, by_torch):
        value, (to_x,) = compute(ops.relu, args, cotangent)
        assert_equal(expected, value)
        assert_equal(gradients[0], to_x)
        assert not value.signbit()[~value.isnan()].any()


#: Far from 0, near it and beside each other: where a formula loses digits, or is infinite too early.
ACCURATE = [-88.0, -20.0, -1.5, -0.75, -1e-3, -1e-7, 1e-7, 1e-3, 0.75, 1.5, 20.0, 88.0]


@pytest.mark.parametrize("name", [*COMPOSED, *"expm1 log1p sinh cosh tan softplus remainder".split()])
def test_values_and_derivatives_have_all_digits(name):
    """In float32, those of torch's own function in float64, by kernels' rules and by autograd."""
    ours, function = getattr(ops, name), getattr(torch, name, None) or getattr(torch.nn.functional, name)
    numbers = [x for x in ACCURATE if x > 0 or name not in ("rsqrt", "log1p")]
    points = [*itertools.product(numbers, repeat=len(signature(ours).parameters))]
    args = columns(points, torch.float32)
    expected, gradients = by_torch(function, [arg.double() for arg in args], torch.ones(len(points)).double())
    for compute in (by_rules, by_torch):
        value, found = compute(ours, args, torch.ones(len(points)))
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-30)
        for gradient, right in zip(found, gradients):
            torch.testing.assert_close(gradient.double(), right, rtol=1e-5, atol=1e-8)


def test_clamp_may_have_one_bound():
    """A bound that is left out is infinite."""
    low, high = lambda x: ops.clamp(x, 0.0), lambda x: ops.clamp(x, high=0.0)
    args, cotangent = columns([(-2.0,), (3.0,)]), torch.ones(2).double()
    for write, value, gradient in ((low, [0.0, 3.0], [0.0, 1.0]), (high, [-2.0, 0.0], [1.0, 0.0])):
        actual, (to_x,) = by_rules(write, args, cotangent)
        assert (value, gradient) == (actual.tolist(), to_x.tolist())


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


@pytest.mark.parametrize(("op", "count"), [("select", 3), ("minimum", 2), ("maximum", 2), ("clamp", 3)])
def test_the_node_of_the_graph_has_the_name_of_the_operation(op, count):
    """Profilers show this name."""
    inputs = [torch.rand(3, requires_grad=True) for _ in range(count)]
    assert getattr(ops, op)(*inputs).grad_fn.name() == f"{op.title()}Backward"


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
