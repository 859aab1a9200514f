"""Truth values of parameters with many values, which lie in rows of numbers between two steps."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
import torch
from torch import Tensor

import spikecore as sc

SHAPES = {"channel": (3,), "full": (2, 3, 5)}


class Chosen(sc.Neuron):
    """Comparisons of parameters alone, joined by every operation on truth values."""

    states = {"v": 0.0}
    params = {"a": 0.5, "b": 0.25}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        both, either, neither = (p.a > p.b) & (x > 0.0), (p.a > 0.5) | (s.v > p.b), ~(p.b >= p.a)
        h = sc.ops.where(both, x, s.v) + sc.ops.where(either, p.a, p.b * x)
        return sc.ops.where(neither & (x < 1.0), h, -h), {"v": sc.ops.where(p.a == p.b, h, x - h)}


class Powered(sc.Neuron):
    """A power whose derivative asks about its exponent."""

    states = {"v": 0.1}
    params = {"n": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        y = abs(x - s.v) ** p.n
        return y, {"v": y * 0.25}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("cls", [Chosen, Powered])
def test_truth_values_of_parameters(cls: Any, kind: str) -> None:
    """Values and gradients are torch's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, 3, 5, generator=generator)
    values = {name: torch.rand(SHAPES[kind], generator=generator) + 0.25 for name in cls.params}
    found: List[List[Tensor]] = []
    for backend in ("numba", "torch"):
        neuron = cls(**values, learn=tuple(values), backend=backend)
        leaf = x.clone().requires_grad_()
        out, end = neuron.run(leaf)
        (out.sum() + end["v"].sum()).backward()
        found.append([out, end["v"], *(p.grad for p in (leaf, *neuron.parameters()))])
    for ours, reference in zip(*found):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)
