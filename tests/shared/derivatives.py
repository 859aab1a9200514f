"""Derivatives of one operation at several points: by the language's rules and by torch's autograd."""

from __future__ import annotations

import torch

from spikecore.lang import Node
from spikecore.lang._expr import Expr
from spikecore.lang._program import reverse
from spikecore.lang.eager import evaluate

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
    found = reverse([(root, GRADIENT)], leaves)
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
