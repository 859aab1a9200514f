"""Optimizers run on the emulated device and on the host, on the same weights and gradients."""

from __future__ import annotations

import torch
from torch import nn

from poptorch_emulator.update import Updater


def made(kind, params, **keywords):
    """An optimiser; SGD has no default for its learning rate in PopTorch."""
    return kind(params, **{"lr": 0.05, **keywords} if issubclass(kind, torch.optim.SGD) else keywords)


def weights(dtype=torch.float32, seed=0):
    """Three parameters by name."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (5, 7), "b": (7,), "c": (3, 2, 4)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for name, shape in shapes.items()}


def gradients(step, like):
    """Those of one step, in the dtype of the parameters."""
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(w.shape, generator=generator, dtype=w.dtype) for name, w in like.items()}


class Device:
    """An updater, and the memory that it changes."""

    def __init__(self, optimizer, params, hyperparameters=None):
        self.weights = {name: value.detach().clone() for name, value in params.items() if value.requires_grad}
        self.updater = Updater(optimizer, params, self.weights, hyperparameters)

    def run(self, steps):
        for step in steps:
            self.updater.update(gradients(step, self.weights))
        return self


def host(optimizer, params, steps):
    """The same with ``optimizer.step()``."""
    for step in steps:
        for name, gradient in gradients(step, params).items():
            params[name].grad = gradient
        optimizer.step()
    return params


def error(got, expected):
    """Relative to the largest number."""
    return max(float((got[name] - w.detach()).abs().max() / w.detach().abs().max()) for name, w in expected.items())
