"""Models, and what PopTorch 3.4 does with each by its source: those of the fifty probes that are no mere function.

As in ``test_probes``: the emulator agrees, or refuses and says why.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emulator as poptorch

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


class Lambda(nn.Module):
    """``function(x)``."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Weighted(nn.Module):
    """Two weights of 1, and ``function(self, x)``."""

    def __init__(self, function):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.function = function

    def forward(self, x):
        return poptorch.identity_loss(self.function(self, x), "none")


def input_changed():
    """The caller's tensor after an input was changed in place."""
    x = X.clone()
    poptorch.inferenceModel(Lambda(lambda x: x.add_(1)))(x)
    return x


def parameter(value, buffer=False):
    """A model with this parameter or buffer, wrapped by hand."""

    def probe():
        net = Lambda(lambda x: x + net.w)
        if buffer:
            net.register_buffer("w", value)
        else:
            net.w = nn.Parameter(value)
        return poptorch.inferenceModel(net)(torch.ones(1, value.shape[-1]))

    return probe


def channels_last():
    """A convolution whose weights are channels-last."""
    net = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    return poptorch.inferenceModel(net)(torch.ones(1, 2, 4, 4))


def total(net, x):
    """A loss whose gradient is 1 for each weight."""
    return (net.w * x[0].abs().sign()).sum()


def trained(make, function=total):
    """The weights after one step of an optimiser."""

    def probe():
        net = Weighted(function)
        step = poptorch.trainingModel(net, None, make(net.parameters()))
        step(X)
        return net.w.detach().clone()  # read back from the device, which the executor holds

    return probe


def loaded_state():
    """The weights where a saved state is loaded, and the rate set to 0 after it."""
    net = Weighted(total)
    saved = poptorch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    step = poptorch.trainingModel(net, None, saved)
    step(X)
    state = saved.state_dict()
    step.destroy()
    other = Weighted(total)
    optimizer = poptorch.optim.SGD(other.parameters(), lr=0.1, momentum=0.5)
    optimizer.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = 0.0
    step = poptorch.trainingModel(other, None, optimizer)
    step(X)
    return other.w.detach().clone()


def changed_rate():
    """The weights where only the optimiser was told of another rate."""
    net = Weighted(total)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = poptorch.trainingModel(net, None, optimizer)
    step(X)
    optimizer.param_groups[0]["lr"] = 0.5
    step(X)
    return net.w.detach().clone()


def trained_where():
    """The weights after a step in which ``where`` got infinite gradients, and chose one of them."""

    def function(net, x):
        chosen = torch.where(x[0] > 0, net.w, torch.zeros_like(net.w))
        return (chosen * torch.full_like(net.w, float("inf"))).sum()

    return trained(lambda parameters: torch.optim.SGD(parameters, lr=1.0), function)()


def stray():
    """A tensor of the host that is no buffer."""
    constant = torch.ones(2)
    return poptorch.inferenceModel(Lambda(lambda x: x + constant))(X)


def reassigned():
    """A buffer that ``forward`` replaces."""

    class Replaced(Lambda):
        def forward(self, x):
            self.w = self.w + 1
            return x + self.w

    net = Replaced(None)
    net.register_buffer("w", torch.ones(2))
    return poptorch.inferenceModel(net)(X)


def losses(returned):
    """A training step of a model that returns this of a linear layer's output."""

    def probe():
        net = nn.Sequential(nn.Linear(2, 2), Lambda(returned))
        return poptorch.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.1))(X)

    return probe


class Square(torch.autograd.Function):
    """A function whose backward PopTorch never calls."""

    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


NAN, INF = float("nan"), float("inf")
STRIDES = "PopTorch copies memory as if it were contiguous"

#: Number, program, probe, what PopTorch does.
PROBES = [
    (9, "x.add_(1) of an input", input_changed, ("is", [[2, -1], [4, 5]])),
    (10, "a transposed nn.Parameter", parameter(torch.arange(6.0).reshape(3, 2).t()), ("silent", STRIDES)),
    (11, "an expanded buffer", parameter(torch.ones(1).expand(3), buffer=True), ("silent", STRIDES)),
    (13, "channels_last weights", channels_last, ("silent", STRIDES)),
    (
        14,
        "executor.weight",
        lambda: type(poptorch.inferenceModel(nn.Linear(2, 2)).weight) is nn.Parameter,
        ("is", False),
    ),
    (15, "an optimizer's state loaded, then lr set to 0", loaded_state, ("is", [1, 1])),
    (16, "lr changed without setOptimizer", changed_rate, ("is", [0.8, 0.8])),
    (
        17,
        "poptorch.optim.SGD(max_grad_norm=1)",
        trained(lambda ps: poptorch.optim.SGD(ps, lr=0.1, max_grad_norm=1.0)),
        ("silent", "max_grad_norm=1.0 is not modelled"),
    ),
    (
        18,
        "Adam(betas=[list])",
        trained(lambda ps: poptorch.optim.Adam(ps, lr=0.1, betas=[0.9, 0.99])),
        ("fails", "Expected a pair for betas"),
    ),
    (
        19,
        "a parameter in no group",
        trained(lambda ps: poptorch.optim.SGD(list(ps)[:0] or [nn.Parameter(torch.ones(1))], lr=0.1)),
        ("silent", "that is not the model's"),
    ),
    (36, "where(c, w, 0) under an infinite gradient", trained_where, ("is", [-INF, NAN])),
    (
        37,
        "an autograd.Function in training",
        trained(lambda ps: torch.optim.SGD(ps, lr=0.1), lambda net, x: Square.apply(net.w * x).sum()),
        ("silent", "Square is an autograd.Function: PopTorch would record its forward and never call its backward"),
    ),
    (42, "a tensor of the CPU in an attribute", stray, ("fails", "Expected an IPU tensor but got tensor")),
    (44, "no loss", losses(lambda out: (out, out)), ("fails", "Couldn't find a loss in graph!")),
    (
        45,
        "two losses",
        losses(lambda out: tuple(poptorch.identity_loss(out * k, "sum") for k in (1, 2))),
        ("fails", "Multiple independent losses found in graph"),
    ),
    (
        47,
        "an int64 result",
        lambda: str(poptorch.inferenceModel(Lambda(lambda x: x * 2))(torch.tensor([3])).dtype),
        ("is", "torch.int32"),
    ),
    (48, "a buffer that is reassigned", reassigned, ("fails", "Buffer w is reassigned within the model")),
    (
        49,
        "Precision.enableStochasticRounding(True)",
        lambda: poptorch.Options().Precision.enableStochasticRounding(True),
        ("silent", "tochastic"),
    ),
]


@pytest.mark.parametrize(
    ("probe", "expected"), [row[2:] for row in PROBES], ids=[f"{row[0]}: {row[1]}" for row in PROBES]
)
def test_probe(agrees, probe, expected):
    """The emulator does what PopTorch does, or refuses and says why."""
    agrees(probe, expected)
