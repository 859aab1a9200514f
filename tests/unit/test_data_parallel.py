"""nn.DataParallel is refused, with what to use in its place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

C = 3


@pytest.mark.parametrize(
    "make", [sc.LIF, lambda: sc.Recurrent(sc.LIF(), nn.Linear(C, C)), lambda: sc.Delay(nn.Linear(C, C), 2)]
)
def test_replicas_are_refused(make):
    """What nn.DataParallel calls to copy a network raises, and names the ways out."""
    neuron = make()
    with pytest.raises(RuntimeError, match=r"in an nn\.DataParallel, which .*DistributedDataParallel, or sc\.Pipeline"):
        neuron._replicate_for_data_parallel()


def test_one_device():
    """With one device nothing is copied, and the network is called as it is."""
    net, x = nn.Sequential(nn.Linear(C, C), sc.LIF()), torch.rand(4, 2, C)
    assert torch.equal(nn.DataParallel(net)(x), net(x))
