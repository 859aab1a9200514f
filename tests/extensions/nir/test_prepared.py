"""Networks in integers as graphs: weights on their grids, and formats as metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import spikecore as sc

nir = pytest.importorskip("nir", reason="needs the extra `nir`")


def test_weights_and_formats(tmp_path: Path) -> None:
    """The file has the rounded weights, with the normalisation in them, and says how each node computes."""
    torch.manual_seed(0)
    x = torch.randn(10, 4, 6)
    net = nn.Sequential(
        sc.layers.TimeBatched(nn.Linear(6, 8), nn.BatchNorm1d(8)),
        sc.LIF(),
        sc.Recurrent(sc.LIF(), nn.Linear(8, 8, bias=False)),
        nn.Linear(8, 3),
    )
    prepared = sc.quant.prepare(net.eval(), x, weights=4, word=12)
    before = prepared(x)
    plain, formats = sc.quant.plain(prepared)
    sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats=formats)
    assert torch.equal(prepared(x), before)
    nodes = nir.read(str(tmp_path / "net.nir")).nodes
    layer = prepared[0].module[0]
    assert torch.equal(torch.from_numpy(nodes["0.module.0"].weight), layer.weight.detach())
    assert torch.equal(torch.from_numpy(nodes["0.module.0"].bias), layer.bias.detach())
    written = {name: json.loads(node.metadata["spikecore_formats"]) for name, node in nodes.items() if node.metadata}
    of_layer = written["0.module.0"]["0.module.0"]
    scaled = layer.weight.detach() * 2.0 ** torch.tensor(of_layer["weight_fracs"]).unsqueeze(1)
    assert torch.equal(scaled, scaled.round())
    assert of_layer["input_format"][0] == layer.input_format.fracs[0]
    assert written["1"]["1"] == {
        "word": 12,
        "frac": sc.quant.fixed_point_of(prepared[1]).frac,
        "factors": 12,
        "rounding": "nearest",
    }
    assert set(written["2"]) == {"2.neuron", "2.linear"}


def test_what_is_loaded_computes_in_floats(tmp_path: Path) -> None:
    """With the weights of the integers, and neurons of the same parameters."""
    torch.manual_seed(0)
    x = (torch.rand(10, 4, 6) < 0.5).float()
    prepared = sc.quant.prepare(nn.Sequential(nn.Linear(6, 8), sc.LIF()), x)
    plain, formats = sc.quant.plain(prepared)
    sc.nir.save(plain, tmp_path / "net.nir", dt=1e-4, formats=formats)
    loaded = sc.nir.load(tmp_path / "net.nir")
    expected = sc.LIF()(prepared[0](x))
    assert torch.equal(loaded(x), expected)
