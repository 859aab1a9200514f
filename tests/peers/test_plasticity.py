"""STDP and its forms with rewards change weights as SpikingJelly's learners of the same names do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched
from spikecore_online import STDP

pytestmark = pytest.mark.peers

T, N, J = 30, 6, 4


@pytest.fixture(scope="module")
def learning():
    """SpikingJelly's learners. Imported here, so that the tests are collected without it and fail when run without."""
    from spikingjelly.activation_based import learning

    return learning


def spikes(*shape):
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(0)) < 0.4).double()


def window(tau):
    """The trace ``p' = (1 - 1/tau) p + u``."""
    return sc.LI(tau, decay_input=False)


def exponential(tau):
    """The trace ``p' = exp(-1/tau) p + u``."""
    return window(1 / (1 - math.exp(-1 / tau)))


def grown(net, layer, rule, x, loss=lambda outputs, targets: outputs.sum(), chunk=1):
    """The change of the weights of a layer by one sequence."""
    before = layer.weight.detach().clone()
    options = sc.OnlineOptions(rule=rule, chunk=chunk)
    sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 1.0), options=options)(x)
    return layer.weight.detach() - before


def theirs(learner, layer, neuron, x, reward=None):
    """The change by their learner, step by step. A reward comes one step behind the pairings that it is for."""
    change, due = torch.zeros_like(layer.weight), torch.zeros((), dtype=x.dtype)
    sc.set_step(neuron, "single")
    for t in range(len(x) + (reward is not None)):
        y = neuron(layer(x[min(t, len(x) - 1)]))
        change += learner.step(on_grad=False) if reward is None else learner.step(due, on_grad=False)
        due = None if reward is None else reward(y)
    return change


@pytest.mark.parametrize("chunk", [1, 8])
def test_stdp(learning, chunk):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(N, J), sc.LIF(2.0)).double(), 2.0 * spikes(T, 3, N)
    nn.init.uniform_(net[0].weight, 0.0, 1.0)
    rule = STDP(window(7.0), window(11.0), lambda w: 1.0 - w, lambda w: 0.5 * w)
    ours = grown(net, net[0], rule, x, chunk=chunk)
    net[0].weight.data -= ours
    learner = learning.STDPLearner("s", net[0], net[1], 7.0, 11.0, f_pre=lambda w: 0.5 * w, f_post=lambda w: 1.0 - w)
    wanted = theirs(learner, net[0], net[1], x)
    assert wanted.any()
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


def test_stdp_of_a_convolution(learning):
    torch.manual_seed(0)
    conv, neuron = nn.Conv2d(2, J, 3, stride=2, padding=1).double(), sc.LIF(1.5)
    nn.init.uniform_(conv.weight, 0.0, 0.5)
    x = spikes(T, 2, 2, 7, 7)
    ours = grown(nn.Sequential(TimeBatched(conv), neuron), conv, STDP(window(7.0), window(11.0)), x, chunk=8)
    conv.weight.data -= ours
    one = torch.ones_like
    learner = learning.STDPLearner("s", conv, neuron, 7.0, 11.0, f_pre=one, f_post=one)
    wanted = theirs(learner, conv, neuron, x)
    assert wanted.any()
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


def test_mstdp(learning):
    """A reward for each sample and step."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(N, J), sc.LIF(2.0)).double(), spikes(T, 3, N)
    nn.init.uniform_(net[0].weight, 0.0, 1.0)
    rule = STDP(exponential(7.0), exponential(11.0), reward=True)
    ours = grown(net, net[0], rule, x, lambda outputs, targets: 1.5 - outputs.sum((0, 2)))
    net[0].weight.data -= ours
    one = torch.ones_like
    learner = learning.MSTDPLearner("s", net[0], net[1], 7.0, 11.0, f_pre=one, f_post=one)
    wanted = theirs(learner, net[0], net[1], x, lambda y: y.sum(1) - 1.5)
    assert wanted.any()
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


def test_mstdpet(learning):
    """An eligibility trace, and one reward for each step; their learner takes one sample."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(N, J), sc.LIF(2.0)).double(), spikes(T, 1, N)
    nn.init.uniform_(net[0].weight, 0.0, 1.0)
    rule = STDP(exponential(7.0), exponential(11.0), reward=True, tau_eligibility=5.0)
    ours = grown(net, net[0], rule, x, lambda outputs, targets: 1.5 - outputs.sum())
    net[0].weight.data -= ours
    one = torch.ones_like
    learner = learning.MSTDPETLearner("s", net[0], net[1], 7.0, 11.0, 5.0, f_pre=one, f_post=one)
    wanted = theirs(learner, net[0], net[1], x[:, 0], lambda y: y.sum() - 1.5)
    assert wanted.any()
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)
