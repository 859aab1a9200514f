"""A parameter per channel is that of every neuron's channel, wherever blocks of neurons begin."""

from __future__ import annotations

from typing import Tuple

import pytest
import torch

import spikecore as sc


# channels side by side over several blocks; channels shorter than a block, that blocks cut; longer ones; one channel
@pytest.mark.parametrize("shape", [(7, 700), (300, 5, 3), (3, 2, 1700), (2500, 1), (40, 1, 60)], ids=str)
def test_every_neuron_has_the_value_of_its_channel(shape: Tuple[int, ...]) -> None:
    """Spikes and both gradients are those of a parameter with one number for each neuron."""
    channels, generator = shape[1], torch.Generator().manual_seed(len(shape))
    tau = 1.5 + torch.rand(channels, generator=generator)
    inner = [1] * (len(shape) - 2)
    whole = tau.view(1, channels, *inner).expand(shape)[0].clone()
    x = torch.randn(3, *shape, generator=generator) + 0.8
    results = []
    for value in (tau, whole):
        neuron, leaf = sc.LIF(value, learn=("tau",), backend="numba"), x.clone().requires_grad_()
        out = neuron(leaf)
        (out * torch.linspace(0.5, 1.5, out.numel()).view_as(out)).sum().backward()
        (learnt,) = neuron.parameters()
        assert leaf.grad is not None
        assert learnt.grad is not None
        results.append((out.detach(), leaf.grad, learnt.grad))
    (out, grad, summed), (same_out, same_grad, each) = results
    assert torch.equal(out, same_out)
    assert torch.equal(grad, same_grad)
    torch.testing.assert_close(summed.reshape(channels), each.reshape(channels, -1).sum(1), rtol=1e-4, atol=1e-5)
    assert 0 < out.mean() < 1
