"""Layers that brevitas quantises stay as they are in ``sc.quant.prepare``, learn, and are exported bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Tuple

import pytest
import torch
from torch import nn

import spikecore as sc
from c_programs import differing

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]  # of torch, in what brevitas calls


@pytest.fixture(scope="module", params=["Int8WeightPerTensorFixedPoint", "Int8WeightPerChannelFixedPoint"])
def powers_of_two(request: pytest.FixtureRequest) -> Any:
    """Quantisers whose scales are powers of two."""
    fixed_point = pytest.importorskip("brevitas.quant.fixed_point", reason="brevitas is not installed")
    return getattr(fixed_point, request.param)


def network(quantiser: Any) -> Tuple[nn.Module, torch.Tensor]:
    """A convolution and a linear layer of brevitas, and images over time."""
    import brevitas.nn as qnn

    torch.manual_seed(0)
    net = nn.Sequential(
        sc.layers.TimeBatched(qnn.QuantConv2d(1, 4, 3, padding=1, bias=True, weight_quant=quantiser)),
        sc.LIF(threshold=0.25),
        sc.layers.TimeBatched(nn.Flatten(), qnn.QuantLinear(64, 3, bias=True, weight_quant=quantiser)),
        sc.LI(),
    )
    return net, torch.rand(20, 4, 1, 4, 4)


def test_weights_are_those_of_brevitas(powers_of_two: Any) -> None:
    net, x = network(powers_of_two)
    fixed = sc.quant.prepare(net.eval(), x)
    for before, after in zip((net[0].module, net[2].module[1]), (fixed[0].module, fixed[2].module[1])):
        assert torch.equal(after.quant_weight().value, before.quant_weight().value)
        assert torch.allclose(after.bias, before.bias, rtol=0.0, atol=2.0**-8)
    layer, read = fixed[0].module, fixed[0].module.input_format(x[0])
    exact = copy.deepcopy(layer).double()
    expected = nn.functional.conv2d(read.double(), exact.quant_weight().value, layer.bias.double(), padding=1)
    assert torch.equal(layer(x[0]).double(), expected)
    assert [row.format[:3] for row in sc.quant.report(fixed, x).rows if row.kind == "weights"] == ["int", "int"]


def test_it_learns_and_is_exported(powers_of_two: Any, tmp_path: Path) -> None:
    net, x = network(powers_of_two)
    fixed, y = sc.quant.prepare(net, x).train(), torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.Adam(fixed.parameters(), 1e-2)
    step = sc.training_model(fixed, lambda out, y: nn.functional.cross_entropy(out.mean(0), y), optimizer)
    losses = [float(step(x, y)[1]) for _ in range(10)]
    assert losses[-1] < losses[0]
    sc.export_c(fixed.eval(), x, tmp_path)
    assert differing(tmp_path) == (0, 20 * 4 * 3)


def test_scales_that_are_no_powers_of_two_are_refused() -> None:
    scaled = pytest.importorskip("brevitas.quant.scaled_int", reason="brevitas is not installed")
    net, x = network(scaled.Int8WeightPerTensorFloat)
    with pytest.raises(ValueError, match=r"its weight is not on a grid.*brevitas: a power-of-two scaling"):
        sc.quant.prepare(net, x)
