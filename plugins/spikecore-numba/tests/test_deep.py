"""Programs that are too deep for one expression of Python."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch

import spikecore as sc


class Deep(sc.Neuron):
    """Hundreds of operations, one in the other, of inputs and of parameters alone."""

    states = {"v": 0.0}
    params = {"a": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        y, c = x, p.a
        for k in range(220):
            y = y * 0.5 + s.v
            c = c * 0.25 + p.a if k < 60 else c
        return y, {"v": x * c}


def test_a_deep_program_compiles() -> None:
    """Values and gradients are torch's; Python's parser stops at 200 parentheses."""
    x, a = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0.25, 0.5, 0.75])
    found = []
    for backend in ("numba", "torch"):
        neuron = Deep(a=a, learn=("a",), backend=backend)
        leaf = x.clone().requires_grad_()
        out, end = neuron.run(leaf)
        (out.sum() + end["v"].sum()).backward()
        found.append([out, end["v"], leaf.grad, neuron.a.grad])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs)
