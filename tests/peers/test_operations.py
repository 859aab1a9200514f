"""SpikingJelly 2.0 and sinabs 3.1 count the synaptic operations that ``sc.energy`` counts, where they define the same.

SpikingJelly counts every product of numbers that are no spikes, zeros and padding included; we count those with an
input other than 0. Both agree for dense inputs without padding.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.peers

LAYERS = [
    nn.Conv2d(4, 6, 3),
    nn.Conv2d(4, 6, (3, 2), padding=(1, 0), stride=2),
    nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
    nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1),
    nn.Linear(9, 5),
    nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 81, 3)),
]


def spikes(*shape: int) -> torch.Tensor:
    return (torch.rand(*shape, generator=torch.Generator().manual_seed(4)) < 0.2).float()


@pytest.mark.parametrize("layer", LAYERS[:5], ids=repr)
def test_synaptic_operations_of_spikingjelly(layer: nn.Module) -> None:
    """Its SynOpCounter: accumulates of spikes through layers."""
    from spikingjelly.activation_based.op_counter import DispatchCounterMode, SynOpCounter

    x, counter = spikes(3, 4, 9, 9), SynOpCounter()
    with torch.no_grad(), DispatchCounterMode([counter]):
        layer(x)
    found = sc.energy(layer, x)
    assert found.acs * found.samples == pytest.approx(counter.get_total())
    assert found.acs > 0


def test_multiply_accumulates_of_spikingjelly() -> None:
    """Its MACCounter: products of dense numbers, without padding."""
    from spikingjelly.activation_based.op_counter import DispatchCounterMode
    from spikingjelly.activation_based.op_counter.mac import MACCounter

    net, x = (
        nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.Flatten(), nn.Linear(6 * 16, 5)),
        0.1 + torch.rand(3, 4, 9, 9),
    )
    counter = MACCounter()
    with torch.no_grad(), DispatchCounterMode([counter]):
        net(x)
    assert 3 * sc.energy(net, x).macs == pytest.approx(counter.get_total())


def test_products_of_attention_of_spikingjelly() -> None:
    """Of two tensors of spikes: products in which both fire."""
    from spikingjelly.activation_based.op_counter import DispatchCounterMode, SynOpCounter

    class Products(nn.Module):
        def forward(self, q, k):
            return q @ k.transpose(-2, -1)

    q, k, counter = spikes(2, 7, 5), spikes(3, 7, 5)[:2].flip(1), SynOpCounter()
    with torch.no_grad(), DispatchCounterMode([counter]):
        Products()(q, k)
    assert 2 * sc.energy(Products(), (q, k)).acs == counter.get_total() > 0


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[1], LAYERS[4]], ids=repr)
def test_synaptic_operations_of_sinabs(layer: nn.Module) -> None:
    """Its hooks of layers: a mean over the batch, of spikes times the fan-out of each input."""
    from sinabs.hooks import conv_layer_synops_hook, linear_layer_synops_hook

    x = spikes(3, 4, 9, 9) if isinstance(layer, nn.Conv2d) else spikes(3, 9)
    hook = conv_layer_synops_hook if isinstance(layer, nn.Conv2d) else linear_layer_synops_hook
    handle = layer.register_forward_hook(hook)
    with torch.no_grad():
        layer(x)
    handle.remove()
    assert sc.energy(layer, x).acs == pytest.approx(float(layer.hook_data["layer_synops_per_timestep"]))
