"""Wide layers with feedback on a GPU, whose steps multiply spikes as exact parts of bfloat16, on cupy and triton."""

from __future__ import annotations

import copy
from typing import Any, List

import pytest
import torch
from torch import nn

import spikecore as sc
from spikecore.kernels import spike_products

pytestmark = pytest.mark.gpu
STEPS, BATCH = 40, 256


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> List[int]:
    """The width of each product that was taken so."""
    if not hasattr(torch.ops.aten.mm, "dtype") or torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs tensor cores with bfloat16, and torch 2.8")
    found: List[int] = []
    multiplied = spike_products.multiplied

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found.append(b.shape[1])
        return multiplied(a, b)

    monkeypatch.setattr(spike_products, "multiplied", counted)
    return found


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


def layer(width: int, backend: str, bias: bool = True) -> Any:
    """A recurrent layer with weights of many bits, so small that a spike more hardly makes others."""
    net = sc.Recurrent(sc.LIF(tau=2.0), nn.Linear(width, width, bias=bias), fused=True).cuda()
    with torch.no_grad():
        for k, value in enumerate(net.parameters()):
            value.copy_(drawn(*value.shape, seed=width + k) / (20 * width**0.5))
    sc.set_backend(net, backend)
    return net


def results(net: Any, x: torch.Tensor) -> List[torch.Tensor]:
    """Output, last potential, and all gradients."""
    x = x.detach().clone().requires_grad_()
    out, state = net.run(x)
    given = [out, state["v"]]
    cotangents = [drawn(*value.shape, seed=k).to(value.dtype) for k, value in enumerate(given)]
    return [out.detach(), state["v"].detach(), *torch.autograd.grad(given, [x, *net.parameters()], cotangents)]


@pytest.mark.parametrize("backend", ["cupy", "triton"])
@pytest.mark.parametrize(("width", "bias"), [(1032, True), (1088, True), (1088, False)])
def test_results_are_those_of_the_float64_loop(calls: List[int], width: int, bias: bool, backend: str) -> None:
    """But for spikes at a threshold, of which float32's own product has some, too."""
    net, x = layer(width, backend, bias), drawn(STEPS, BATCH, width, seed=3) * 2
    found = results(net, x)
    # of every step but the first, and on cupy the gradient's
    assert calls == [width] * (STEPS - (backend == "triton"))
    assert all(torch.equal(a, b) for a, b in zip(found, results(net, x)))
    exact = copy.deepcopy(net).double()
    exact.fused = False
    sc.set_backend(exact, "torch")
    spikes, potential, *gradients = results(exact, x.double())
    assert 0.01 < spikes.mean() < 0.9
    assert (found[0] != spikes).double().mean() <= 1e-5
    for k, (mine, its) in enumerate(zip(found[1:], [potential, *gradients])):
        assert (mine - its).norm() <= 1e-2 * its.norm(), k


@pytest.mark.parametrize("width", [1032, 1088])
def test_bits_where_sums_are_exact(calls: List[int], width: int) -> None:
    """Weights that are multiples of 1/64 have the same sums in any order; the first output is no spike."""
    net, x = layer(width, "cupy"), drawn(STEPS, BATCH, width, seed=3) * 2
    with torch.no_grad():
        for value in net.parameters():
            value.copy_((value * 5120).round() / 64)
    state = {"v": torch.zeros(BATCH, width).cuda(), "feedback": torch.full((BATCH, width), 0.5).cuda()}
    found = net.run(x, state=state)[0]
    assert calls == [width] * (STEPS - 1)
    net.fused = False
    sc.set_backend(net, "torch")
    assert found.any()
    assert torch.equal(found, net.run(x, state=state)[0])


@pytest.mark.parametrize("width", [513, 700, 1024])
def test_the_gradient_of_the_weight_is_exact_but_for_sums(calls: List[int], width: int) -> None:
    """Of layers whose steps are one launch: beside the product of the same cotangents and spikes in float64."""
    net, x = layer(width, "cupy"), drawn(STEPS, BATCH, width, seed=3) * 2
    spikes, _, of_x, of_weight, _ = results(net, x)
    assert calls == [-(-width // 8) * 8]
    exact = of_x[1:].double().flatten(0, 1).t() @ spikes[:-1].double().flatten(0, 1)
    assert (of_weight - exact).norm() <= 1e-6 * exact.norm()
    torch.set_float32_matmul_precision("high")
    try:
        results(net, x)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(calls) == 1
