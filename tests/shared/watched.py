"""The records of a monitor on any backend that records."""

from __future__ import annotations

import torch
from torch import nn

import spikecore as sc


def check_monitor(backend: str) -> None:
    """Rates, spikes, states and their gradients are those of the reference, in a network with one neuron of each kind
    of call: several steps, fused with its normalisation, fed back, step by step.
    """
    torch.manual_seed(0)
    norm = sc.layers.NormNeuron(nn.BatchNorm1d(8), sc.LIF(), shortcut="before")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.back = norm, sc.Recurrent(sc.ALIF(), nn.Linear(8, 8))
            self.single, self.out = sc.LIF(step="single"), sc.LI()

        def forward(self, x):
            y = self.back(3 * self.norm(2 * x, x))
            return self.out(torch.stack([self.single(4 * now) for now in y]))

    net, found = Net(), {}
    for name in ("torch", backend):
        sc.set_backend(net, name)
        sc.reset(net)
        x = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with sc.monitor(net, record=("v", "a"), spikes=True, grad=True) as seen:
            net(x)
            loss = sum(layer.v.square().sum() + layer.spikes.sum() for layer in seen.layers)
        found[name] = seen, torch.autograd.grad(loss, x)[0]
    (expected, wanted), (seen, gradient) = found["torch"], found[backend]
    assert list(seen) == ["norm", "back", "single", "out"]
    assert seen.rates == expected.rates
    assert all(0 < rate < 1 for rate in seen.rates.values())
    for one, other in zip(seen.layers, expected.layers):
        torch.testing.assert_close(one.spikes, other.spikes)
        assert one.states.keys() == other.states.keys()
        for state, values in one.states.items():
            torch.testing.assert_close(values, other.states[state], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)
