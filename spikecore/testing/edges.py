"""What holds at NaN, infinities, ties, zeros of both signs and subnormals: every operation, value and gradient.

The cases ``edges/*`` of the conformance suite as functions, one operation at a time, and paths along which a cotangent
of 0 meets an infinite derivative: zero times infinity is NaN, and what is 0 by definition is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import spikecore as sc
from spikecore._plugins.registry import default_registry
from spikecore.testing._cases.edges import GRADIENTS, gradient, value
from spikecore.testing._context import Context
from spikecore.testing._edge_table import GROUPS, TABLE

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


class _Paths(sc.Neuron):
    """Next state and output with an infinite derivative; a state that nothing depends on."""

    states = {"v": 0.0, "dead": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """``v`` goes to the output of the next step, ``dead`` nowhere."""
        return s.v, {"v": s.v * 0.5 + sc.ops.sqrt(x), "dead": sc.ops.sqrt(x) + s.dead}


class _Flat(sc.Neuron):
    """What is 0 by definition, before an infinite derivative."""

    params = {"w": 1.0, "unused": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """Only ``x`` itself carries gradient; ``w`` reaches nothing."""
        root = sc.ops.sqrt(x)
        flat = sc.ops.floor(root) + sc.ops.round(root) + sc.ops.sign(root) + sc.ops.detach(root * p.w)
        return (flat + x, root * p.unused), {}


class _Floor(sc.Neuron):
    """An output that no gradient flows through."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """No state."""
        return sc.ops.floor(x), {}


class _Negated(sc.Neuron):
    """0 or 1, which a compiler might compute as an integer, with the sign changed."""

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """-0 where the choice is 0."""
        return (-self.spike(x), -1.0 * sc.ops.sign(x), -sc.ops.where(x > 0.0, 1.0, 0.0)), {}


class _Start(sc.Neuron):
    """A state that starts at a parameter, and one that no step reads."""

    states = {"v": "start", "last": "other"}
    params = {"start": 1.0, "other": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """Leaky integration; ``last`` is the input of the step."""
        return s.v, {"v": s.v * 0.5 + x, "last": x * 1.0}


def check_paths(backend: str, device: str = "cpu") -> None:
    """Raise AssertionError where a gradient is there that should not be, or is missing."""
    x = torch.tensor([[4.0, 0.0], [4.0, 4.0], [4.0, 0.0]], device=device).requires_grad_()
    out = _Paths(backend=backend)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    # v after the last step is asked for by nobody: its cotangent is 0, and 0 times infinity is NaN
    _rows("a final state that nobody asked for", backend, grad, [[0.375, np.inf], [0.25, 0.25], [0.0, np.nan]])
    neuron = _Flat(backend=backend, learn=("w", "unused")).to(device)
    flat, _ = neuron(x)
    leaves = [x, neuron.get_parameter("w"), neuron.get_parameter("unused")]
    grads = torch.autograd.grad(flat.sum(), leaves, allow_unused=True)
    _rows("floor, round, sign and detach", backend, grads[0], [[1.0, 1.0]] * 3)
    for name, grad in zip(("w", "unused"), grads[1:]):
        _rows(f"parameter {name}, which no path leads to,", backend, grad, 0.0)
    start = _Start(backend=backend, learn=("start", "other")).to(device)
    leaves = [start.get_parameter("start"), start.get_parameter("other")]
    for has_state, expected in ((False, 2.0 * 1.75), (True, 0.0)):
        state = {"v": torch.zeros(2, device=device), "last": torch.zeros(2, device=device)} if has_state else None
        out, end = start.run(x, state=state)
        grads = torch.autograd.grad(out.sum() + end["last"].sum(), leaves, allow_unused=True)
        _rows("a parameter that states start from", backend, grads[0], expected)
        _rows("a parameter that a state starts from which no step reads", backend, grads[1], 0.0)
    (constant,) = torch.autograd.grad(_Floor(backend=backend)(x).sum(), x)
    _rows("an output that is 0 by definition", backend, constant, [[0.0, 0.0]] * 3)

    outs = _Negated(backend=backend)(torch.tensor([[-2.0, 0.0, 2.0]], device=device))
    zeros = [[-0.0, -1.0, -1.0], [1.0, -0.0, -1.0], [-0.0, -0.0, -1.0]]
    for what, out, row in zip(("spike", "sign", "choice"), outs, zeros):
        if [str(value) for value in out[0].tolist()] != [str(value) for value in row]:
            raise AssertionError(f"{backend}: a negated {what} is {out[0].tolist()}, should be {row}")


def _rows(what: str, backend: str, grad: Any, expected: Any) -> None:
    if grad is None:
        raise AssertionError(f"{backend}: the gradient of {what} is None, should be {expected}")
    if not np.array_equal(np.array(expected, np.float32), grad.cpu().numpy(), equal_nan=True):
        raise AssertionError(f"{backend}: the gradient of {what} is {grad.tolist()}, should be {expected}")
