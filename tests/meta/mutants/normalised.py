"""Batch normalisation in front of a neuron: what its statistics are, and what their gradient is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mutants.registry import mutant
from mutants.use import drawn, lif
from spikecore.layers import NormNeuron
from spikecore.testing._loopback import Loop


def normed(backend: str) -> Any:
    """Two calls of a layer in training, their gradients, and a call in eval mode."""
    norm = nn.BatchNorm1d(3)
    layer = NormNeuron(norm, lif()(backend))
    x, y = (drawn((6, 4, 3), seed).requires_grad_() for seed in range(2))
    out = layer(x)
    (out * drawn(out.shape, 5) + 2 * layer(1.5 * y + 1.0)).sum().backward()
    found = [x.grad, y.grad, *(parameter.grad for parameter in layer.parameters()), *layer.buffers()]
    layer.eval()
    return [value.detach().clone() for value in [*found, layer(x)]]


def shortcut(backend: str) -> Any:
    """One call of a layer with a shortcut."""
    layer = NormNeuron(nn.BatchNorm1d(3), lif()(backend), shortcut="before")
    return layer(drawn((6, 4, 3)), drawn((6, 4, 3), 1)).detach()


@mutant("normalised/training-lif", "normalised/image", says=("statistics are taken for constants",), shows=normed)
class StatisticsConstant(Loop):
    """The gradient lacks the parts through mean and variance."""

    def statistics(self, x, params):
        return params


class Changed(Loop):
    """Statistics that are changed before they are used."""

    def statistics(self, x, params):
        found = dict(zip(self.program.params, super().statistics(x, params)))
        if self.program.statistics:
            mean, rstd = self.program.statistics[:2]
            given = dict(zip(self.program.params, params))
            found[mean], found[rstd] = self.change(given[mean], found[mean], given[rstd], found[rstd])
        return tuple(found[name] for name in self.program.params)


@mutant("normalised/training-lif", "normalised/learnt", shows=normed)
class MeanWithoutGradient(Changed):
    """The sum of the cotangents over a channel is left out."""

    def change(self, given_mean, mean, given_rstd, rstd):
        return given_mean, rstd


@mutant("normalised/training-li", "normalised/shortcut", shows=normed)
class VarianceWithoutGradient(Changed):
    """The sum of cotangent times normalised value over a channel is left out."""

    def change(self, given_mean, mean, given_rstd, rstd):
        return mean, given_rstd


@mutant("normalised/wide", "normalised/channels-last", shows=normed)
class SumsOfHalf(Changed):
    """Sums over a channel that miss half of it."""

    def change(self, given_mean, mean, given_rstd, rstd):
        return (mean + mean.detach()) / 2, (rstd + rstd.detach()) / 2


@mutant("normalised/running", shows=normed)
class StaleStatistic(Changed):
    """The mean of the first call normalises every later one."""

    kept = None

    def change(self, given_mean, mean, given_rstd, rstd):
        if self.kept is None:
            self.kept = mean.detach()
        return self.kept + (mean - mean.detach()), rstd


@mutant("normalised/eval", shows=normed)
class BatchInEvaluation(Loop):
    """In eval mode the statistics of the batch normalise, not the running ones."""

    def statistics(self, x, params):
        found = dict(zip(self.program.params, super().statistics(x, params)))
        if "norm_mean" in found and not self.program.statistics:
            like = found["norm_mean"]
            over = [0, *(d + 1 for d, size in enumerate(like.shape) if size == 1)]
            found["norm_mean"] = 0.5 * (like + x.detach().mean(over, keepdim=True).squeeze(0)) + 0.25
        return tuple(found[name] for name in self.program.params)


@mutant("normalised/shortcut", "normalised/shortcut-image", shows=shortcut)
class ShortcutForgotten(Loop):
    """The second input is not read."""

    def read(self, x, t):
        step = super().read(x, t)
        return step if self.program.inputs == ("x",) or x is not self.second else torch.zeros_like(step)

    def __call__(self, inputs, state, params, record):
        self.second = inputs[-1] if self.program.statistics and len(inputs) > 1 else None
        return super().__call__(inputs, state, params, record)
