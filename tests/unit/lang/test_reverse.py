"""The backward pass over a program, and the evaluation of programs on numbers and tensors."""

from __future__ import annotations

import pytest
import torch

from derivatives import GRADIENT, assert_equal, by_rules, by_torch, columns, recorded, weights
from spikecore.lang import Node, ops
from spikecore.lang._program import reverse
from spikecore.lang.eager import evaluate
from spikecore.lang.node import const

PAIRS = [(0.3, 2.0), (-1.5, 0.5), (2.0, -3.0), (-0.4, -0.9), (1.0, 1.0)]


class TestReverse:
    def test_a_value_used_often_gathers_from_all_its_uses(self):
        """Shared values, reused leaves and nested functions add up as in autograd."""

        def formula(f, x, y):
            shared = x * y + f.sigmoid(x)
            left, right = f.exp(shared) - shared / y, shared * shared
            return left * right + f.maximum(left, right) - x * shared

        args, cotangent = columns(PAIRS), weights(PAIRS)
        _, expected = by_torch(lambda x, y: formula(torch, x, y), args, cotangent)
        _, actual = by_rules(lambda x, y: formula(ops, x, y), args, cotangent)
        for e, a in zip(expected, actual):
            assert_equal(e, a, rtol=1e-13)

    def test_detach_cuts_one_path_only(self):
        """Of x * detach(x) the derivative is x, and of detach(x * x) it is 0."""
        x = torch.tensor([3.0], dtype=torch.float64)
        one = torch.ones(1, dtype=torch.float64)
        for write, expected in ((lambda e: e * ops.detach(e), 3.0), (lambda e: ops.detach(e * e), 0.0)):
            _, (to_x,) = by_rules(write, [x], one)
            assert expected == to_x.item()

    def test_several_roots_add_up(self):
        """The cotangents of all roots arrive; a root may be a leaf, and may stand twice."""
        (a, b), root = recorded(lambda x, y: x * y, 2)
        first, second, third = (Node("out_grad", (), i) for i in range(3))
        found = reverse([(root, first), (a, second), (root, third)], [a, b])
        values = {
            node: torch.tensor(v).double()
            for node, v in ((a, 3.0), (b, 5.0), (first, 1.0), (second, 10.0), (third, 100.0))
        }
        assert [v.item() for v in evaluate(found, values, like=values[a])] == [5.0 + 10.0 + 500.0, 3.0 + 300.0]

    def test_what_nothing_reaches_is_zero(self):
        """A wanted leaf that no root needs has the constant 0."""
        (a, b), root = recorded(lambda x, y: x * 2.0, 2)
        assert const(0.0) == reverse([(root, GRADIENT)], [a, b])[1]

    def test_only_what_is_wanted_is_derived(self):
        """Nothing is computed towards leaves whose gradient nobody asked for."""
        (a, _), root = recorded(lambda x, y: x + ops.exp(y), 2)
        assert reverse([(root, GRADIENT)], [a]) == [GRADIENT]


class TestEvaluate:
    def test_a_missing_leaf_is_named(self):
        """An expression whose leaf has no value is an error that names it."""
        (a, _), root = recorded(lambda x, y: x + y, 2)
        with pytest.raises(KeyError, match="x1"):
            evaluate([root], {a: torch.ones(1)}, like=torch.ones(1))

    def test_constants_have_the_dtype_of_the_values(self):
        """A constant is rounded to the dtype of the arithmetic before it is used."""
        (a,), root = recorded(lambda x: x / 0.1, 1)
        x = torch.tensor([1.0, 3.0, 7.0], dtype=torch.float32)
        (value,) = evaluate([root], {a: x}, like=x)
        assert torch.equal(x / torch.tensor(0.1, dtype=torch.float32), value)

    def test_numbers_beside_tensors_take_their_dtype(self):
        """sc.ops gives a number the dtype of the tensors, whichever comes first."""
        x = torch.tensor([0.5, -0.5], dtype=torch.float64)
        assert ops.maximum(0.1, x).tolist() == [0.5, 0.1]
        assert torch.float64 == ops.maximum(0.0, x).dtype == ops.where(x > 0, 1.0, x).dtype
        assert torch.get_default_dtype() == ops.where(x > 0, 1.0, 0.0).dtype

    def test_select_sums_over_broadcast_dimensions(self):
        """On tensors of different shapes each argument gets a gradient of its own shape."""
        z = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
        a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        ops.select(z, a, torch.full((2, 3), 5.0, dtype=torch.float64)).sum().backward()
        assert (a.grad.item(), z.grad.tolist()) == (4.0, [-6.0, -6.0, -6.0])
