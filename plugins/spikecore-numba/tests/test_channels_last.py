"""Networks of one dimension with their channels last in memory: nothing is copied between layers."""

from __future__ import annotations

from typing import List

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.layers import TimeBatched


def network() -> nn.Sequential:
    """Kernels of 3 and of 1, pooling, normalisations and neurons."""
    return nn.Sequential(
        TimeBatched(nn.Conv1d(3, 8, 3, padding=2, dilation=2), nn.BatchNorm1d(8)),
        sc.LIF(backend="numba"),
        TimeBatched(nn.Conv1d(8, 6, 1), nn.BatchNorm1d(6)),
        sc.PLIF(backend="numba"),
        TimeBatched(nn.MaxPool1d(2), nn.Conv1d(6, 4, 3, stride=2, padding=1), nn.BatchNorm1d(4)),
        sc.LIF(backend="numba"),
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fused", [False, True])
def test_nothing_is_copied_between_layers(fused: bool, training: bool) -> None:
    """Every layer gives its channels last. Torch's own BatchNorm1d would copy, and its Conv1d give them first."""
    net = sc.layers.channels_last(network()).train(training)
    if fused:
        sc.fuse(net)
    x = torch.randn(2, 3, 9, 3).transpose(2, 3)
    net(x)  # the first call compiles
    layouts: List[bool] = []
    for layer in net:
        layer.register_forward_hook(lambda _, __, y: layouts.append(y.movedim(2, -1).is_contiguous()))
    with torch.profiler.profile() as profiled:
        y = net(x)
        y.backward(torch.ones_like(y))
    assert layouts == [True] * 6
    # torch itself copies biases and gradients of weights on a CPU, which is no clone
    assert "aten::clone" not in [event.name for event in profiled.events()]
    assert all(p.grad is None or p.grad.stride() == p.stride() for p in net.parameters())
