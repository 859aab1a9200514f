"""Neurons with feedback and surrogates of snnTorch 1.0 that are not public, in the order in which it computes them.

All fire above the threshold, and reset one step later unless ``reset_delay=False``. ``R`` is whether the potential at
the start of the step was above the threshold; it carries no gradient. ``alpha`` and ``beta`` are limited to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Tuple

from spikecore._shell import checks
from spikecore.lang import ops
from spikecore.neuron import Neuron
from spikecore.surrogate import Surrogate


class Delayed(Neuron):
    """What these neurons share."""

    configuration = {**Neuron.configuration, "reset": checks.reset, "reset_delay": checks.flag}

    def __init__(self, *, reset: str, reset_delay: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.reset = reset
        self.reset_delay = reset_delay

    def fired(self, v: Any, p: Any) -> Any:
        """``R``."""
        return ops.detach(self.spike(v - p.threshold, strict=True))

    def fire(self, u: Any, r: Any, p: Any) -> Tuple[Any, Any]:
        """The spike, and the potential after it."""
        z = self.spike(u - p.threshold, strict=True)
        if self.reset_delay or self.reset == "none":
            return z, u
        late = z - r
        return z, u - late * (p.threshold if self.reset == "soft" else u)

    def less(self, u: Any, r: Any, p: Any) -> Any:
        """The new potential, reset by the spike of the step before."""
        if self.reset == "none":
            return u
        return u - r * (p.threshold if self.reset == "soft" else u)


class RLeaky(Delayed):
    """``u' = b u + x + fed``, then ``- R threshold`` (soft) or ``- R u'`` (hard); ``fed`` is what came back."""

    inputs = ("x", "fed")
    states = {"v": 0.0}
    params = {"beta": 0.9, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = self.fired(s.v, p)
        u = self.less(ops.clamp(p.beta, 0.0, 1.0) * s.v + x.x + x.fed, r, p)
        z, v = self.fire(u, r, p)
        return z, {"v": v}


class RSynaptic(Delayed):
    """``i' = a i + x + fed``, ``u' = b u + i'``, then ``- R threshold`` or ``- R u'``; ``i`` is not reset."""

    inputs = ("x", "fed")
    states = {"i": 0.0, "v": 0.0}
    params = {"alpha": 0.9, "beta": 0.8, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        r = self.fired(s.v, p)
        i = ops.clamp(p.alpha, 0.0, 1.0) * s.i + x.x + x.fed
        u = self.less(ops.clamp(p.beta, 0.0, 1.0) * s.v + i, r, p)
        z, v = self.fire(u, r, p)
        return z, {"i": i, "v": v}


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
