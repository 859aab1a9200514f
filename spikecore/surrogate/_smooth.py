"""Surrogates of one formula, for both sides of the threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikecore.lang import ops
from spikecore.surrogate._base import Surrogate, is_given

__all__ = [
    "ATan",
    "Erf",
    "FastSigmoid",
    "MultiGaussian",
    "NonzeroSignLogAbs",
    "PiecewiseExp",
    "QPseudoSpike",
    "Sigmoid",
    "SoftSign",
    "SquarewaveFourier",
    "Super",
    "SuperSpike",
]

_PI = math.pi


@dataclass(frozen=True)
class ATan(Surrogate):
    """``alpha/2 / (1 + (pi/2 alpha u)^2)`` (Fang et al., 2021). Primitive ``atan(pi/2 alpha u)/pi + 1/2``.

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 2.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = (_PI / 2 * self.alpha) * u
        return (self.alpha / 2) / (1.0 + w * w)

    def primitive(self, u: Tensor) -> Tensor:
        return torch.atan(_PI / 2 * self.alpha * u) / _PI + 0.5


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """``alpha s (1 - s)`` with ``s = sigmoid(alpha u)``. Primitive ``sigmoid(alpha u)``.

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 4.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        s = ops.sigmoid(self.alpha * u)
        return self.alpha * (1.0 - s) * s

    def primitive(self, u: Tensor) -> Tensor:
        return torch.sigmoid(self.alpha * u)


@dataclass(frozen=True)
class FastSigmoid(Surrogate):
    """``1 / (1 + slope |u|)^2`` (Zenke and Ganguli, 2018). Primitive ``u / (1 + slope |u|)``, no step.

    This is the formula of the paper, there called SuperSpike; snnTorch's ``fast_sigmoid``, Norse's :class:`Super`.

    slope: steepness, in 1 / potential; above 0.
    """

    slope: float = 25.0
    positive = ("slope",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 + self.slope * ops.abs(u)
        return 1.0 / (w * w)

    def primitive(self, u: Tensor) -> Tensor:
        return u / (1.0 + self.slope * u.abs())


@dataclass(frozen=True)
class SuperSpike(Surrogate):
    """``alpha / (1 + |u|)^2``, SpikingJelly's ``SuperSpike``. Primitive ``alpha u / (1 + |u|)``.

    ``alpha`` is a factor of the gradient and no steepness. The formula of Zenke and Ganguli (2018) and Norse's
    ``SuperSpike`` is :class:`Super`: with its steepness of 100 as ``alpha`` gradients are too large by far.

    alpha: height at the threshold, in 1 / potential; above 0.
    """

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 + ops.abs(u)
        return self.alpha / (w * w)

    def primitive(self, u: Tensor) -> Tensor:
        return self.alpha * u / (1.0 + u.abs())


@dataclass(frozen=True)
class Super(FastSigmoid):
    """``1 / (1 + slope |u|)^2``, Norse's ``method="super"``, there also called SuperSpike (Zenke and Ganguli, 2018).

    It is :class:`FastSigmoid` with Norse's steepness, which it calls ``alpha``, and not :class:`SuperSpike`, which is
    SpikingJelly's. In Norse 1.1.0 ``alpha`` has no effect, and the derivative is that of ``Super(1.0)``.

    slope: steepness, in 1 / potential; above 0.
    """

    slope: float = 100.0


@dataclass(frozen=True)
class MultiGaussian(Surrogate):
    """``gamma ((1 + h) N(u; 0, sigma) - h N(u; sigma, s sigma) - h N(u; -sigma, s sigma))`` (Yin et al., 2021).

    ``N(u; m, d) = exp(-((u - m) / d)^2 / 2) / (d sqrt(2 pi))``: a Gaussian with negative sides. sinabs has
    ``gamma = 1``, as ``grad_scale``.

    sigma: width of the middle, in the unit of the potential; above 0.
    h: height of the sides, without a unit.
    s: width of the sides, in widths of the middle; above 0.
    gamma: factor of the whole, without a unit.
    """

    sigma: float = 0.5
    h: float = 0.15
    s: float = 6.0
    gamma: float = 0.5
    positive = ("sigma", "s")

    def derivative(self, u: Any) -> Any:
        w = u / self.sigma
        middle, below, above = (ops.exp(-0.5 * (d * d)) for d in (w, (w + 1.0) / self.s, (w - 1.0) / self.s))
        scale = self.gamma / (math.sqrt(2.0 * _PI) * self.sigma)
        return scale * ((1.0 + self.h) * middle - (self.h / self.s) * (below + above))


@dataclass(frozen=True)
class PiecewiseExp(Surrogate):
    """``alpha/2 exp(-alpha |u|)`` (Shrestha and Orchard, 2018).

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return (self.alpha / 2) * ops.exp(-self.alpha * ops.abs(u))

    def primitive(self, u: Tensor) -> Tensor:
        tail = 0.5 * torch.exp(-self.alpha * u.abs())
        return torch.where(u < 0, tail, 1.0 - tail)


