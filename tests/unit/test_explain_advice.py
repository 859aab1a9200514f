"""``sc.explain``: advice that ends where it was followed, and is given only where it brings something."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.testing._loopback import Loopback, installed

#: Only there can hooks ask what hooks are around them.
asks_hooks = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"), reason="needs torch 2.2"
)


def has(found: Any, *words: str) -> bool:
    """Whether one piece of advice has all these words."""
    return any(all(word in text for word in words) for text in found.advice)


# -- spikes as bits


def spiking(backend: str = "torch") -> nn.Sequential:
    """Its second linear layer keeps 4 * 8 * 64 spikes for backward."""
    return nn.Sequential(nn.Linear(6, 64), sc.LIF(backend=backend), nn.Linear(64, 3))


@asks_hooks
@pytest.mark.parametrize("backend", ["torch", "loopback"])
def test_spikes_that_are_packed_are_counted_as_bits(backend: str) -> None:
    """Under ``sc.packed_spikes()`` the row has the bytes of the bits, and packing is not advised again."""
    x = 4 * torch.rand(4, 8, 6)
    with installed(Loopback):
        net = spiking(backend)
        whole = sc.explain(net, x)
        with sc.packed_spikes() as packed:
            found = sc.explain(net, x)
    numbers = 4 * 8 * 64
    before, after = whole.layers[2], found.layers[2]
    assert (before.saved, before.saved_spikes) == (4 * numbers, 4 * numbers)
    assert (after.saved, after.saved_spikes) == (numbers // 8, 0)
    assert after.notes == ("keeps spikes as bits, in 256 B",)
    assert found.saved == whole.saved - 4 * numbers + numbers // 8
    assert (packed.before, packed.after) == (4 * numbers, numbers // 8)
    assert has(whole, "sc.packed_spikes()")
    assert not has(found, "packed_spikes")
    assert [layer.words for layer in found.layers] == [layer.words for layer in whole.layers]
    assert [layer.copies for layer in found.layers] == [layer.copies for layer in whole.layers]


@asks_hooks
def test_packing_is_not_advised_for_what_it_leaves_whole() -> None:
    """Fewer spikes than are worth it stay whole, and within the context nothing more can be done."""
    with sc.packed_spikes() as packed:
        found = sc.explain(spiking(), 4 * torch.rand(1, 2, 6))
    assert found.layers[2].saved_spikes == 4 * 2 * 64
    assert (packed.before, packed.after) == (0, 0)
    assert not has(found, "packed_spikes")


@asks_hooks
def test_bits_that_two_layers_keep_count_once() -> None:
    """Two linear layers behind one neuron share the bits."""

    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lif, self.a, self.b = sc.PLIF(backend="torch"), nn.Linear(64, 2), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            spikes = self.lif(x)
            return torch.cat([self.a(spikes), self.b(spikes)], -1)

    with sc.packed_spikes():
        found = sc.explain(Forked(), 4 * torch.rand(4, 8, 64))
    saved = {layer.name: layer.saved for layer in found.layers}
    assert (saved["a"], saved["b"]) == (256, 0)


@asks_hooks
def test_bits_within_other_hooks_are_counted() -> None:
    """Hooks around ``sc.packed_spikes()`` get the bits, whose size is known all the same."""
    got = []

    def pack(value: Tensor) -> Tensor:
        got.append(value.dtype)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value), sc.packed_spikes():
        found = sc.explain(spiking(), 4 * torch.rand(4, 8, 6))
    assert torch.uint8 in got
    assert found.layers[2].saved == 256
