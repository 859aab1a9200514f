"""Contract at NaN, infinities, ties, zeros of both signs and subnormals: every operation, value and gradient.

The cases ``edges/*`` of the conformance suite as functions, one operation at a time, and what is 0 by definition before
an infinite derivative, where zero times infinity would be NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import spikecore as sc
from spikecore.plugins.registry import default_registry
from spikecore.testing._cases.edges import GRADIENTS, gradient, value
from spikecore.testing._context import Context
from spikecore.testing.edge_table import GROUPS, TABLE

__all__ = ["TABLE", "check_edges", "check_paths"]


def check_edges(backend: str, name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
    """Raise AssertionError where a backend differs from the table at an operation, in value or gradient."""
    context = Context(default_registry().get(backend, "the table of operations"), device)
    wide = dtype == torch.float64
    group = next(group for group, edges in GROUPS.items() if name in [edge.name for edge in edges])
    value(context, group, name, wide)
    for kind in GRADIENTS:
        gradient(context, group, name, kind, wide)


# -- paths


class _Flat(sc.Neuron):
    """Neuron with operations of derivative 0 behind an infinite derivative."""

    params = {"w": 1.0, "unused": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """Only ``x`` itself carries gradient; ``w`` reaches nothing."""
        root = sc.ops.sqrt(x)
        flat = sc.ops.floor(root) + sc.ops.round(root) + sc.ops.sign(root) + sc.ops.detach(root * p.w)
        return (flat + x, root * p.unused), {}


class _Negated(sc.Neuron):
    """0 or 1, which a compiler might compute as an integer, with the sign changed."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """-0 where the choice is 0."""
        return (-self.spike(x), -1.0 * sc.ops.sign(x), -sc.ops.where(x > 0.0, 1.0, 0.0)), {}


def check_paths(backend: str, device: str = "cpu") -> None:
    """Raise AssertionError where what is 0 by definition has another gradient, or a negated zero the wrong sign."""
    x = torch.tensor([[4.0, 0.0], [4.0, 4.0], [4.0, 0.0]], device=device).requires_grad_()
    neuron = _Flat(backend=backend, learn=("w", "unused")).to(device)
    flat, _ = neuron(x)
    leaves = [x, neuron.get_parameter("w"), neuron.get_parameter("unused")]
    grads = torch.autograd.grad(flat.sum(), leaves, allow_unused=True)
    _rows("floor, round, sign and detach", backend, grads[0], [[1.0, 1.0]] * 3)
    for name, grad in zip(("w", "unused"), grads[1:]):
        _rows(f"parameter {name}, which no path leads to,", backend, grad, 0.0)
    outs = _Negated(backend=backend)(torch.tensor([[-2.0, 0.0, 2.0]], device=device))
    zeros = [[-0.0, -1.0, -1.0], [1.0, -0.0, -1.0], [-0.0, -0.0, -1.0]]
    for what, out, row in zip(("spike", "sign", "choice"), outs, zeros):
        if [str(value) for value in out[0].tolist()] != [str(value) for value in row]:
            raise AssertionError(f"{backend}: a negated {what} is {out[0].tolist()}, should be {row}")


def _rows(what: str, backend: str, grad: Any, expected: Any) -> None:
    values = np.zeros_like(expected, np.float32) if grad is None else grad.cpu().numpy()
    if not np.array_equal(np.array(expected, np.float32), values, equal_nan=True):
        raise AssertionError(f"{backend}: the gradient of {what} is {values.tolist()}, should be {expected}")
