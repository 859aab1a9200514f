"""Surrogate derivatives: what stands for the derivative of the spike.

A spike is ``z = [u >= 0]`` with ``u`` the membrane potential minus the threshold. Its derivative is zero almost
everywhere, so the backward pass uses ``derivative(u)`` instead. Rules of this module:

- A surrogate is one formula in the language (`sc.ops`, ``+ - * /``); every backend compiles it from there.
- It is finite for every finite ``u``, at zero and at the tails.
- ``primitive(u)`` is a function with that derivative, on tensors, where a closed form exists. Nothing but plots and
  tests needs it: the forward pass is always the step.
- A surrogate is a value: equal parameters make equal surrogates; it hashes, prints and pickles, and once a neuron has
  it, it never changes. To anneal, give the neuron a new one: its floats are arguments of kernels, which stay the same.

Your own::

    @dataclass(frozen=True)
    class Box(sc.surrogate.Surrogate):
        width: float = 1.0

        def derivative(self, u):
            return sc.ops.where(abs(u) < self.width / 2, 1.0 / self.width, 0.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from numbers import Real
from typing import Any, ClassVar, Tuple

import torch
from torch import Tensor

from spikecore.lang import ops

_PI = math.pi


class Surrogate:
    """Base class. A subclass writes :meth:`derivative`; a frozen dataclass gives it equality and a readable name."""

    #: Parameters that must be above zero.
    positive: ClassVar[Tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        held: Any = fields(self) if is_dataclass(self) else ()
        # what has no number as its default may be anything: a subclass holds what it likes
        for name in [field.name for field in held if isinstance(field.default, (int, float))]:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{type(self).__name__}: {name}={value!r} must be a finite number")
            if not math.isfinite(value):
                raise ValueError(f"{type(self).__name__}: {name}={value!r} must be a finite number")
            if name in self.positive and value <= 0:
                raise ValueError(f"{type(self).__name__}: {name}={value!r} must be above 0")
        # floats are arguments of kernels, so that another value compiles nothing; whole numbers are part of a program
        for name in [field.name for field in held if isinstance(field.default, float)]:
            object.__setattr__(self, name, float(getattr(self, name)))

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_in_use"):
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot change, since programs were made from it; "
                "give the neuron a new one: neuron.surrogate = ..."
            )
        super().__setattr__(name, value)

    def derivative(self, u: Any) -> Any:
        """The stand-in for ``dz/du``, in the language."""
        raise NotImplementedError(f"{type(self).__name__} must define derivative(self, u)")

    def primitive(self, u: Tensor) -> Tensor:
        """A function of a tensor whose derivative is :meth:`derivative`."""
        raise NotImplementedError(f"{type(self).__name__} has no primitive in closed form")


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
class PiecewiseQuadratic(Surrogate):
    """A triangle of area 1: ``a - a^2 |u|`` for ``|u| <= 1/a``, else 0 (Esser et al., 2016)."""

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
class Rectangular(Surrogate):
    """``a`` for ``|u| < 1/(2a)``, else 0: a box of area 1 (Wu et al., 2018)."""

    alpha: float = 1.0
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return ops.where(ops.abs(u) < 0.5 / self.alpha, self.alpha, 0.0)

    def primitive(self, u: Tensor) -> Tensor:
        return torch.clamp(self.alpha * u + 0.5, 0.0, 1.0)


@dataclass(frozen=True)
class Triangular(Surrogate):
    """``gamma max(0, 1 - |u|/width)`` with a dampening factor (Bellec et al., 2018)."""

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
    """``1/(2w)`` for ``|u| < w``, else ``c``."""

    w: float = 1.0
    c: float = 0.01
    positive = ("w",)

    def derivative(self, u: Any) -> Any:
        return ops.where(ops.abs(u) < self.w, 1.0 / (2.0 * self.w), self.c)

    def primitive(self, u: Tensor) -> Tensor:
        inside = torch.clamp(u, -self.w, self.w)
        return inside / (2.0 * self.w) + 0.5 + self.c * (u - inside)


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
class S2NN(Surrogate):
    """``a s (1 - s)``, ``s = sigmoid(a u)``, below threshold; ``b / (u + 1)`` above (Suetake et al., 2022)."""

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
class QPseudoSpike(Surrogate):
    """``(1 + 2|u|/(a-1))^-a`` with ``a > 1`` (Herranz-Celotti and Rouat, 2022)."""

    alpha: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 1:
            raise ValueError(f"QPseudoSpike: alpha={self.alpha!r} must be above 1")

    def derivative(self, u: Any) -> Any:
        return ops.power(1.0 + (2.0 / (self.alpha - 1.0)) * ops.abs(u), -self.alpha)

    def primitive(self, u: Tensor) -> Tensor:
        tail = 0.5 * (1.0 + 2.0 / (self.alpha - 1.0) * u.abs()) ** (1.0 - self.alpha)
        return torch.where(u < 0, tail, 1.0 - tail)


@dataclass(frozen=True)
class LeakyKReLU(Surrogate):
    """``k`` for ``u >= 0``, else ``leak``."""

    leak: float = 0.0
    k: float = 1.0

    def derivative(self, u: Any) -> Any:
        return ops.where(u >= 0.0, self.k, self.leak)

    def primitive(self, u: Tensor) -> Tensor:
        return torch.where(u >= 0, self.k * u, self.leak * u)


@dataclass(frozen=True)
class FakeNumericalGradient(Surrogate):
    """``min(1/|u|, a)``: the slope of the step seen from ``u``."""

    alpha: float = 0.3
    positive = ("alpha",)

    def derivative(self, u: Any) -> Any:
        return ops.minimum(1.0 / ops.abs(u), self.alpha)


@dataclass(frozen=True)
class LogTailedReLU(Surrogate):
    """``a`` for ``u <= 0``, 1 up to ``u = 1``, ``1/u`` above (Cai et al., 2017)."""

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
