"""What a monitor saw, as TensorBoard reads it back."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import spikecore as sc

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
tensorboard = pytest.importorskip("torch.utils.tensorboard")
pytest.importorskip("matplotlib").use("Agg")


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 30), sc.LIF(), nn.Linear(30, 4), sc.LI())


def read(folder) -> dict:
    found = accumulator.EventAccumulator(str(folder), size_guidance={"histograms": 0})
    found.Reload()
    return found


def test_rates_states_and_pictures_are_in_the_log(tmp_path):
    """Scalars and histograms of each layer that fires, of states that were recorded, and pictures of both."""
    net, x = network(), 8 * torch.rand(10, 3, 6)
    with tensorboard.SummaryWriter(str(tmp_path)) as writer, sc.monitor(net, record=("v",), spikes=True) as seen:
        for step in (3, 4):
            seen.clear()
            net(x / step)
            seen.log(writer, step)
    tags = read(tmp_path).Tags()
    assert sorted(tags["scalars"]) == ["rate/1", "saturated/1", "silent/1"]
    assert sorted(tags["histograms"]) == ["rates of neurons/1", "v/1", "v/3"]
    assert sorted(tags["images"]) == ["raster/1", "traces of v/1", "traces of v/3"]
    rates = read(tmp_path).Scalars("rate/1")
    assert [event.step for event in rates] == [3, 4]
    assert rates[1].value == pytest.approx(seen.rates["1"])
    assert read(tmp_path).Scalars("silent/1")[1].value == pytest.approx(seen["1"].silent / 30)
    histogram = read(tmp_path).Histograms("rates of neurons/1")[1].histogram_value
    assert histogram.num == 30
    assert histogram.sum == pytest.approx(float(seen["1"].rates.sum()), rel=1e-5)


def test_without_records_there_are_rates_alone(tmp_path):
    """Nothing that was not kept is drawn, and a layer that was not called has no tag; a neuron is called net."""
    neuron = sc.LIF()
    with tensorboard.SummaryWriter(str(tmp_path)) as writer, sc.monitor(neuron, spikes=True) as seen:
        seen.log(writer, 0)
        neuron(3 * torch.rand(5, 2, 4))
        seen.log(writer, 1, figures=False)
    tags = read(tmp_path).Tags()
    assert sorted(tags["scalars"]) == ["rate/net", "saturated/net", "silent/net"]
    assert tags["images"] == []
    assert [event.step for event in read(tmp_path).Scalars("rate/net")] == [1]


def test_matplotlib_is_not_needed_where_nothing_is_drawn(tmp_path, monkeypatch):
    """Rates and histograms alone, with figures=True, which is the default; it was imported nevertheless."""
    net = network()
    with tensorboard.SummaryWriter(str(tmp_path)) as writer, sc.monitor(net) as seen:
        net(8 * torch.rand(10, 3, 6))
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        seen.log(writer, 1)
    assert sorted(read(tmp_path).Tags()["scalars"]) == ["rate/1", "saturated/1", "silent/1"]
