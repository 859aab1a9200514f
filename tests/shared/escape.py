"""LIF with escape noise by hand, for given random numbers: spikes and gradients on any backend are held against it."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import torch

import spikecore as sc


class Drawn(torch.autograd.Function):
    """[u < p] with the derivative 1 by p."""

    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (u < p).to(p.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


VALUES = {"tau": 2.5, "threshold": 0.8, "v_reset": -0.1, "rate": 0.7, "delta": 0.3}


def loop(x: torch.Tensor, u: torch.Tensor, p: Dict[str, Any], reset: str, decay_input: bool) -> List[Any]:
    """Spikes, and how far the nearest random number was from its probability."""
    v, spikes, margin = p["v_reset"] + 0 * x[0], [], np.inf
    for now, number in zip(x, u):
        h = v + (now - (v - p["v_reset"])) / p["tau"] if decay_input else v - (v - p["v_reset"]) / p["tau"] + now
        chance = 1 - torch.exp(-p["rate"] * torch.exp((h - p["threshold"]) / p["delta"]))
        z = Drawn.apply(chance, number)
        margin = min(margin, float((chance - number).detach().abs().min()))
        v = {"hard": z * p["v_reset"] + (1 - z) * h, "soft": h - z * p["threshold"], "none": h}[reset]
        spikes.append(z)
    return [torch.stack(spikes), margin]


def check_escape(backend: str, reset: str, decay_input: bool = True, device: str = "cpu") -> None:
    """Spikes of a backend are those of the loop in float64 on the CPU, gradients agree to rounding."""
    generator = torch.Generator().manual_seed(1)
    x = 4.0 * torch.rand(11, 4, 7, generator=generator) - 1.0
    neuron: Any = sc.stochastic.EscapeNoise(
        **VALUES, reset=reset, decay_input=decay_input, learn=tuple(VALUES), bounds=None, backend=backend
    ).to(device)
    neuron.generator = torch.Generator().manual_seed(0)
    (u,) = neuron.draw(x)
    values = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in VALUES.items()}
    wide = x.double().requires_grad_()
    right, margin = loop(wide, u.double(), values, reset, decay_input)
    assert margin > 1e-6, "a random number is too near to its probability for float32: take another seed"
    cotangent = torch.cos(torch.arange(x.numel())).view(x.shape)
    leaf = x.clone().to(device).requires_grad_()
    neuron.generator.manual_seed(0)
    found = neuron(leaf)
    assert torch.equal(found.double().cpu(), right)
    assert 0.1 < found.mean() < 0.9
    found.backward(cotangent.to(device))
    right.backward(cotangent.double())
    torch.testing.assert_close(leaf.grad.double().cpu(), wide.grad, rtol=1e-4, atol=1e-4)
    for name, value in values.items():
        grad = getattr(neuron, name).grad.double().cpu()
        torch.testing.assert_close(grad, value.grad, rtol=1e-3, atol=1e-3, msg=name)
