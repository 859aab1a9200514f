"""Training steps on a pipeline, and stages of several tensors: they move weights as a plain network does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spikecore as sc
from pipelines import B, C, N, T, assert_close, inputs, linear, pipeline, plain


def test_training_model():
    """Steps of training_model give the losses and weights of one device; targets meet the outputs."""
    one, many = plain(), pipeline(split={"chunks": 4})
    targets = torch.randint(0, C, (B,), generator=torch.Generator().manual_seed(2))
    losses = []
    for net in (one, many):
        step = sc.training_model(net, sc.losses.ce_rate, torch.optim.SGD(net.parameters(), 0.5))
        losses.append([step(inputs().detach(), targets)[1].item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_close(many.parameters(), one.parameters(), 1e-5)
    assert torch.allclose(sc.inference_model(many)(inputs().detach()), sc.inference_model(one)(inputs().detach()))


def test_targets_go_where_the_outputs_are():
    """A network that ends on another device than it begins on gets its targets there."""
    many = sc.Pipeline([(nn.Sequential(nn.Linear(N, C), sc.LIF()), "cpu"), (nn.Identity(), "meta")], chunks=2)
    places = []

    def loss(outputs, targets):
        places.extend([outputs.device.type, targets.device.type])
        return many[0][0].weight.sum()

    sc.training_model(many, loss, torch.optim.SGD(many.parameters(), 0.5))(inputs().detach(), torch.zeros(B))
    assert places == ["meta", "meta"]


class Two(nn.Module):
    """A first stage of two inputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = linear(N, 4), linear(2, 4)

    def forward(self, a, gate):
        return self.a(a) * self.b(gate), gate


class Pair(Two):
    """The same with a tuple."""

    def forward(self, both):
        return super().forward(*both)


class Read(nn.Module):
    """A last stage of a tuple."""

    def __init__(self):
        super().__init__()
        self.n, self.out = sc.LIF(1.5, threshold=0.2), linear(4, C)

    def forward(self, both):
        return self.out(self.n(both[0])), both[1].sum(-1)


@pytest.mark.parametrize(
    ("first", "batch"),
    [(Two, lambda a, b: (a, b)), (Two, lambda a, b: {"a": a, "gate": b}), (Pair, lambda a, b: ((a, b),))],
    ids=["tuple", "dict", "one tuple"],
)
def test_training_on_several_tensors(first, batch):
    """A training step on batches and targets of several tensors moves the weights as it does those of a plain net."""

    def loss(outputs, targets):
        return (outputs[0] - targets[0]).pow(2).sum() + (outputs[1] * targets[1]["more"]).sum()

    torch.manual_seed(0)
    stages = [first(), Read()]
    inputs_of = batch(torch.randn(T, B, N).mul(16).round() / 16, torch.rand(T, B, 2).mul(16).round() / 16)
    targets = torch.rand(T, B, C), {"more": torch.rand(T, B)}
    found = []
    nets = nn.Sequential(*copy.deepcopy(stages)), sc.Pipeline([(one, "cpu") for one in stages], chunks=4)
    for net in nets:
        step = sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 0.01))
        if isinstance(net, nn.Sequential):  # which takes one input
            net.forward = lambda *args, net=net, **named: net[1](net[0](*args, **named))
        found.append(([step(inputs_of, targets) for _ in range(3)], sc.inference_model(net)(inputs_of)))
    (steps, outputs), (others, others_outputs) = found
    for (_, one), (_, other) in zip(steps, others):
        torch.testing.assert_close(one, other)
    for one, other in zip(outputs, others_outputs):
        torch.testing.assert_close(one, other)
    for one, other in zip(*(net.parameters() for net in nets)):
        torch.testing.assert_close(one, other)


def test_a_call_without_an_input():
    """The error says what a call takes."""
    net = sc.Pipeline([(Two(), "cpu"), (Read(), "cpu")], chunks=2)
    with pytest.raises(TypeError, match="Pipeline: a call without an input; give what the first stage takes"):
        net()
