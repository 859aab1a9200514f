"""Neurons with feedback and surrogates of snnTorch 1.0 that are not public, in the order in which it computes them.

What comes back is added last, ``a i + x + fed``: with it as a part of the input, sums would be rounded differently.
``alpha`` and ``beta`` are limited to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Tuple

from spikecore.lang import ops
from spikecore.neurons import Leaky, SynapticLeaky
from spikecore.surrogate import Surrogate


class RLeaky(Leaky):
    """``u' = b u + x + fed``, then ``- R threshold`` (soft) or ``- R u'`` (hard); ``fed`` is what came back."""

    inputs = ("x", "fed")

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = self.fired(s.v, p)
        u = self.less(ops.clamp(p.beta, 0.0, 1.0) * s.v + x.x + x.fed, r, p)
        z, v = self.fire(u, r, p)
        return z, {"v": v}


class RSynaptic(SynapticLeaky):
    """:class:`SynapticLeaky` with ``i' = a i + x + fed``; ``fed`` is what came back."""

    inputs = ("x", "fed")

    def current(self, x: Any, s: Any, p: Any) -> Any:
        return ops.clamp(p.alpha, 0.0, 1.0) * s.i + x.x + x.fed


@dataclass(frozen=True)
class Heaviside(Surrogate):
    """1 above the threshold, else 0."""

    def derivative(self, u: Any) -> Any:
        return ops.where(u > 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Signed(Surrogate):
    """snnTorch's ``triangular``, which is none: ``threshold`` below the threshold, ``-threshold`` from there on."""

    threshold: float = 1.0

    def derivative(self, u: Any) -> Any:
        return ops.where(u >= 0.0, -self.threshold, self.threshold)


@dataclass(frozen=True)
class SpikeRateEscape(Surrogate):
    """``slope exp(-beta |u - 1|)`` (Gerstner and Kistler, 2002)."""

    beta: float = 1.0
    slope: float = 25.0
    positive: ClassVar[Tuple[str, ...]] = ("beta",)

    def derivative(self, u: Any) -> Any:
        return self.slope * ops.exp(-self.beta * ops.abs(u - 1.0))


@dataclass(frozen=True)
class SparseFastSigmoid(Surrogate):
    """``1 / (1 + slope |u|)^2`` for ``u > B``, else 0 (Perez-Nieves and Goodman, 2021)."""

    slope: float = 25.0
    B: float = 1.0
    positive: ClassVar[Tuple[str, ...]] = ("slope",)

    def derivative(self, u: Any) -> Any:
        w = 1.0 + self.slope * ops.abs(u)
        return ops.where(u > self.B, 1.0 / (w * w), 0.0)


@dataclass(frozen=True)
class NoGradient(Surrogate):
    """0 everywhere, as with ``surrogate_disable=True``."""

    def derivative(self, u: Any) -> Any:
        return 0.0
