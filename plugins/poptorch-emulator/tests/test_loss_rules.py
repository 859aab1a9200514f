"""E4: which value PopTorch differentiates, and what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emulator as poptorch
import refusals

TRAP = "silently ignores"


class Model(nn.Module):
    """A layer, and what ``returned(scores, targets)`` makes of its output."""

    def __init__(self, returned):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.returned = returned

    def forward(self, x, t):
        return self.returned(self.layer(x), t)


def step(returned):
    """One step of training with such a model."""
    model = Model(returned)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    return executor(torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1]))


def identity(value):
    return poptorch.identity_loss(value, "none")


def soft(t):
    return F.one_hot(t, 3).float()


@pytest.mark.parametrize(
    "returned",
    [
        lambda y, t: 0.5 * F.mse_loss(y, soft(t)),
        lambda y, t: F.cross_entropy(y, t) + 0.1 * y.square().mean(),
        lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1, reduction="sum"),
        lambda y, t: (F.cross_entropy(y, t), F.cross_entropy(y, t) * 2)[1],
        lambda y, t: identity(y.sum()) * 2,
        lambda y, t: F.cross_entropy(y, t).clone().view(1) + 1,
        lambda y, t: torch.zeros(()).add_(F.cross_entropy(y, t)),
    ],
    ids=["scale", "penalty", "label smoothing", "copy", "identity_loss first", "through views", "in place"],
)
def test_arithmetic_after_the_loss(returned):
    """Arithmetic that PopTorch would silently leave out of the gradient is an error, which says how to put it right."""
    with pytest.raises(poptorch.Error, match=TRAP) as caught:
        step(returned)
    assert "poptorch.identity_loss" in str(caught.value)


@pytest.mark.parametrize(
    "returned",
    [
        F.cross_entropy,
        lambda y, t: (y, nn.CrossEntropyLoss()(y, t)),
        lambda y, t: {"loss": F.mse_loss(y, soft(t))},
        lambda y, t: F.smooth_l1_loss(y, soft(t)),
        lambda y, t: F.binary_cross_entropy_with_logits(y, soft(t)),
        lambda y, t: F.binary_cross_entropy(y.sigmoid(), soft(t)),
        lambda y, t: F.kl_div(y.log_softmax(1), soft(t), reduction="batchmean"),
        lambda y, t: F.nll_loss(y.log_softmax(1), t),
        lambda y, t: F.nll_loss(y.log_softmax(1), t, ignore_index=0),
        lambda y, t: F.poisson_nll_loss(y, soft(t)),
        lambda y, t: F.soft_margin_loss(y, soft(t) * 2 - 1),
        lambda y, t: F.hinge_embedding_loss(y, soft(t) * 2 - 1),
        lambda y, t: F.margin_ranking_loss(y, y.flip(0), soft(t) * 2 - 1),
        lambda y, t: F.triplet_margin_loss(y, y.flip(0), y.flip(1)),
        lambda y, t: F.multilabel_soft_margin_loss(y, soft(t)),
        lambda y, t: F.cosine_embedding_loss(y, y.flip(0), t * 0 + 1),
        lambda y, t: identity(0.5 * F.mse_loss(y, soft(t)) + y.square().mean()),
        lambda y, t: identity(F.cross_entropy(y, t) + F.mse_loss(y, soft(t))),
        lambda y, t: identity(F.cross_entropy(y, t, label_smoothing=0.1, reduction="sum")),
        lambda y, t: identity(F.cross_entropy(y, soft(t))),
        lambda y, t: poptorch.identity_loss(F.cross_entropy(y, t, reduction="none"), "mean"),
        lambda y, t: poptorch.identity_loss(y.square(), "sum"),
    ],
)
def test_one_loss(returned):
    """One loss is left: a built-in one, or what identity_loss wraps last."""
    step(returned)


def test_metric_of_the_loss():
    """Numbers computed from the detached loss are for show."""
    loss, doubled = step(lambda y, t: (lambda loss: (loss, loss.detach() * 2))(F.cross_entropy(y, t)))
    assert torch.equal(doubled, loss * 2)


def test_loss_in_inference():
    """In inference a loss is a value, wrapped or not."""
    executor = poptorch.inferenceModel(Model(lambda y, t: 0.5 * F.cross_entropy(y, t) + y.sum()))
    assert executor(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])).shape == ()


def under_no_grad(function):
    """``function(model, x)``, whose first layer is called under no_grad."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(5, 4))

        def forward(self, x):
            return poptorch.identity_loss(function(self, x).sum(), "none")

    return poptorch.trainingModel(Net())


def silenced(function, *args):
    with torch.no_grad():
        return function(*args)


@pytest.mark.parametrize(
    "function",
    [
        lambda net, x: net.b(silenced(net.a, x).detach()),
        lambda net, x: net.b(net.a(silenced(torch.exp, x))),
        lambda net, x: net.b(net.a(x) * silenced(torch.gt, net.a(x), 0).float()),
        lambda net, x: net.b(net.a(x)) + silenced(net.mean.copy_, x).detach(),
        lambda net, x: net.b(torch.distributions.Bernoulli(probs=torch.sigmoid(net.a(x))).sample()),
    ],
)
def test_no_grad_that_changes_nothing(function):
    """Elsewhere, and around the call, it is taken."""
    executor = under_no_grad(function)
    with torch.no_grad():
        executor(torch.ones(5, 4))


test_refused = refusals.table(__file__, globals())
