"""The numbers of ``sc.explain`` beside those counted by hand."""

from __future__ import annotations

from typing import List

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc


def products(net: nn.Module, *given: Tensor) -> List[int]:
    return [layer.products for layer in sc.explain(net, given).layers if layer.products]


def test_products_of_every_layer_with_weights() -> None:
    """Each is the loop over its weights: a transposed convolution from its input, a recurrent layer at every step."""
    x = torch.rand(3, 2, 4, 5, 5)
    images = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(4, 6, 3, groups=2)),
        sc.LIF(),
        sc.layers.TimeBatched(nn.ConvTranspose2d(6, 8, 2, 2)),
    )
    assert products(images, x) == [6 * (6 * 9) * (2 * 9), 6 * (6 * 9) * (8 * 4)]
    recurrent = nn.Sequential(nn.Linear(4, 5), sc.Recurrent(sc.LIF(), nn.Linear(5, 5)))
    assert products(recurrent, torch.rand(7, 2, 4)) == [7 * 2 * 4 * 5, 7 * 2 * 5 * 5]


def test_products_of_calls_that_differ() -> None:
    """A layer that is called with tensors of two sizes computes the products of both."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, few: Tensor, many: Tensor) -> Tensor:
            return self.linear(few).sum() + self.linear(many).sum()

    assert products(Twice(), torch.rand(2, 4), torch.rand(30, 4)) == [32 * 4 * 5]


def test_products_that_are_computed_once_count_once() -> None:
    """``sc.hoist``: the output has six steps, of which one was computed."""
    net = nn.Sequential(sc.encode.Constant(6), nn.Linear(4, 5), sc.LIF(), nn.Linear(5, 3))
    assert products(net, torch.rand(2, 4)) == [6 * 2 * 4 * 5, 6 * 2 * 5 * 3]
    assert products(sc.hoist(net), torch.rand(2, 4)) == [2 * 4 * 5, 6 * 2 * 5 * 3]


@pytest.mark.parametrize("steps", range(2, 26))
def test_other_numbers_in_the_memory_of_spikes_are_no_spikes(steps: int) -> None:
    """Spikes that are freed leave their memory to what the next layer keeps, often at the same address."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif, self.linear = sc.LIF(threshold=0.2, backend="torch"), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.lif(x) * 0.5 + 0.1)

    found = sc.explain(Scaled(), torch.rand(steps, 8, 16))
    assert [layer.saved_spikes for layer in found.layers] == [0, 0]


def test_arguments_that_are_none() -> None:
    """They are named."""
    net, x = nn.Linear(3, 3), torch.rand(2, 3)
    with pytest.raises(TypeError, match="training='no' must be True, or False"):
        sc.explain(net, x, training="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss=3 must be a function of the outputs of net, or None"):
        sc.explain(net, x, loss=3)  # type: ignore[arg-type]


def test_the_meta_device_is_refused() -> None:
    """There are no numbers on it."""
    with pytest.raises(ValueError, match="on the meta device, which holds no numbers to run on"):
        sc.explain(nn.Linear(3, 3, device="meta"), torch.rand(2, 3))


def test_what_autograd_dropped_is_not_kept() -> None:
    """A part of the network whose outputs nobody took keeps nothing; what it shared counts where it is kept."""

    class Monitors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.used = nn.Sequential(nn.Linear(6, 64), nn.Tanh()), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            self.seen(x)
            return self.used(x)

    found = sc.explain(Monitors(), torch.rand(2, 6))
    assert [(layer.name, layer.saved) for layer in found.layers] == [("seen.0", 0), ("seen.1", 0), ("used", 4 * 2 * 6)]
    assert found.saved == 4 * 2 * 6
