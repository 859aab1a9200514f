"""Neurons that give the number of their spikes in a step, and what the tools of a network know of it."""

from __future__ import annotations

import re
from typing import Any, Tuple

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc


class Quant4(torch.autograd.Function):
    """Count of SpikeYOLO."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.round(torch.clamp(x, 0, 4))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where((x < 0) | (x > 4), torch.zeros_like(grad), grad)


def spike_yolo(x: Tensor) -> Tensor:
    """Neuron of SpikeYOLO, as its code computes it."""
    mem, spike, out = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
    for x_t in x:
        mem = (mem - spike.detach()) * 0.25 + x_t
        spike = Quant4.apply(mem)
        out.append(spike)
    return torch.stack(out)


def sinabs(x: Tensor) -> Tensor:
    """Values of sinabs' ``LIF`` with ``MaxSpike(3)``, ``alpha_mem=0.8``, a threshold of 0.5 and ``min_v_mem=-1``."""
    v, out = torch.zeros_like(x[0]), []
    for x_t in x:
        v = v * 0.8 + x_t
        z = torch.clamp((v > 0) * torch.div(v, 0.5, rounding_mode="trunc"), max=3)
        v = torch.relu(v - z * 0.5 + 1.0) - 1.0
        out.append(z)
    return torch.stack(out)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3


def test_it_is_the_neuron_of_the_paper() -> None:
    """To the bit, gradient included; at halves and at the ends of the range, too."""
    x = torch.cat([drawn(7, 64), torch.arange(-1.0, 5.5, 0.5).repeat(7, 1)], 1)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    z, right = sc.ILIF(detach_reset=True, backend="torch")(ours), spike_yolo(theirs)
    assert torch.equal(z, right)
    z.square().sum().backward()
    right.square().sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_many_spikes_and_a_floor_are_those_of_sinabs() -> None:
    x = drawn(20, 50)
    assert torch.equal(sc.ILIF(0.8, levels=3, threshold=0.5, rounding="down", v_min=-1.0)(x), sinabs(x))


REFUSED = [
    ({"levels": 0}, ValueError, "ILIF: levels=0 must be from 1 to 255, the largest number of spikes in a step"),
    ({"levels": 2.0}, TypeError, "ILIF: levels=2.0 must be a whole number"),
    ({"rounding": "up"}, ValueError, "ILIF: rounding='up' must be 'nearest' (ties to even) or 'down'"),
    ({"v_min": float("-inf")}, ValueError, "ILIF: v_min=-inf must be finite, or None"),
    ({"v_min": "0"}, TypeError, "ILIF: v_min='0' must be a number, or None"),
    ({"threshold": 0.0}, ValueError, "ILIF: threshold=0.0 must be above 0"),
]


@pytest.mark.parametrize(("options", "error", "text"), REFUSED)
def test_errors(options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        sc.ILIF(**options)


# -- slots


@pytest.mark.parametrize("layer", [nn.Linear(6, 5, bias=False), nn.Conv1d(6, 5, 1, bias=False)])
def test_slots_have_the_sums_of_counts(layer: nn.Module) -> None:
    z = sc.ILIF()(drawn(3, 2, 6) if isinstance(layer, nn.Linear) else drawn(3, 6, 4))
    slots = sc.functional.expand_counts(z, 4)
    assert slots.shape == (12, *z.shape[1:])
    assert set(slots.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(slots.unflatten(0, (3, 4)).sum(1), z)
    torch.testing.assert_close(layer(slots).unflatten(0, (3, 4)).sum(1), layer(z))


# -- tools


def counting() -> Tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(sc.ILIF(levels=3, backend="torch"), nn.Linear(8, 4, bias=False)), drawn(5, 3, 8).abs()


def test_explain_and_monitor_know_the_largest_count() -> None:
    """A layer whose neurons all give 3 fires at every step; a rate is in spikes per step."""
    net, x = counting()
    z = net[0](x)
    (rate,) = [layer.rate for layer in sc.explain(net, x).layers if layer.kind == "ILIF"]
    assert rate == pytest.approx(float(z.mean()) / 3)
    with sc.monitor(net) as seen:
        net(x)
        assert seen.rates["0"] == pytest.approx(float(z.mean()))
    with sc.monitor(net) as seen:
        net(x * 0 + 9.0)
        assert (seen.layers[0].saturated, seen.layers[0].silent) == (8, 0)
    assert "fired at every step" in " ".join(sc.explain(net, x * 0 + 9.0).advice)


def test_energy_counts_an_accumulate_for_each_spike() -> None:
    net, x = counting()
    (layer,) = [layer for layer in sc.energy(net, x).layers if layer.kind == "Linear"]
    assert layer.acs * x.shape[1] == int(net[0](x).sum()) * 4


def test_a_loss_wants_counts() -> None:
    """``mse_count`` takes rates up to the largest count."""
    z, targets = torch.full((5, 2, 3), 2.0), torch.tensor([0, 1])
    loss = sc.losses.mse_count(z, targets, correct_rate=2.0, incorrect_rate=2.0, levels=4)
    assert float(loss) == 0.0
    with pytest.raises(ValueError, match=r"correct_rate must be between 0 and 1 .* say levels=, their largest count"):
        sc.losses.mse_count(z, targets, correct_rate=2.0)


test_refused = refusals.table(__file__, globals())
