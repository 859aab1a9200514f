"""Networks in the benchmark: their shapes, and how they are timed beside others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, List

import pytest
import torch
from torch import nn

import spikecore as sc
from bench_runs import TINY, Mutant, only, ran
from spikecore.bench import _networks as networks
from spikecore.bench import models
from spikecore.bench._cases import Bench
from spikecore.bench._forms import FORMS, IMAGES, VECTORS, Form, forms
from spikecore.bench._implementations import find
from spikecore.bench._run import prepare
from spikecore.bench._timing import HostClock, Plan
from spikecore.testing._loopback import Loopback, installed


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


def test_every_form_has_a_name_of_its_own() -> None:
    """By which ``--form`` finds it; what is not asked for is chosen for the device."""
    assert len(FORMS) == 64
    assert FORMS["channels-last fused packed compiled CUDA graph"] == Form(True, True, True, True, True)
    fc, images = models.NETWORKS["fc"], models.NETWORKS["vgg-t4"]
    assert [form.name for form in forms(fc, (), "cpu")] == ["eager"]
    assert {form.name for form in forms(fc, (), "cuda")} == set(VECTORS)
    assert {form.name for form in forms(images, (), "cuda")} == set(IMAGES)
    assert [form.name for form in forms(images, ("fused", "eager"), "cuda")] == ["eager", "fused"]
    with pytest.raises(ValueError, match="form 'fast' is not known; there are: eager, "):
        replace(TINY, forms=("fast",))


def test_forms_are_beside_relu_in_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts and compilation for all, fusing for ours alone; the ratio that counts is to the fastest ReLU."""
    given: List[Any] = []

    def compiler(function: Any, **options: Any) -> Any:
        given.append(function.__code__)
        assert options["fullgraph"]  # by the step's own option, which makes the graphs faster
        return function

    monkeypatch.setattr(torch, "compile", compiler)
    network = replace(models.NETWORKS["cifar10"], steps=2, make=partial(models.cifar10, width=4))
    monkeypatch.setattr(networks, "NETWORKS", {"cifar10": network})
    wanted = ("eager", "channels-last", "channels-last fused", "channels-last compiled")
    with installed(Loopback):
        settings = replace(TINY, suites=("networks",), networks=("cifar10",), backends=("loopback",), forms=wanted)
        rows = ran(settings).rows
    assert {row.implementation: row.status for row in rows} == {
        "ReLU": "ok",
        "loopback": "ok",
        "ReLU, channels-last": "ok",
        "loopback, channels-last": "ok",
        "loopback, channels-last fused": "ok",
        "ReLU, channels-last compiled": "ok",
        "loopback, channels-last compiled": "ok",
    }
    plain = [row for row in rows if row.implementation.startswith("ReLU")]
    assert min(row.figures["time_over_best_relu"] for row in plain) == 1.0
    best = min(row.figures["step_ms"] for row in plain)
    for row in rows:
        assert row.figures["time_over_best_relu"] == pytest.approx(row.figures["step_ms"] / best)
        assert row.figures["time_over_relu"] == pytest.approx(row.figures["step_ms"] / rows[0].figures["step_ms"])
    assert len(given) == len(set(map(id, given))) == 2


