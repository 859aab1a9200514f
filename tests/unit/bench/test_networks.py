"""Networks in the benchmark: their shapes, and how they are timed beside others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import spikecore as sc
from bench_runs import TINY, Mutant, only, ran
from spikecore.bench import _networks as networks
from spikecore.bench import models
from spikecore.bench._run import prepare
from spikecore.bench._timing import HostClock, Plan
from spikecore.testing._loopback import Loopback, installed


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of one call, so that nothing here depends on how fast it runs; and no emulator takes part."""
    monkeypatch.setenv("SPIKECORE_BLOCK", "ipu")
    monkeypatch.setattr(Plan, "calls", lambda self, seconds: 1)
    monkeypatch.setattr(HostClock, "cache_bytes", lambda self: 1000)


@pytest.fixture
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first network is small, and the only one."""
    network = replace(models.NETWORKS["fc"], steps=2, batch_on_cpu=2)
    monkeypatch.setattr(networks, "NETWORKS", {"fc": network})


def test_networks_are_beside_relu(small_network: None) -> None:
    """A network row has the time of a step and its ratio to the same network with ReLU."""
    with installed(Loopback):
        rows = ran(replace(TINY, suites=("networks",))).rows
    assert [row.implementation for row in rows] == ["ReLU", "loopback", "torch"]
    assert {row.status for row in rows} == {"ok"}
    assert rows[0].figures["time_over_relu"] == 1.0
    assert rows[1].figures["images_per_second"] == pytest.approx(2e3 / rows[1].figures["step_ms"])
    assert rows[0].case["batch"] == 2


def test_network_of_a_wrong_backend_is_not_trained(small_network: None) -> None:
    """Its neuron is checked first."""
    with installed(Mutant):
        row = only(ran(replace(TINY, suites=("networks",))).rows, "mutant")
    assert (row.status, dict(row.figures)) == ("wrong", {})


def test_networks_that_were_not_asked_for_are_rows() -> None:
    """On a CPU the large ones are left out by default, and each says how to get it."""
    _, jobs = prepare(replace(TINY, suites=("networks",), quick=False, networks=("fc",)))
    rows = [row for job in jobs[1:] for row in job.run()]
    assert [row.case["network"] for row in rows] == [name for name in models.NETWORKS if name != "fc"]
    assert rows[0].detail == "not asked for; --network cifar10 does"


def test_graph_without_options_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where spikecore has no CUDA graphs, the row that would use them is skipped with that reason."""
    monkeypatch.delattr(sc, "CudaOptions", raising=False)
    with pytest.raises(networks._Out, match="has no CudaOptions"):
        networks._graph(models.NETWORKS["fc"])


@pytest.mark.parametrize(
    ("make", "image", "shape"),
    [
        (models.fully_connected, (784,), (2, 1, 10)),
        (models.cifar10, (3, 32, 32), (2, 1, 10)),
        (models.sew_resnet18, (3, 32, 32), (2, 1, 1000)),
    ],
)
def test_networks_have_the_shapes_of_their_papers(make: Any, image: Any, shape: Any) -> None:
    """Images [B, ...] go in, scores [T, B, classes] come out, for ReLU and for the neuron."""
    for neuron in (nn.ReLU, lambda: sc.LIF(backend="torch")):
        assert make(2, neuron)(torch.rand(1, *image)).shape == shape


def test_sew_block_adds_spikes() -> None:
    """The input is added to the output as spikes: what comes out of a block counts up."""
    block = models.SEWBlock(4, 4, 1, nn.Identity)
    for parameter in block.body.parameters():
        nn.init.zeros_(parameter)
    x = torch.ones(2, 1, 4, 3, 3)
    assert torch.equal(block(x), x)
    counted = sum(parameter.numel() for parameter in models.sew_resnet18(1, nn.ReLU).parameters())
    assert counted == 11_689_512  # as ResNet18
