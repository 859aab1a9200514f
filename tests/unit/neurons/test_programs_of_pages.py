"""Programs of papers that pages write in a few lines, beside plain loops of the same equations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from torch import Tensor, nn

import spikecore as sc
from arctan import spike
from ready import needs_backend

DOCS = Path(__file__).parents[3] / "docs"


def definitions(page: str, *names: str) -> Any:
    """The neurons of these names that a page defines."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    known: Dict[str, Any] = {"sc": sc}
    for name in names:
        (code,) = re.findall(rf"(?m)^class {name}\(.*\n(?:(?:    .*)?\n)+", text)
        exec(code, known)
    return [known[name] for name in names]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def circuits() -> Tuple[Any, Tuple[Tensor, ...], Callable[..., Tensor]]:
    """STC-LIF: the last spikes gate leak and input, as constants."""
    (kind,) = definitions("recurrent", "STCLIF")
    leak, gate = (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4)) for _ in range(2))
    ways = [sc.layers.Feedback(module, into=name, detach=True) for module, name in ((leak, "leak"), (gate, "gate"))]

    def loop(x: Tensor) -> Tensor:
        v, z, rows = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
        for x_t in x:
            was = z.detach()
            h = v * (1 + torch.tanh(leak(was))) + x_t * (1 + torch.tanh(gate(was)))
            z = spike(h - 1)
            v = h - z
            rows.append(z)
        return torch.stack(rows)

    return sc.Recurrent(kind(), ways, given=("x",)), (drawn(6, 2, 4, 3, 3),), loop


def compartments() -> Tuple[Any, Tuple[Tensor, ...], Callable[..., Tensor]]:
    """Norse's compartments: spikes and potentials come back through two matrices."""
    (kind,) = definitions("coming-from-norse-and-sinabs", "Compartments")
    spikes, couplings = nn.Linear(5, 5), nn.Linear(5, 5)
    ways = [sc.layers.Feedback(spikes, into="x", output=0), sc.layers.Feedback(couplings, into="c", output=1)]

    def loop(x: Tensor) -> Tensor:
        v = z = i = torch.zeros_like(x[0])
        rows = []
        for x_t in x:
            i, u = i + x_t + spikes(z), v + couplings(v)
            h = u + (i - u) / 10
            z = spike(h - 1)
            v = (1 - z.detach()) * h
            i = i - i / 5
            rows.append(z)
        return torch.stack(rows)

    return First(sc.Recurrent(kind(), ways, given=("x",))), (4.0 * drawn(12, 3, 5),), loop


class First(nn.Module):
    """The first output of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Any:
        return self.layer(*inputs)[0]


def refractory() -> Tuple[Any, Tuple[Tensor, ...], Callable[..., Tensor]]:
    """Norse's refractory neuron, with the gradients of its counter."""
    (kind,) = definitions("coming-from-norse-and-sinabs", "Refractory")
    linear = nn.Linear(5, 5)

    def loop(x: Tensor) -> Tensor:
        v = z = i = left = torch.zeros_like(x[0])
        rows = []
        for x_t in x:
            i = i + x_t + linear(z)
            h = v + (i - v) / 10
            fires, rests = spike(h - 1), spike(left - 1e-300)
            v = (1 - rests) * ((1 - fires.detach()) * h) + rests * v
            z = (1 - rests) * fires
            left = (1 - z) * torch.relu(left - rests) + 2 * z
            i = i - i / 5
            rows.append(z)
        return torch.stack(rows)

    return sc.Recurrent(kind(rest=2.0), linear), (4.0 * drawn(12, 3, 5),), loop


def dendrites() -> Tuple[Any, Tuple[Tensor, ...], Callable[..., Tensor]]:
    """DH-SRNN: spikes come back into the branches of a dendrite."""
    linear, branches = nn.Linear(5, 3 * 5), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    keeps, leak = branches.sigmoid(), torch.tensor(2.0, dtype=torch.float64).sigmoid()
    neuron = sc.DHLIF(branches=3, w_branch=branches, threshold=0.1, learn=())

    def loop(x: Tensor) -> Tensor:
        v = z = torch.zeros_like(x[0, ..., 0])
        d, rows = torch.zeros_like(x[0]), []
        for x_t in x:
            back = torch.stack(linear(z).chunk(3, -1), -1)
            d = keeps * d + (1 - keeps) * (x_t + back)
            v = leak * v + (1 - leak) * d.sum(-1) - 0.1 * z
            z = spike(v - 0.1)
            rows.append(z)
        return torch.stack(rows)

    return sc.Recurrent(neuron, linear), (3.0 * drawn(12, 3, 5, 3),), loop


def adaptive() -> Tuple[Any, Tuple[Tensor, ...], Callable[..., Tensor]]:
    """Yin, Corradi and Bohte's neuron, with two time constants of each."""
    (kind,) = definitions("recipes", "AdaptiveLIF")
    linear, taus = nn.Linear(5, 5), {"tau_m": 3.0 + drawn(5).abs(), "tau_a": 9.0 + drawn(5).abs()}
    neuron = kind(**taus, learn=("tau_m", "tau_a"), surrogate=sc.surrogate.ATan())

    def loop(x: Tensor) -> Tensor:
        v = z = torch.zeros_like(x[0])
        b, rows = v + 0.01, []
        alpha, rho = torch.exp(-1 / neuron.tau_m), torch.exp(-1 / neuron.tau_a)
        for x_t in x:
            b = rho * b + (1 - rho) * z
            threshold = 0.01 + 1.8 * b
            v = alpha * v + (1 - alpha) * (x_t + linear(z)) - threshold * z
            z = spike(v - threshold)
            rows.append(z)
        return torch.stack(rows)

    return sc.Recurrent(neuron, linear), (drawn(12, 3, 5),), loop


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(
    "program", [circuits, compartments, refractory, dendrites, adaptive], ids=lambda made: made.__name__
)
def test_a_program_is_its_loop(program: Callable[[], Any], backend: str) -> None:
    """Outputs, and the gradients of inputs and weights."""
    if backend == "numba":
        needs_backend("numba")
    torch.manual_seed(0)
    layer, inputs, loop = program()
    layer.double()
    inputs = tuple([x.requires_grad_() for x in inputs])
    with sc.use_backend(backend):
        out = layer(*inputs)
    expected = loop(*inputs)
    assert 0.02 < expected.mean() < 0.9
    assert torch.equal(out, expected)
    wanted = [*inputs, *layer.parameters()]
    cotangent = drawn(*out.shape, seed=1)
    found, right = torch.autograd.grad(out, wanted, cotangent), torch.autograd.grad(expected, wanted, cotangent)
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-10)
