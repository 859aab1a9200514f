"""Values and derivatives that are PopART's, beside those of the probes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from poptorch_emulator._trace import traced

NAN, INF = math.nan, math.inf


def x_of(*values):
    return torch.tensor(values, dtype=torch.float32)


def gradient(function, x, cotangent):
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(traced(function, x)(x), x, cotangent)
    return found


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(reduction, weighted):
    """Inside of (0, 1) it is torch's, in every reduction."""
    x, y = x_of(0.1, 0.5, 0.9), x_of(0, 0.3, 1)
    weight = [x_of(1, 2, 3)] if weighted else []

    def function(x, y, *weight):
        return F.binary_cross_entropy(x, y, *weight, reduction=reduction)

    same(traced(function, x, y, *weight)(x, y, *weight), function(x, y, *weight))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (F.logsigmoid, x_of(-20, -1, 0, 5)),
        (torch.trunc, x_of(-2.5, 0.5, 2e9)),
        (torch.frac, x_of(-2.5, 0.5, 2e9)),
        (lambda x: x // 2, x_of(-7, 7, 1)),
        (lambda x: torch.div(x, 2, rounding_mode=None), x_of(-7, 7, 1)),
        (lambda x: torch.where(x > 0, x, -x), x_of(-7, 7, 0)),
        (lambda x: x.masked_fill(x > 0, 3.0), x_of(-7, 7, 0)),
        (lambda x: x.var(0, correction=0), x_of(-7, 7, 0)),
        (lambda x: x.std(0, unbiased=True), x_of(-7, 7, 0)),
    ],
)
def test_values_of_torch(function, x):
    """Where both agree, nothing is refused."""
    found, expected = traced(function, x)(x), function(x)
    same(found, expected)


def test_where_multiplies_by_the_condition():
    """A finite gradient is that of torch; an infinite one is NaN where nothing was chosen."""
    function = lambda x: torch.where(x > 0, x, torch.zeros_like(x))  # noqa: E731
    same(gradient(function, x_of(1, -1), x_of(2, 2)), x_of(2, 0))
    same(gradient(function, x_of(1, -1), x_of(INF, INF)), x_of(INF, NAN))
    fills = lambda x: x.masked_fill(x > 0, 0.0)  # noqa: E731
    same(gradient(fills, x_of(1, -1), x_of(INF, INF)), x_of(NAN, INF))


def test_constants_are_evaluated_on_the_host():
    """Whatever has no handler is taken if all that it is computed from is constant."""
    x = torch.ones(3, 3)
    mask = torch.triu(torch.ones(3, 3), 1)
    same(traced(lambda x: x * torch.triu(torch.ones(3, 3), 1), x)(x), mask)
    logs = torch.xlogy(torch.arange(3), 2.0).expand(3, 3)
    same(traced(lambda x: x + torch.xlogy(torch.arange(3), 2.0), x)(x), 1 + logs)
    same(traced(lambda x: x + torch.arange(-3, 0) // 2, x)(x), 1.0 + (torch.arange(-3, 0) // 2).expand(3, 3))


def test_losses_that_torch_takes_apart():
    """``kl_div`` is one operation for PopTorch, whatever torch makes of it."""
    x, y = torch.log_softmax(torch.ones(2, 3), 1), torch.softmax(torch.arange(6.0).reshape(2, 3), 1)
    same(traced(lambda x, y: F.kl_div(x, y, reduction="batchmean"), x, y)(x, y), F.kl_div(x, y, reduction="batchmean"))
