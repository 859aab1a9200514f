"""Numbers without digits in kernels: infinities and NaN are of the type of arithmetic, in float64 as in float32."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc
from spikecore.testing._loopback import installed
from spikecore_cupy import ElementwiseKernel
from spikecore_cupy.host import HostBackend, HostElementwiseKernel, reason
from spikecore_cupy.text import CudaPrinter

pytestmark = [pytest.mark.kernels, pytest.mark.skipif(reason() is not None, reason=str(reason()))]
DTYPES = [torch.float32, torch.float64, torch.float16]


@pytest.fixture(autouse=True, scope="module")
def _on_host() -> Iterator[None]:
    with installed(HostBackend, devices=("cpu",)):
        yield


class Bounded(sc.Neuron):
    """Every function of two numbers of one type, beside an infinity or a NaN."""

    states = {"v": 0.5}
    params = {"a": 0.25}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        ops = sc.ops
        low = ops.clamp(x, 0.0) + ops.clamp(s.v, high=0.5) + ops.clamp(p.a * x, -math.inf, math.inf)
        both = ops.minimum(x, math.inf) + ops.maximum(-math.inf, s.v) + ops.where(x > math.inf, 1.0, 0.0)
        odd = ops.where(x != x, math.nan, ops.maximum(x, -1e400)) + ops.select(
            ops.spike(x, self.surrogate), x, -math.inf
        )
        return (low + both, ops.where(x > 0.5, odd, 0.0)), {"v": low * 0.5 - both * 0.25}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["number", "channel"])
def test_bounds_at_infinity(dtype: torch.dtype, kind: str) -> None:
    """``clamp(x, 0.0)`` has an upper bound, too; values and gradients are torch's."""
    x = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    found: List[List[Tensor]] = []
    for backend in ("cupy_host", "torch"):
        options = {"a": torch.linspace(0.1, 0.5, 8), "channel_dim": -1, "learn": ("a",)} if kind == "channel" else {}
        neuron = Bounded(backend=backend, **options)
        neuron = neuron.double() if dtype == torch.float64 else neuron
        leaf = x.clone().requires_grad_()
        (out, chosen), end = neuron.run(leaf)
        (out.sum() + end["v"].sum()).backward()
        found.append([out, chosen, end["v"], leaf.grad, *(p.grad for p in neuron.parameters())])
    for ours, reference in zip(*found):
        torch.testing.assert_close(ours, reference, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e400])
def test_every_literal_has_the_type_of_arithmetic(value: float) -> None:
    """A double where arithmetic is float64: templates take two arguments of one type."""
    assert CudaPrinter(torch.float64).number(value).startswith("double(")
    assert "double" not in CudaPrinter(torch.float32).number(value)


def test_kernels_of_ones_own_have_them() -> None:
    """In float64, in expressions."""
    assert issubclass(HostElementwiseKernel, ElementwiseKernel)
    kernel = HostElementwiseKernel("relu", inputs=["x"], outputs=["y"], body=lambda x: sc.ops.clamp(x, 0.0))
    x = torch.randn(33, dtype=torch.float64)
    assert torch.equal(kernel(x=x), x.clamp(min=0.0))
