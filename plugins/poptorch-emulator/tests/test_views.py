"""Views: what PopTorch computes as torch does is taken, and what it would lose without a word is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch
import refusals
from poptorch_emulator import traced


def x_of(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def parts(x):
    y = x * 2
    y[0] = 5
    y[1:3, 1] = x[0, 0]
    y[2][0] = -1
    return y


def accumulated(x):
    y = x * 2
    y[0] += 1
    y[0] *= y[1]
    return y


def state_row_by_row(x):
    """A recurrence in the rows of a tensor."""
    y = x.clone()
    for t in range(1, len(x)):
        y[t] = 0.5 * y[t - 1] + x[t]
    return y


def other_rows(x):
    y = x.clone()
    before = y[0]
    y[1] = 7
    column = y[1:, 2]
    y[1:, 1] = 3
    return before + column.sum(), y


def whole(x):
    y = x.clone()
    y += 1
    y.mul_(2)
    y[x < 0] = 4
    return y


def dead(x):
    y = x * 2
    y.view(-1).add_(1)
    return x + 1


def overwritten(x):
    y = x * 2
    row = y[0]
    row.add_(1)
    y[0] = row
    return y


def constant_accumulated(x):
    """A constant that is changed as a whole is none any more."""
    total = torch.zeros(4, 3)
    total += x
    total[0] = x[1]
    return total


@pytest.mark.parametrize(
    "function", [parts, accumulated, state_row_by_row, other_rows, whole, dead, overwritten, constant_accumulated]
)
def test_taken(function):
    """A write that reaches its tensor in PopTorch, and one that nothing reads, is as in torch."""
    x = x_of(4, 3)
    got, expected = traced(function, x)(x), function(x.clone())
    for one, other in zip(
        got if isinstance(got, tuple) else (got,), expected if isinstance(got, tuple) else (expected,)
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.zeros(4, 3),
        torch.zeros_like,
        lambda x: torch.ones(4, 3) * 2,
        lambda x: torch.empty(4, 3, device=x.device),
    ],
    ids=["zeros", "zeros_like", "computed", "empty"],
)
def test_recorded_in_a_constant(make):
    """``rec = zeros(T, B); rec[t] = spikes`` would be zeros; the error says ``torch.stack``."""

    def recorded(x):
        rec = make(x)
        for t in range(4):
            rec[t] = x[t] * 2
        return rec

    text = "the value that forward returns reads.*are constants for PopTorch.*torch.stack"
    with pytest.raises(poptorch.Error, match=text):
        traced(recorded, x_of(4, 3))


def row(x):
    y = x * 2
    y[0].add_(1)
    return y


def flat(x):
    y = x * 2
    y.view(-1).add_(1)
    return y


def transposed(x):
    y = x * 2
    y.t()[0] = 1
    return y


def later_reader(x):
    y = x * 2
    y[0].zero_()
    return y[1:], y.sum()


def unbound(x):
    y = x * 2
    for part in y.unbind(0):
        part.copy_(part * 2)
    return y


def test_steps():
    """A slice by steps cannot be assigned, nor one of an input be changed in place, with PopTorch's text."""

    def assigned(x):
        y = x * 2
        y[::2] = 1
        return y

    def multiplied(x):
        x[:, ::2].mul_(0)
        return x

    for function in (assigned, multiplied):
        with pytest.raises(poptorch.Error, match="slices with step size other than 1 is not supported"):
            traced(function, x_of(4, 3))


class Buffer(nn.Module):
    """Changes a buffer in place through a view."""

    def __init__(self, change):
        super().__init__()
        self.register_buffer("v", torch.zeros(4, 3))
        self.change = change

    def forward(self, x):
        self.change(self.v)
        return x + 1


def test_slice_of_a_buffer():
    """Every operation in place reaches a buffer through slices."""
    net = Buffer(lambda v: v[1].add_(1))
    executor = poptorch.inferenceModel(net)
    executor(x_of(1, 3)), executor(x_of(1, 3))
    executor.copyWeightsToHost()
    assert net.v.sum(1).tolist() == [0, 6, 0, 0]


test_refused = refusals.table(__file__, globals())
