"""The cupy backend on a GPU: divisions that are approximate, layers of many neurons, and the same bits every time."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.dtypes import DTYPES
from spikecore.testing import TOLERANCES

pytestmark = pytest.mark.gpu

Noise = Callable[..., Tensor]


class Scaled(sc.Surrogate):
    """``1 / (1 + u^2 / 16)`` with every number times ``scale``; as ``by_values``, of numbers that differ by step."""

    def __init__(self, scale: float, by_values: bool) -> None:
        self.scale, self.by_values = scale, by_values

    def derivative(self, u: Any) -> Any:
        above: Any = self.scale
        if self.by_values:
            above = self.scale * sc.ops.minimum(sc.ops.abs(u) + 1.0, 1.0)
        return above / (self.scale + (self.scale / 16.0) * (u * u))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("scale", "by_values"), [(1.0, False), (2.0**126, False), (1.0, True), (2.0**126, True), (2.0**-130, True)]
)
def test_approximate_divisions_have_the_whole_range(scale: float, by_values: bool, dtype: str, noise: Noise) -> None:
    """Where a GPU's own reciprocal is 0 or infinite, a surrogate's derivative is what it is elsewhere."""
    found = []
    for backend in ("cupy", "torch"):
        x = noise(8, 200, dtype=DTYPES[dtype]).requires_grad_()
        out = sc.LIF(surrogate=Scaled(scale, by_values), backend=backend)(x)
        found += torch.autograd.grad(out, [x], noise(8, 200, dtype=DTYPES[dtype], seed=1))
    assert found[1].any()
    rtol, atol = TOLERANCES[dtype, "input gradient"]
    torch.testing.assert_close(*found, rtol=rtol, atol=atol * float(found[1].abs().max().clamp(min=1.0)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau", [2.0, 3.0])
def test_input_gradients_of_many_neurons_are_near_the_reference(tau: float, dtype: str, noise: Noise) -> None:
    """Of sizes for which a thread takes one number, 4 bytes and 8 bytes of a step, by products and by divisions."""
    for steps, size in ((17, 2**17 - 4), (4, 2**18), (17, 2**18 + 4), (17, 2**18 + 2)):
        x, weight = (noise(steps, size, low=-1.0, high=2.0, seed=k, dtype=DTYPES[dtype]) for k in (0, 1))
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        (sc.LIF(tau, backend="cupy")(ours) * weight).sum().backward()
        (sc.LIF(tau, backend="torch")(theirs) * weight).sum().backward()
        rtol, atol = TOLERANCES[dtype, "input gradient"]
        limit = atol * max(1.0, float(theirs.grad.abs().max()))
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=rtol, atol=limit)


@pytest.mark.parametrize("shape", [(4001, 1001), (4000, 1000)])
@pytest.mark.parametrize("kind", ["scalar", "channel", "full"])
def test_every_run_gives_the_same_bits(kind: str, shape: Tuple[int, int], noise: Noise) -> None:
    """Thousands of blocks, whichever comes first: outputs, input gradients and parameter gradients never change."""
    x = noise(5, *shape).requires_grad_()
    tau = torch.full({"scalar": (), "channel": shape[1:], "full": shape}[kind], 2.5)
    neuron = sc.LIF(tau, learn=("tau", "threshold"), backend="cupy").to("cuda")

    def run() -> Tuple[Tensor, ...]:
        out = neuron(x)
        return (out, *torch.autograd.grad((out * x.detach()).sum(), [x, *neuron.parameters()]))

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run()))