@dataclass(frozen=True)
class SoftSign(Surrogate):
    """``1 / (2 alpha (1/alpha + |u|)^2)``. Primitive ``(alpha u / (1 + alpha |u|) + 1) / 2``.

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 2.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 / self.alpha + ops.abs(u)
        return 1.0 / ((2.0 * self.alpha) * (w * w))

    def primitive(self, u: Tensor) -> Tensor:
        return (self.alpha * u / (1.0 + self.alpha * u.abs()) + 1.0) / 2


@dataclass(frozen=True)
class Erf(Surrogate):
    """``alpha / sqrt(pi) exp(-(alpha u)^2)``. Primitive ``erfc(-alpha u) / 2``.

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 2.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = self.alpha * u
        return (self.alpha / math.sqrt(_PI)) * ops.exp(-(w * w))

    def primitive(self, u: Tensor) -> Tensor:
        return torch.erfc(-self.alpha * u) / 2


@dataclass(frozen=True)
class NonzeroSignLogAbs(Surrogate):
    """``1 / (1/alpha + |u|)``. Primitive ``sign(u) log(alpha |u| + 1)``, which is no step.

    alpha: steepness, in 1 / potential; above 0.
    """

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return 1.0 / (1.0 / self.alpha + ops.abs(u))

    def primitive(self, u: Tensor) -> Tensor:
        return torch.sign(u) * torch.log1p(self.alpha * u.abs())


@dataclass(frozen=True)
class SquarewaveFourier(Surrogate):
    """``4/period sum_i cos((2i-1) 2 pi u/period)`` for ``i = 1..n-1``: a square wave by its Fourier series.

    n: one more than the terms of the series, as SpikingJelly counts; a whole number, 2 or more.
    period: period of the wave, in the unit of the potential; above 0.
    """

    n: int = 2
    period: float = 8.0
    positive = ("period",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n != int(self.n) or self.n < 2:
            raise ValueError(f"SquarewaveFourier: n={self.n!r} must be a whole number, 2 or more")

    def derivative(self, u: Any) -> Any:
        # within half a period of 0, so that a large u cannot overflow on its way to the cosine and a small one, of
        # either sign, stays as it is; turns beyond 1e30 are whole
        turn = ops.clamp(u / self.period, -1e30, 1e30)
        phase = turn - ops.floor(turn + 0.5)
        total: Any = ops.cos((2.0 * _PI) * phase)
        for i in range(2, int(self.n)):
            total = total + ops.cos(((2 * i - 1) * 2.0 * _PI) * phase)
        return (4.0 / self.period) * total

    def primitive(self, u: Tensor) -> Tensor:
        w = 2.0 * _PI / self.period
        odd = range(1, 2 * int(self.n) - 2, 2)
        return 0.5 + (2.0 / _PI) * torch.stack([torch.sin(k * w * u) / k for k in odd]).sum(0)


@dataclass(frozen=True)
class QPseudoSpike(Surrogate):
    """``(1 + 2 |u|/(alpha - 1))^-alpha`` (Herranz-Celotti and Rouat, 2022).

    alpha: exponent of the tails, a number without a unit; above 1.
    """

    alpha: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_given(self.alpha) and self.alpha <= 1:
            raise ValueError(f"QPseudoSpike: alpha={self.alpha!r} must be above 1")

    def derivative(self, u: Any) -> Any:
        return ops.power(1.0 + (2.0 / (self.alpha - 1.0)) * ops.abs(u), -self.alpha)

    def primitive(self, u: Tensor) -> Tensor:
        tail = 0.5 * (1.0 + 2.0 / (self.alpha - 1.0) * u.abs()) ** (1.0 - self.alpha)
        return torch.where(u < 0, tail, 1.0 - tail)
