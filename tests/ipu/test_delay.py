"""Delays through PopTorch are those of the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc


def trained(backend, per, learn):
    """A step of a network with delays, and the network."""
    torch.manual_seed(0)
    net = nn.Sequential(sc.layers.Delay(nn.Linear(6, 8), 3, per=per, learn=learn), sc.LIF(), nn.Linear(8, 3), sc.LI())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    return sc.training_model(net, sc.losses.ce_max_membrane, optimizer, backend=backend), net


@pytest.mark.parametrize("per", ["connection", "input"])
@pytest.mark.parametrize("learn", [("delay",), ()])
def test_three_steps(per, learn):
    """Outputs, losses, weights and positions; a width that was set is copied as any weight that is written to."""
    x, y = 3 * torch.rand(5, 4, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])
    there, net = trained("ipu", per, learn)
    here, same = trained("torch", per, learn)
    for width in (1.5, 1.0, 0.5):
        for step, layer in ((there, net[0]), (here, same[0])):
            if learn:
                layer.sigma = width
                if step is there and width < 1.5:
                    step.executor.copyWeightsToDevice()
        torch.testing.assert_close(there(x, y), here(x, y))
    torch.testing.assert_close(net.state_dict(), same.state_dict())