def test_forms_change_the_network() -> None:
    """The layout of weights and images, the neurons that normalise."""
    net = FORMS["channels-last fused"].network(models.vgg(2, lambda: sc.LIF(backend="torch")))
    weight = net[1].module[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    images = torch.rand(2, 3, 32, 32)
    assert FORMS["channels-last"].images(images).is_contiguous(memory_format=torch.channels_last)
    assert FORMS["channels-last"].images(images[:, 0, 0]) is not None
    assert FORMS["eager"].images(images) is images
    options = FORMS["channels-last CUDA graph"].options(models.NETWORKS["vgg-t4"])
    assert (options.graph, options.autocast, options.compile) == (True, torch.bfloat16, None)


def test_networks_of_other_libraries_are_compiled_by_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that break into several graphs, too: the step's own option refuses them."""
    given: List[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function: given.append(function) or function)
    form, net = FORMS["compiled CUDA graph"], nn.Linear(2, 2)
    assert form.options(models.NETWORKS["fc"]).compile is True
    assert form.network(net) is net
    apart = replace(form, apart=True)
    assert apart.options(models.NETWORKS["fc"]).compile is None
    assert apart.network(net) is not net
    apart.loss()
    assert len(given) == 2
    assert apart.name == form.name


@pytest.mark.parametrize("name", ["fc", "fc-tf32"])
def test_products_are_those_that_the_network_asks_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 is on in its steps alone, and afterwards all is as it was."""
    seen: List[str] = []
    network = replace(models.NETWORKS[name], steps=2, batch_on_cpu=2)
    stepped = sc.training_model

    def training_model(*given: Any, **keywords: Any) -> Any:
        step = stepped(*given, **keywords)
        return lambda *batch: (seen.append(torch.get_float32_matmul_precision()), step(*batch))[1]

    monkeypatch.setattr(sc, "training_model", training_model)
    monkeypatch.setattr(networks, "NETWORKS", {name: network})
    rows = ran(replace(TINY, suites=("networks",), networks=(name,), backends=("torch",))).rows
    assert {row.status for row in rows} == {"ok"}
    assert set(seen) == {"high" if name == "fc-tf32" else "highest"}
    assert torch.get_float32_matmul_precision() == "highest"
    assert rows[0].case["dtype"] == ("TF32" if name == "fc-tf32" else "float32")


def test_adam_is_compiled_where_the_form_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step alone, and it moves the parameters as the plain one does."""
    given: List[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function: given.append(function) or function)
    moved = []
    for name in ("eager", "compiled Adam"):
        weight = nn.Parameter(torch.ones(3))
        optimizer = FORMS[name].optimizer([weight], torch.device("cpu"))
        weight.grad = torch.tensor([1.0, -1.0, 0.0])
        optimizer.step()
        moved.append(weight.detach())
    assert len(given) == 1
    torch.testing.assert_close(*moved)


def test_kernels_that_are_no_convolutions_are_listed() -> None:
    """Those that take longest first, with the time and the number of each in a step; none, no words."""
    plain = networks.Training(None, None, None)
    kernels = {"triton_poi_a": (5e-3, 10), "sm90_fprop": (20e-3, 5), "lif_forward": (10e-3, 5), "nvjet_h": (5e-3, 5)}
    assert networks._told(plain, kernels).detail == (
        "device 8.000 ms, 3.000 of it neither convolutions nor products: "
        "lif_forward 2.0000 ms in 1; triton_poi_a 1.0000 ms in 2"
    )
    assert networks._told(plain, {}) == plain


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
    assert rows[0].detail == "not asked for; --network fc-tf32 does"


@pytest.mark.parametrize(
    ("make", "image", "shape"),
    [
        (models.fully_connected, (784,), (2, 1, 10)),
        (models.cifar10, (3, 32, 32), (2, 1, 10)),
        (models.sew_resnet18, (3, 32, 32), (2, 1, 1000)),
        (models.vgg, (3, 32, 32), (2, 1, 10)),
        (models.attention, (3, 32, 32), (2, 1, 10)),
    ],
)
def test_networks_have_the_shapes_of_their_papers(make: Any, image: Any, shape: Any) -> None:
    """Images [B, ...] go in, scores [T, B, classes] come out, for ReLU and for the neuron."""
    for neuron in (nn.ReLU, lambda: sc.LIF(backend="torch")):
        assert make(2, neuron)(torch.rand(1, *image)).shape == shape


def test_sew_block_adds_spikes() -> None:
    """The input is added to the output as spikes: what comes out of a block counts up."""
    block = models.SEWBlock(4, 4, nn.Identity)
    for parameter in block.body.parameters():
        nn.init.zeros_(parameter)
    x = torch.ones(2, 1, 4, 3, 3)
    assert torch.equal(block(x), x)
    counted = sum(parameter.numel() for parameter in models.sew_resnet18(1, nn.ReLU).parameters())
    assert counted == 11_689_512  # as ResNet18


def test_what_compiles_has_a_process_of_its_own() -> None:
    """All that is not compiled shares one, which starts last."""
    wanted = ("eager", "packed", "CUDA graph", "compiled", "compiled Adam")
    settings = replace(TINY, forms=wanted, workers=2).on(torch.device("cpu"))
    cpu = torch.device("cpu")
    bench = Bench(cpu, HostClock(cpu), find(cpu, ("torch",), peers=False)[0], Plan(1))
    fc = models.NETWORKS["fc"]
    assert networks.Together([fc], settings, bench)._shared(fc) == [
        ["ReLU, compiled Adam"],
        ["torch, compiled Adam"],
        ["ReLU, compiled"],
        ["torch, compiled"],
        ["ReLU", "torch", "ReLU, CUDA graph", "torch, CUDA graph", "torch, packed"],
    ]


def test_networks_come_in_the_order_in_which_they_were_asked_for() -> None:
    """What matters most may come first, before a run is cut off."""
    _, jobs = prepare(replace(TINY, suites=("networks",), networks=("vgg-t4", "fc")))
    assert [job.label for job in jobs] == ["networks: vgg-t4", "networks: fc"]
