"""Networks of one dimension with their channels last in memory: nothing is copied between layers."""

from __future__ import annotations

from typing import List, Type

import pytest
import torch
from torch import Tensor, nn

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


class Residual(nn.Module):
    """Neurons before layers, and a sum in front of one, on ``[T, B, C, N]``."""

    def __init__(self) -> None:
        super().__init__()
        self.fire1, self.fire2, self.fire3 = [sc.LIF(backend="numba") for _ in range(3)]
        self.conv1, self.norm1 = nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8)
        self.conv2, self.norm2 = nn.Conv1d(8, 3, 1), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        steps, batch, channels, count = x.shape
        y = self.norm1(self.conv1(self.fire1(x).flatten(0, 1))).reshape(steps, batch, -1, count)
        z = self.norm2(self.conv2(self.fire2(y).flatten(0, 1))).reshape(steps, batch, channels, count)
        out: Tensor = self.fire3(x + z)
        return out


class Tokens(nn.Module):
    """Tokens ``[T, B, N, C]`` behind a linear layer, transposed for the normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.fire = nn.Linear(3, 8), nn.BatchNorm1d(8), sc.LIF(backend="numba")

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, N]``, as the others."""
        steps, batch, _, count = x.shape
        y = self.linear(x.transpose(2, 3)).flatten(0, 1).transpose(1, 2)
        y = self.norm(y).transpose(1, 2).reshape(steps, batch, count, -1)
        out: Tensor = self.fire(y).transpose(2, 3)
        return out


def check_no_copies(net: nn.Module, x: Tensor) -> None:
    net(x)  # the first call compiles
    with torch.profiler.profile() as profiled:
        y = net(x)
        y.backward(torch.ones_like(y))
    # torch itself copies biases and gradients of weights on a CPU, which is no clone
    assert "aten::clone" not in [event.name for event in profiled.events()]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [Residual, Tokens])
def test_nothing_is_copied_within_blocks(kind: Type[nn.Module], fused: bool) -> None:
    """Of networks of tokens, whichever way they lie for a normalisation."""
    net = sc.layers.channels_last(kind())
    if fused:
        sc.fuse(net)
        assert any(isinstance(part, sc.layers.NormNeuron) for part in net.modules())
    check_no_copies(net, torch.randn(2, 3, 9, 3).transpose(2, 3))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fused", [False, True])
def test_nothing_is_copied_between_layers(fused: bool, training: bool) -> None:
    """Every layer gives its channels last. Torch's own BatchNorm1d would copy, and its Conv1d give them first."""
    net = sc.layers.channels_last(network()).train(training)
    if fused:
        sc.fuse(net)
    x = torch.randn(2, 3, 9, 3).transpose(2, 3)
    layouts: List[bool] = []
    for layer in net:
        layer.register_forward_hook(lambda _, __, y: layouts.append(y.movedim(2, -1).is_contiguous()))
    net(x)
    assert layouts == [True] * 6
    check_no_copies(net, x)
    assert all(p.grad is None or p.grad.stride() == p.stride() for p in net.parameters())
