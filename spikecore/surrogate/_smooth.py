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
    "NonzeroSignLogAbs",
    "PiecewiseExp",
    "QPseudoSpike",
    "Sigmoid",
    "SoftSign",
    "SquarewaveFourier",
    "SuperSpike",
]

_PI = math.pi


@dataclass(frozen=True)
class ATan(Surrogate):
    """``a/2 / (1 + (pi/2 a u)^2)`` (Fang et al., 2021). Primitive ``atan(pi/2 a u)/pi + 1/2``."""

    alpha: float = 2.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = (_PI / 2 * self.alpha) * u
        return (self.alpha / 2) / (1.0 + w * w)

    def primitive(self, u: Tensor) -> Tensor:
        return torch.atan(_PI / 2 * self.alpha * u) / _PI + 0.5


@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """``a s (1 - s)`` with ``s = sigmoid(a u)``. Primitive ``sigmoid(a u)``."""

    alpha: float = 4.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        s = ops.sigmoid(self.alpha * u)
        return self.alpha * (1.0 - s) * s

    def primitive(self, u: Tensor) -> Tensor:
        return torch.sigmoid(self.alpha * u)


@dataclass(frozen=True)
class FastSigmoid(Surrogate):
    """``1 / (1 + k|u|)^2`` (Zenke and Ganguli, 2018, as in snnTorch). Primitive ``u / (1 + k|u|)``, no step."""

    slope: float = 25.0
    positive = ("slope",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 + self.slope * ops.abs(u)
        return 1.0 / (w * w)

    def primitive(self, u: Tensor) -> Tensor:
        return u / (1.0 + self.slope * u.abs())


@dataclass(frozen=True)
class SuperSpike(Surrogate):
    """``a / (1 + |u|)^2`` (Zenke and Ganguli, 2018, as in SpikingJelly)."""

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 + ops.abs(u)
        return self.alpha / (w * w)

    def primitive(self, u: Tensor) -> Tensor:
        return self.alpha * u / (1.0 + u.abs())


@dataclass(frozen=True)
class PiecewiseExp(Surrogate):
    """``a/2 exp(-a|u|)`` (Shrestha and Orchard, 2018)."""

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return (self.alpha / 2) * ops.exp(-self.alpha * ops.abs(u))

    def primitive(self, u: Tensor) -> Tensor:
        tail = 0.5 * torch.exp(-self.alpha * u.abs())
        return torch.where(u < 0, tail, 1.0 - tail)


@dataclass(frozen=True)
class SoftSign(Surrogate):
    """``1 / (2a (1/a + |u|)^2)``. Primitive ``(a u / (1 + a|u|) + 1) / 2``."""

    alpha: float = 2.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 / self.alpha + ops.abs(u)
        return 1.0 / ((2.0 * self.alpha) * (w * w))

    def primitive(self, u: Tensor) -> Tensor:
        return (self.alpha * u / (1.0 + self.alpha * u.abs()) + 1.0) / 2


@dataclass(frozen=True)
class Erf(Surrogate):
    """``a / sqrt(pi) exp(-(a u)^2)``. Primitive ``erfc(-a u) / 2``."""

    alpha: float = 2.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        w = self.alpha * u
        return (self.alpha / math.sqrt(_PI)) * ops.exp(-(w * w))

    def primitive(self, u: Tensor) -> Tensor:
        return torch.erfc(-self.alpha * u) / 2


@dataclass(frozen=True)
class NonzeroSignLogAbs(Surrogate):
    """``1 / (1/a + |u|)``. Primitive ``sign(u) log(a|u| + 1)``, which is no step."""

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return 1.0 / (1.0 / self.alpha + ops.abs(u))

    def primitive(self, u: Tensor) -> Tensor:
        return torch.sign(u) * torch.log1p(self.alpha * u.abs())


@dataclass(frozen=True)
class SquarewaveFourier(Surrogate):
    """``4/T sum_i cos((2i-1) 2 pi u/T)`` for ``i = 1..n-1``: a square wave of period T by its Fourier series.

    ``n`` counts as in SpikingJelly: ``n - 1`` terms are summed.
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
    """``(1 + 2|u|/(a-1))^-a`` with ``a > 1`` (Herranz-Celotti and Rouat, 2022)."""

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
