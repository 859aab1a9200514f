"""Surrogates of several pieces, with corners or jumps between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikecore.lang import ops
from spikecore.surrogate._base import Surrogate

__all__ = [
    "S2NN",
    "FakeNumericalGradient",
    "LeakyKReLU",
    "LogTailedReLU",
    "PiecewiseLeakyReLU",
    "PiecewiseQuadratic",
    "Rectangular",
    "StraightThrough",
    "Triangular",
]


@dataclass(frozen=True)
class PiecewiseQuadratic(Surrogate):
    """A triangle of area 1: ``alpha - alpha^2 |u|`` for ``|u| <= 1/alpha``, else 0 (Esser et al., 2016).

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        d = ops.abs(u)
        return ops.where(d > 1.0 / self.alpha, 0.0, self.alpha - (self.alpha * self.alpha) * d)

    def primitive(self, u: Tensor) -> Tensor:
        a = self.alpha
        w = torch.clamp(u, -1.0 / a, 1.0 / a)
        return -(a * a) / 2 * w.abs() * w + a * w + 0.5


@dataclass(frozen=True)
class Rectangular(Surrogate):
    """A box of area 1: ``alpha`` for ``|u| < 1/(2 alpha)``, else 0 (Wu et al., 2018).

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return ops.where(ops.abs(u) < 0.5 / self.alpha, self.alpha, 0.0)

    def primitive(self, u: Tensor) -> Tensor:
        return torch.clamp(self.alpha * u + 0.5, 0.0, 1.0)


@dataclass(frozen=True)
class Triangular(Surrogate):
    """``gamma max(0, 1 - |u|/width)`` with a dampening factor (Bellec et al., 2018).

    gamma: height at the threshold, in 1 / potential; above 0.
    width: half the width of the base, in the unit of the potential; above 0.
    """

    gamma: float = 0.3
    width: float = 1.0
    positive = ("gamma", "width")

    def derivative(self, u: Any) -> Any:
        return self.gamma * ops.maximum(0.0, 1.0 - ops.abs(u) / self.width)

    def primitive(self, u: Tensor) -> Tensor:
        w = torch.clamp(u / self.width, -1.0, 1.0)
        return self.gamma * self.width * (w - w * w.abs() / 2 + 0.5)


@dataclass(frozen=True)
class PiecewiseLeakyReLU(Surrogate):
    """``1/(2w)`` for ``|u| < w``, else ``c``.

    w: half the width of the middle piece, in the unit of the potential; above 0.
    c: height outside, in 1 / potential.
    """

    w: float = 1.0
    c: float = 0.01
    positive = ("w",)

    def derivative(self, u: Any) -> Any:
        return ops.where(ops.abs(u) < self.w, 1.0 / (2.0 * self.w), self.c)

    def primitive(self, u: Tensor) -> Tensor:
        inside = torch.clamp(u, -self.w, self.w)
        return inside / (2.0 * self.w) + 0.5 + self.c * (u - inside)


@dataclass(frozen=True)
class S2NN(Surrogate):
    """``alpha s (1 - s)``, ``s = sigmoid(alpha u)``, below threshold; ``beta / (u + 1)`` above (Suetake et al., 2022).

    alpha: steepness below the threshold, in 1 / potential; above 0.
    beta: height of the tail above the threshold, in 1 / potential; above 0.
    """

    alpha: float = 4.0
    beta: float = 1.0
    positive = ("alpha", "beta")

    def derivative(self, u: Any) -> Any:
        s = ops.sigmoid(self.alpha * u)
        # |u| equals u where this branch counts, and keeps the other from dividing by zero
        return ops.where(u < 0.0, self.alpha * (1.0 - s) * s, self.beta / (ops.abs(u) + 1.0))

    def primitive(self, u: Tensor) -> Tensor:
        return torch.where(u < 0, torch.sigmoid(self.alpha * u), self.beta * torch.log1p(u.clamp(min=0.0)) + 0.5)


@dataclass(frozen=True)
class LeakyKReLU(Surrogate):
    """``k`` for ``u >= 0``, else ``leak``.

    leak: height below the threshold, in 1 / potential.
    k: height above the threshold, in 1 / potential.
    """

    leak: float = 0.0
    k: float = 1.0

    def derivative(self, u: Any) -> Any:
        return ops.where(u >= 0.0, self.k, self.leak)

    def primitive(self, u: Tensor) -> Tensor:
        return torch.where(u >= 0, self.k * u, self.leak * u)


@dataclass(frozen=True)
class FakeNumericalGradient(Surrogate):
    """``min(1/|u|, alpha)``: the slope of the step seen from ``u``.

    alpha: height at the threshold, in 1 / potential; above 0.
    """

    alpha: float = 0.3
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return ops.minimum(1.0 / ops.abs(u), self.alpha)


@dataclass(frozen=True)
class LogTailedReLU(Surrogate):
    """``alpha`` for ``u <= 0``, 1 up to ``u = 1``, ``1/u`` above (Cai et al., 2017).

    alpha: height below the threshold, in 1 / potential.
    """

    alpha: float = 0.0

    def derivative(self, u: Any) -> Any:
        return ops.where(u <= 0.0, self.alpha, 1.0 / ops.maximum(u, 1.0))

    def primitive(self, u: Tensor) -> Tensor:
        above = torch.log(u.clamp(min=1.0)) + u.clamp(max=1.0)
        return torch.where(u <= 0, self.alpha * u, above)


@dataclass(frozen=True)
class StraightThrough(Surrogate):
    """1 everywhere (Bengio et al., 2013)."""

    def derivative(self, u: Any) -> Any:
        return 1.0

    def primitive(self, u: Tensor) -> Tensor:
        return u
