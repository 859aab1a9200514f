"""A module between charge and spike, beside its equations in plain torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from arctan import spike
from ready import needs_backend
from spikecore.layers import Between

T, B, C = 7, 4, 5


class Fire(sc.Neuron):
    """The spike of what the module gives, and a soft reset of what was charged, which has a gradient."""

    inputs = ("u", "h")
    params = {"threshold": 0.8}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        z = self.spike(x.u - p.threshold)
        return (z, x.h - z * p.threshold), {}


class Summing(sc.Neuron):
    """A state that is a vector."""

    states = {"h": sc.vector(2)}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        h = 0.5 * s.h + x
        return sc.ops.sum(h), {"h": h}


class Winners(nn.Module):
    """The two highest potentials of a sample; the others are minus infinity."""

    def forward(self, h: Tensor) -> Tensor:
        top = h.topk(2, 1)
        return torch.full_like(h, -math.inf).scatter(1, top.indices, top.values)


def drive() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.rand(T, B, C, generator=generator, dtype=torch.float64)).requires_grad_()


def by_hand(x: Tensor, fired: Any) -> Tensor:
    v, rows = torch.zeros_like(x[0]), []
    for x_t in x:
        h = v + (x_t - v) / 2.0
        z = fired(h)
        v = h - 0.8 * z
        rows.append(z)
    return torch.stack(rows)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_normalisation_of_potentials(backend: str) -> None:
    """Outputs, gradients of input and normalisation, and statistics that move at each step."""
    if backend == "numba":
        needs_backend("numba")
    x, norm, other = drive(), nn.BatchNorm1d(C).double(), nn.BatchNorm1d(C).double()
    layer = Between(sc.LI(2.0, backend=backend), norm, Fire(backend=backend))
    y, expected = layer(x), by_hand(x, lambda h: spike(other(h) - 0.8))
    assert 0 < y.mean() < 1
    assert torch.equal(y, expected)
    weight = torch.rand_like(y)
    gradients = torch.autograd.grad((y * weight).sum(), [x, *norm.parameters()])
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * weight).sum(), [x, *other.parameters()]))
    assert norm.num_batches_tracked == T
    torch.testing.assert_close(norm.running_var, other.running_var)


def test_winners_take_all() -> None:
    """At most two of a sample fire; the others keep their potentials, and get no gradient by their spikes."""
    x = drive()
    y = Between(sc.LI(2.0), Winners(), Fire())(x)

    def fired(h: Tensor) -> Any:
        return spike(h - 0.8) * (h >= h.sort(1).values[:, -2:-1])

    expected = by_hand(x, fired)
    assert y.sum(2).max() == 2
    assert torch.equal(y, expected)
    weight = torch.rand_like(y)
    torch.testing.assert_close(*[torch.autograd.grad((z * weight).sum(), x)[0] for z in (y, expected)])


def test_streams_and_reports() -> None:
    """Parts of a sequence, single steps and no steps; a monitor, an energy and an explanation count all steps."""
    x = drive().detach().float()
    net = nn.Sequential(nn.Linear(C, C), Between(sc.LI(2.0), nn.BatchNorm1d(C), Fire()), nn.Linear(C, 2)).eval()
    net[0].bias.data.fill_(2.0)
    y = net(x)
    with sc.monitor(net) as seen:
        net(x)
    spikes, _ = net[1].run(net[0](x))
    assert seen["1"].rate == pytest.approx(spikes.mean().item())
    assert (sc.energy(net, x).steps, sc.energy(net, x).samples) == (T, B)
    assert "a loop over the steps: its module sees all neurons of a step" in str(sc.explain(net, x, training=False))
    with sc.carry_state(net):
        assert torch.equal(torch.cat([net(x[:3]), net(x[3:])]), y)
        assert [*sc.get_state(net)] == ["1.v"]
    sc.set_step(net, "single")
    assert torch.equal(torch.stack([net(x_t) for x_t in x]), y)
    sc.reset(net)
    assert torch.equal(net(x[0]), y[0])
    assert net[1].run(x[:0])[0].shape == (0, B, C)


test_refused = refusals.table(__file__, globals())
