"""``PSN`` and ``SlidingPSN`` against sums written out step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import refusals
import spikecore as sc
from spikecore.context import COMPILES


def surrogate_of(h: Tensor) -> Tensor:
    """The derivative of ATan(2) at h."""
    return 1 / (1 + (torch.pi * h) ** 2)


def check_spikes(layer: Any, x: Tensor, h: Tensor) -> None:
    """Spikes where ``h`` is 0 or above, and the gradients that follow from the surrogate."""
    z = layer(x)
    assert torch.equal(z, (h >= 0).double())
    assert 0.1 < z.mean() < 0.9
    cotangent = torch.randn_like(z)
    leaves = (x, layer.weight, layer.bias)
    expected = torch.autograd.grad((h * cotangent * surrogate_of(h.detach())).sum(), leaves)
    for got, want in zip(torch.autograd.grad((z * cotangent).sum(), leaves), expected):
        torch.testing.assert_close(got, want)


def test_psn_is_a_product_over_time() -> None:
    torch.manual_seed(0)
    layer = sc.layers.PSN(5).double()
    assert {name: value.shape for name, value in layer.named_parameters()} == {"weight": (5, 5), "bias": (5, 1)}
    assert (layer.bias == -1).all()
    with torch.no_grad():
        layer.bias += torch.linspace(0.5, 1.2, 5, dtype=torch.float64)[:, None]
    x = torch.randn(5, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    h = torch.stack([sum(layer.weight[t, s] * x[s] for s in range(5)) + layer.bias[t] for t in range(5)])
    check_spikes(layer, x, h)


def test_sliding_psn_is_a_sum_over_the_last_inputs() -> None:
    torch.manual_seed(0)
    layer = sc.layers.SlidingPSN(3).double()
    assert layer.weight.tolist() == [0.25, 0.5, 1.0]
    assert layer.bias.item() == -1
    x = torch.randn(7, 3, 4, dtype=torch.float64, requires_grad=True)
    padded = torch.cat([torch.zeros(2, 3, 4, dtype=torch.float64), x])
    h = torch.stack([sum(layer.weight[i] * padded[t + i] for i in range(3)) + layer.bias for t in range(7)])
    check_spikes(layer, x, h)


@pytest.mark.parametrize("order", [1, 4])
def test_sliding_psn_in_single_steps_and_in_pieces(order: int) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 6), sc.layers.SlidingPSN(order)), torch.randn(9, 2, 6) * 2
    whole = net(x)
    assert torch.equal(net(x), whole)
    with sc.carry_state(net):
        assert torch.equal(torch.cat([net(x[:2]), net(x[2:])]), whole)
    sc.set_step(net, "single")
    for _ in range(2):
        assert torch.equal(torch.stack([net(now) for now in x]), whole)
        sc.reset(net)
    net(x[0])
    with pytest.raises(ValueError, match=r"call sc\.reset\(net\) between sequences of different batches"):
        net(x[0, :1]) if order > 1 else net[1](x[0, 0])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (sc.layers.PSN(4), (4, 0, 3)),
        (sc.layers.PSN(4), (4, 2, 0)),
        (sc.layers.SlidingPSN(3), (4, 0, 3)),
        (sc.layers.SlidingPSN(3), (0, 2, 3)),
        (sc.layers.SlidingPSN(3, step="single"), (0, 3)),
    ],
)
def test_of_nothing_comes_nothing(layer: Any, shape: Any) -> None:
    """An empty batch, or a sequence without steps; the gradient of the weights is 0."""
    x = torch.zeros(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())
    sc.reset(layer)


def test_both_learn_within_a_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
        sc.layers.PSN(4, surrogate=sc.surrogate.Sigmoid(4.0)),
        sc.layers.TimeBatched(nn.Flatten(), nn.Linear(16, 8)),
        sc.layers.SlidingPSN(2),
        nn.Linear(8, 2),
    )
    step = sc.training_model(
        net, lambda out, y: nn.functional.cross_entropy(out.mean(0), y), torch.optim.Adam(net.parameters(), 1e-2)
    )
    x, y = torch.randn(4, 12, 1, 4, 4), torch.arange(12) % 2
    losses = [step(x, y)[1].item() for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    assert "SlidingPSN" in str(sc.explain(net, x))  # a layer with a state that is no neuron
    if COMPILES:  # packing needs torch 2.6
        packed = sc.layers.pack(net)
        assert type(packed[4]) is sc.layers.PackedLinear


@pytest.mark.skipif(not COMPILES, reason="torch.compile of what spikecore computes needs torch 2.6")
# torch.compile makes an object of every autograd.Function it meets, of which torch itself warns
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("layer", [sc.layers.PSN(4), sc.layers.SlidingPSN(2)])
def test_torch_compile(layer: Any) -> None:
    x = torch.randn(4, 3, 5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


test_refused = refusals.table(__file__, globals())
