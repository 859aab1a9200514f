"""Small networks of neurons and their inputs, for the tests of what a call of a neuron does."""

from __future__ import annotations

import torch
import torch._dynamo.testing
from torch import nn

import spikecore as sc

T, B, C = 10, 3, 4


def values(*shape, seed=0, dtype=torch.float64):
    """Normal values, now and then above threshold."""
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        .mul(1.5)
        .add(0.7)
        .to(dtype)
    )


class Counting(sc.Neuron):
    """A state that no gradient is computed from, before one that is."""

    states = {"count": 0.0, "v": 0.1}
    params = {"tau": 2.0}

    def dynamics(self, x, s, p):
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - 1.0)
        count = s.count + z
        return count, {"count": count, "v": sc.ops.select(z, 0.0, h)}


class Block(nn.Module):
    """A neuron two levels down, beside one in a list and one in a dict."""

    def __init__(self, step="multi"):
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(nn.Identity(), sc.LIF(1.7, step=step)))
        self.listed = nn.ModuleList([sc.Synaptic(step=step)])
        self.named = nn.ModuleDict({"last": sc.ALIF(step=step)})

    def forward(self, x):
        """All three, one after the other."""
        return self.named["last"](2 * self.listed[0](2 * self.inner(x)))


def neurons(net):
    """The neurons of a net."""
    return [module for module in net.modules() if isinstance(module, sc.Neuron)]


def network(step="multi", dtype=torch.float64):
    """Two layers of neurons that learn, always with the same weights."""
    torch.manual_seed(0)
    layers = [nn.Linear(C, 6), sc.LIF(1.7, learn=("tau",), step=step), nn.Linear(6, 2), sc.Leaky(0.9, step=step)]
    return nn.Sequential(*layers).to(dtype)
