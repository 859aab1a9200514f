"""What stands between a batch normalisation and a neuron, which ``sc.fuse`` must not overlook."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from sequences import Backwards, Halved
from spikecore.layers import TimeBatched

T, B, C = 4, 6, 8


def lif():
    """A neuron of the reference backend."""
    return sc.LIF(backend="torch")


def network():
    """Two pairs of normalisation and neuron."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        front = TimeBatched(nn.Conv2d(2, C, 3, padding=1), nn.BatchNorm2d(C), nn.Identity())
        back = TimeBatched(nn.Conv2d(C, C, 3, padding=1), nn.BatchNorm2d(C))
    for one in (front, back):
        nn.init.constant_(one.module[1].bias, 0.6)
    return nn.Sequential(front, lif(), back, lif())


def batch():
    """Images of some steps."""
    return torch.rand(T, B, 2, 6, 6, generator=torch.Generator().manual_seed(1)) * 2


@pytest.mark.parametrize("nested", [False, True])
def test_a_module_that_a_sequence_calls_twice_stands_between(nested):
    """One pooling layer in two places: the second one is between the normalisation and the neuron."""
    pool = TimeBatched(nn.MaxPool2d(2))
    front = network()
    layers = [*front[:2], pool, front[2], pool, front[3]]
    net = nn.Sequential(nn.Sequential(*layers[:4]), *layers[4:]) if nested else nn.Sequential(*layers)
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)


class Doubled(nn.Identity):
    """No identity, although derived from one."""

    def forward(self, input):
        """Twice the input."""
        return 2 * input


def _hooked():
    module = nn.Identity()
    module.register_forward_hook(lambda module, args, output: 2 * output)
    return module


def _replaced():
    module = nn.Identity()
    module.forward = lambda x: 2 * x
    return module


@pytest.mark.parametrize("make", [Doubled, _hooked, _replaced])
def test_an_identity_that_computes_something_stands_between(make):
    """The normalisation in front of it stays where it is."""
    front = network()
    net = nn.Sequential(front[0], make(), *front[1:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)


class Scaled(sc.LIF):
    """A neuron with a forward of its own, which changes its input."""

    def forward(self, x):
        """LIF of three tenths of the input."""
        return super().forward(0.3 * x)


class ScaledBefore(sc.LIF):
    """The same by a ``__call__``."""

    def __call__(self, x):
        """LIF of three tenths of the input."""
        return super().__call__(0.3 * x)


@pytest.mark.parametrize("kind", [Scaled, ScaledBefore])
def test_a_forward_of_a_derived_neuron_sees_what_is_normalised(kind):
    """The neuron in front of which it stands is not fused."""
    front = network()
    net = nn.Sequential(front[0], kind(backend="torch"), *front[2:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)


@pytest.mark.parametrize("kind", [Backwards, Halved])
def test_a_sequence_that_does_more_than_to_call_its_parts_is_not_seen_through(kind):
    """The normalisation that it holds last is not what it computes last."""
    front = network()
    net = nn.Sequential(kind(TimeBatched(Doubled()), front[0]), *front[1:])
    expected = net(batch())
    assert repr(sc.fuse(net)).count("NormNeuron(") == 1
    assert torch.equal(net(batch()), expected)


def test_an_identity_alone_does_not():
    """Both normalisations are fused."""
    front = network()
    assert repr(sc.fuse(nn.Sequential(front[0], nn.Identity(), *front[1:]))).count("NormNeuron(") == 2
