"""``sc.fuse`` rewrites a network: where it stops."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched

STEPS, MANY, CHANNELS = 4, 6, 8


def lif():
    """A neuron of the reference backend."""
    return sc.LIF(backend="torch")


def network():
    """Two pairs of normalisation and neuron."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        front = TimeBatched(nn.Conv2d(2, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.Identity())
        back = TimeBatched(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS))
    for one in (front, back):
        nn.init.constant_(one.module[1].bias, 0.6)
    return nn.Sequential(front, lif(), back, lif())


def batch():
    """Images of some steps."""
    return torch.rand(STEPS, MANY, 2, 6, 6, generator=torch.Generator().manual_seed(1)) * 2


class Doubled(nn.Identity):
    """No identity, although derived from one."""

    def forward(self, input):
        """Twice the input."""
        return 2 * input


def test_an_identity_that_computes_something_stands_between():
    """The normalisation in front of it stays where it is."""
    front = network()
    net = nn.Sequential(front[0], Doubled(), *front[1:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)


class Halved(nn.Sequential):
    """A sequence that does more than to call its parts."""

    def forward(self, input):
        """Half of what its parts give."""
        return 0.5 * super().forward(input)


def test_a_sequence_that_does_more_than_to_call_its_parts_is_not_seen_through():
    """The normalisation that it holds last is not what it computes last."""
    front = network()
    net = nn.Sequential(Halved(front[0]), *front[1:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)
