"""Arguments of a step that are one value under two names."""

from __future__ import annotations

from typing import Any

import torch

import spikecore as sc


class Detached(sc.Neuron):
    """A parameter, and the same one without its gradient."""

    params = {"a": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        return x * p.a + sc.ops.detach(p.a), {}


def test_a_parameter_and_itself_detached_are_one_argument(device: str) -> None:
    """A step that takes both is a function of one of them."""
    x = torch.tensor([[1.0, 2.0]], device=device)
    neuron = Detached(learn=("a",), backend="triton").to(device)
    out = neuron(x)
    assert out.tolist() == [[4.0, 6.0]]
    out.sum().backward()
    assert neuron.a.grad.item() == 3.0
