"""Ranges of parameters on an IPU, where weights are on the device and nothing may change them in ``forward``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikecore as sc

EPS = torch.finfo(torch.float32).eps


class Net(nn.Module):
    """Three layers whose parameters a loss of their own drives."""

    def __init__(self, backend, tau=1.2, k=1.0, beta=0.99):
        super().__init__()
        torch.manual_seed(0)
        self.encode = sc.encode.Constant(4)
        self.lif = sc.LIF(tau, threshold=0.2, learn=("tau",), backend=backend)
        self.klif = sc.KLIF(k=k, threshold=0.2, backend=backend)
        self.leaky = sc.Leaky(beta, threshold=0.2, learn=("beta",), backend=backend)

    def forward(self, x):
        spikes = self.leaky(self.klif(self.lif(self.encode(x))))
        return spikes.sum(0), 0.4 * self.lif.tau + 3.0 * self.klif.k - 0.1 * self.leaky.beta


def loss(outputs, targets):
    return outputs[1] + 0.0 * outputs[0].mean()


def x():
    return torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) * 2


def test_the_device_computes_with_values_inside():
    """After updates that leave every range, outputs are those of a network at the ends, and what is saved is inside."""
    net = Net("ipu")
    step = sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 1.0), backend="ipu")
    for _ in range(3):
        (counts, _), _ = step(x(), torch.zeros(5))
    with torch.no_grad():
        wanted, _ = Net("torch", 1.0, EPS, 1.0)(x())
    assert torch.equal(counts, wanted)
    saved = step.state_dict()["net"]
    assert {name: value.item() for name, value in saved.items()} == {"lif.tau": 1.0, "klif.k": EPS, "leaky.beta": 1.0}
    assert torch.equal(sc.inference_model(net)(x())[0], wanted)
    step.load_state_dict(step.state_dict())
    step.destroy()
    with torch.no_grad():
        assert torch.equal(net(x())[0], wanted)


def test_training_inside_is_that_of_the_reference():
    """Inside the ranges losses and parameters are those of the torch backend."""
    results = []
    for backend in ("torch", "ipu"):
        net = Net(backend, 2.5, 1.0, 0.8)
        step = sc.training_model(net, lambda out, _: out[0].mean() + out[1], torch.optim.SGD(net.parameters(), 1e-2))
        for _ in range(3):
            step(x(), torch.zeros(5))
        results.append([value.item() for value in step.state_dict()["net"].values()])
    assert results[0] == pytest.approx(results[1], abs=1e-6)


def test_checkpoint_outside_is_refused():
    """Before the device or the host has anything of it."""
    net = Net("ipu")
    step = sc.training_model(net, loss, torch.optim.SGD(net.parameters(), 0.0), backend="ipu")
    step(x(), torch.zeros(5))
    state = step.state_dict()
    state["net"]["klif.k"] = torch.tensor(-1.0)
    state["net"]["lif.tau"] = torch.tensor(3.0)
    with pytest.raises(RuntimeError, match=r"klif\.k holds -1, and k of KLIF must be above 0"):
        step.load_state_dict(state)
    assert net.lif.tau.item() == pytest.approx(1.2)
