"""What ``sc.explain`` says of the plugin's kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore._plugins import selection


@pytest.mark.parametrize("shape", [(8, 4, 5), (4, 30)])
def test_kernels_move_the_least(shape: tuple) -> None:
    """Forward and backward of LIF: two words forward and three backward."""
    (layer,) = sc.explain(sc.LIF(backend="numba"), torch.rand(shape)).layers
    assert (layer.backend, layer.words, layer.floor) == ("numba", 5.0, 5.0)
    (layer,) = sc.explain(sc.LIF(backend="numba"), torch.rand(shape), training=False).layers
    assert (layer.words, layer.floor) == (2.0, 2.0)


def test_it_is_advised_where_the_reference_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, since it is what automatic choice would take."""
    # other tests of the same run may have it without plugins
    monkeypatch.setattr(selection, "AUTO", {"cpu": ("numba", "torch")})
    found = sc.explain(nn.Sequential(nn.Linear(5, 5), sc.LIF()), torch.rand(8, 4, 5), backend="torch")
    assert any("backend 'numba', which is installed" in advice for advice in found.advice)


def test_a_fused_normalisation_is_part_of_the_kernel() -> None:
    """Nothing stands between normalisation and neuron: what is moved is the floor and the sums of each channel."""
    net = nn.Sequential(sc.layers.TimeBatched(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), sc.LIF(backend="numba"))
    x = torch.rand(4, 8, 2, 18, 18)
    apart = sc.explain(net, x).layers
    assert [layer.kind for layer in apart] == ["Conv2d", "BatchNorm2d", "LIF"]
    fused = sc.explain(sc.fuse(net), x).layers
    assert fused[2].notes == ("normalises its input",)
    assert fused[2].floor == 8.0
    assert fused[2].words is not None
    assert 8.0 <= fused[2].words < 8.5
    assert sum(layer.saved for layer in fused) < sum(layer.saved for layer in apart)
