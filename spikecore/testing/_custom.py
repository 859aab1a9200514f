"""Neurons and a surrogate as a user would write them; their oracles run the same equations on NumPy's numbers."""
# what the methods must do stands in their bases

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

import numpy as np

import spikecore as sc
from spikecore.testing._models import HALVES, QUARTERS, Model, as_written, single
from spikecore.testing._oracle import Derivative

Next = Tuple[Any, Dict[str, Any]]


class AdaptiveLIF(sc.Neuron):
    """The example of the documentation: a threshold that each spike raises."""

    states = {"v": 0.0, "a": 0.0}
    params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - (p.threshold + p.beta * s.a))
        return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}


class Gated(sc.Neuron):
    """Two inputs: a current, and a gate that says how much of the potential stays."""

    inputs = ("x", "gate")
    states = {"v": 0.0}
    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        h = s.v * x.gate + x.x
        z = self.spike(h - p.threshold)
        return z, {"v": sc.ops.select(z, 0.0, h)}


class Probe(sc.Neuron):
    """Two outputs: the spikes, and the potential that made them."""

    states = {"v": 0.0}
    params = {"beta": 0.9, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        h = p.beta * s.v + x
        z = self.spike(h - p.threshold)
        return (z, h), {"v": h - z * p.threshold}


class Refractory(sc.Neuron):
    """Deaf for ``period`` steps after a spike: a comparison chooses, a second state counts down."""

    states = {"v": 0.0, "wait": 0.0}
    params = {"beta": 0.9, "period": 2.0, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        h = sc.ops.where(s.wait <= 0.0, p.beta * s.v + x, s.v)
        z = self.spike(h - p.threshold, strict=True)
        wait = sc.ops.maximum(s.wait - 1.0, 0.0) + sc.ops.detach(z) * p.period
        return z, {"v": sc.ops.select(z, 0.0, h), "wait": wait}


class Coincidence(sc.Neuron):
    """No state, two inputs, two outputs: a spike where their sum reaches the threshold, and their product."""

    inputs = ("x", "y")
    params = {"threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        return (self.spike(x.x + x.y - p.threshold), x.x * x.y), {}


class Constants(sc.Neuron):
    """Two constants that float32 does not hold, of which one is chosen, and a third: each is rounded once."""

    states = {"v": 0.0}
    params = {"tau": 2.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        v = s.v * 0.7 + sc.ops.where(x > 0.5, 0.1, 0.3) * x / p.tau
        return v, {"v": v}


@dataclass(frozen=True)
class Tent(sc.surrogate.Surrogate):
    """A user's surrogate: a tent of the given width, with a floor that leaks."""

    width: float = 1.5
    floor: float = 0.0625
    positive = ("width",)

    def derivative(self, u: Any) -> Any:
        return sc.ops.where(abs(u) < self.width, 1.0 - abs(u) / self.width, 0.0) + self.floor


#: The oracle of :class:`Tent`.
TENT = Derivative(
    "Tent",
    {"width": 1.5, "floor": 0.0625},
    lambda u: np.maximum(0.0, 1.0 - np.abs(u) / 1.5) + 0.0625,
)
USER_SURROGATES: Mapping[str, Any] = {"Tent": Tent}

CUSTOM: Tuple[Model, ...] = (
    Model(
        "adaptive",
        AdaptiveLIF,
        as_written(AdaptiveLIF),
        single(tau=2.7, rho=0.8, beta=0.3, threshold=0.9),
        (-1.0, 5.0),
        resets=("hard",),
        exact_params={"tau": 2.0, "rho": 0.5, "beta": 0.25, "threshold": 1.0},
        exact_levels=HALVES,
        exact_steps=8,
    ),
    Model(
        "refractory",
        Refractory,
        as_written(Refractory, strict=True),
        single(beta=0.85, period=2.0, threshold=1.1),
        (-0.4, 1.6),
        resets=("hard",),
        exact_params={"beta": 0.5, "period": 2.0, "threshold": 1.0},
        exact_levels=QUARTERS,
    ),
    Model(
        "gated",
        Gated,
        as_written(Gated),
        single(threshold=1.1),
        (-0.6, 1.2),
        resets=("hard",),
        exact_params={"threshold": 1.0},
        exact_levels=(-0.5, 0.5, 1.0),
    ),
    Model(
        "probe",
        Probe,
        as_written(Probe, outputs=2),
        single(beta=0.85, threshold=1.1),
        (-0.4, 1.2),
        resets=("soft",),
        exact_params={"beta": 0.5, "threshold": 1.0},
        exact_levels=QUARTERS,
        outputs=("spikes", "output"),
    ),
    Model(
        "constants",
        Constants,
        as_written(Constants),
        single(tau=2.7),
        (-1.0, 2.0),
        resets=("none",),
        exact_resets=(),
        outputs=("output",),
    ),
    Model(
        "coincidence",
        Coincidence,
        as_written(Coincidence, outputs=2),
        single(threshold=0.9),
        (-0.8, 1.2),
        resets=("none",),
        exact_params={"threshold": 1.0},
        exact_levels=QUARTERS,
        outputs=("spikes", "output"),
    ),
)


def library_surrogate(twin: Derivative) -> sc.surrogate.Surrogate:
    """The surrogate that an oracle's derivative is the derivative of: the library's, or a user's."""
    of = twin.library or USER_SURROGATES.get(twin.name) or getattr(sc.surrogate, twin.name)
    made: sc.surrogate.Surrogate = of(**twin.arguments)
    return made
