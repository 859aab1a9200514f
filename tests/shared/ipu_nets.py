"""A small network, its data and its training step, for tests of training on PopTorch's emulator."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc


class Net(nn.Module):
    """Images ``[B, 4]`` to spikes ``[6, B, 3]``."""

    def __init__(self, backend="ipu"):
        super().__init__()
        torch.manual_seed(0)
        self.encode = sc.encode.Constant(6)
        self.fc1 = nn.Linear(4, 8)
        self.lif1 = sc.LIF(threshold=0.1, backend=backend)
        self.fc2 = nn.Linear(8, 3)
        self.lif2 = sc.LIF(threshold=0.1, backend=backend)

    def forward(self, x):
        return self.lif2(self.fc2(self.lif1(self.fc1(self.encode(x)))))


class Stepwise(Net):
    """The same, one step at a time, with the state on the neurons."""

    def __init__(self, backend="ipu", resets=True):
        super().__init__(backend)
        self.lif1.step = self.lif2.step = "single"
        self.resets = resets

    def forward(self, x):
        if self.resets:
            sc.reset(self)
        return torch.stack([self.lif2(self.fc2(self.lif1(self.fc1(x)))) for _ in range(6)])


def data(size=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.01)


def trained(net, optimizer=None, loss=sc.losses.ce_count, **keywords):
    return sc.training_model(net, loss, adam(net) if optimizer is None else optimizer, **keywords)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def same_weights(one, other):
    for ours, theirs in zip(one.parameters(), other.parameters()):
        close(ours.detach(), theirs.detach())


def count_and_spikes(net):
    """The network with a second output."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            spikes = self.net(x)
            return {"spikes": spikes, "counts": spikes.sum(0)}

    return Two()
