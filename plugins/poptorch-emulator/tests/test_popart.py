"""Values and derivatives that are PopART's: the emulator gives what PopTorch gives, or refuses and says why."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import refusals
from poptorch_emulator import traced

NAN, INF = math.nan, math.inf


def x_of(*values):
    return torch.tensor(values, dtype=torch.float32)


def gradient(function, x, cotangent):
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(traced(function, x)(x), x, cotangent)
    return found


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (F.logsigmoid, [x_of(-200)], [-INF]),
        (torch.isinf, [x_of(1, INF, -INF, NAN)], [False, True, True, False]),
        (torch.isfinite, [x_of(1, INF, -INF, NAN)], [True, False, False, False]),
        (lambda x: torch.median(x, 0).values, [X], [1, -2]),
        (
            lambda x: x.scatter_reduce(0, torch.tensor([[1, 1]], device=x.device), x[:1], "sum"),
            [X],
            [[1, -2], [4, 2]],
        ),
        (lambda x: x.argsort(1), [X], [[1, 0], [0, 1]]),
        (F.binary_cross_entropy, [x_of(0, 1), x_of(0, 1)], NAN),
        (torch.round, [x_of(0.5, 1.5)], [0, 2]),
    ],
)
def test_what_poptorch_does(function, inputs, expected):
    """The numbers that PopTorch computes."""
    found = traced(function, *inputs)(*inputs)
    same(found, torch.tensor(expected).to(found.dtype))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (F.logsigmoid, x_of(-20, -1, 0, 5)),
        (lambda x: F.binary_cross_entropy(x, 1 - x, x + 1), x_of(0.1, 0.5, 0.9)),
        (torch.trunc, x_of(-2.5, 0.5, 2e9)),
        (torch.frac, x_of(-2.5, 0.5, 2e9)),
        (lambda x: x // 2, x_of(-7, 7, 1)),
        (lambda x: torch.where(x > 0, x, -x), x_of(-7, 7, 0)),
        (lambda x: x.masked_fill(x > 0, 3.0), x_of(-7, 7, 0)),
        (lambda x: x.var(0, correction=0), x_of(-7, 7, 0)),
        (lambda x: F.kl_div(torch.log_softmax(x, 0), torch.softmax(-x, 0), reduction="batchmean"), x_of(-7, 7, 1)),
    ],
)
def test_values_of_torch(function, x):
    """Where both agree, nothing is refused."""
    same(traced(function, x)(x), function(x))


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
    same(
        traced(lambda x: x * torch.eye(3, device=x.device) + torch.linspace(0, 1, 3), x)(x),
        torch.eye(3) + x_of(0, 0.5, 1),
    )


test_refused = refusals.table(__file__, globals())
