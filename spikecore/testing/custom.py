"""Neurons and a surrogate as a user would write them; their oracles run the same equations on NumPy's numbers."""
# what the methods must do stands in their bases

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

import numpy as np

import spikecore as sc
from spikecore.testing._oracle import Derivative
from spikecore.testing.models import HALVES, QUARTERS, Model, as_written, described

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


class Passing(sc.Neuron):
    """A state that never changes, one that becomes the input, and the input as output: nothing is computed."""

    states = {"constant": 0.25, "last": 0.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        return x, {"constant": s.constant, "last": x}


class Swap(sc.Neuron):
    """Two states that swap: ``u' = leak v + x``, ``v' = u``, ``y = u x + v``."""

    states = {"u": 0.25, "v": 0.0}
    params = {"leak": 0.75}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        return s.u * x + s.v, {"u": s.v * p.leak + x, "v": s.u}


class Turn(sc.Neuron):
    """Three states that go round, two inputs, two outputs.

    ``a' = leak b + x``, ``b' = c + gain y``, ``c' = a``; the outputs are ``gain a + b'`` and ``b y``.
    """

    inputs = ("x", "y")
    states = {"a": 0.0, "b": "start", "c": 0.25}
    params = {"leak": 0.75, "gain": 0.5, "start": 0.5}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        b = s.c + x.y * p.gain
        return (s.a * p.gain + b, s.b * x.y), {"a": s.b * p.leak + x.x, "b": b, "c": s.a}


@dataclass(frozen=True)
class Tent(sc.Surrogate):
    """A user's surrogate: a tent of the given width, with a floor that leaks."""

    width: float = 1.5
    floor: float = 0.0625
    positive = ("width",)

    def derivative(self, u: Any) -> Any:
        return sc.ops.where(abs(u) < self.width, 1.0 - abs(u) / self.width, 0.0) + self.floor


#: The oracle of :class:`Tent`.
TENT = Derivative("Tent", {"width": 1.5, "floor": 0.0625}, lambda u: np.maximum(0.0, 1.0 - np.abs(u) / 1.5) + 0.0625)
#: Facts of a neuron without spikes, resets and exact inputs.
_PLAIN: Mapping[str, Any] = {"resets": ("none",), "exact_resets": (), "outputs": ("output",)}
USER_SURROGATES: Mapping[str, Any] = {"Tent": Tent}

CUSTOM: Tuple[Model, ...] = (
    described(
        AdaptiveLIF, "adaptive", (-1.0, 5.0), "tau=2.7 rho=0.8 beta=0.3 threshold=0.9",
        "tau=2 rho=0.5 beta=0.25 threshold=1", twin=as_written(AdaptiveLIF), resets=("hard",), exact_levels=HALVES,
        exact_steps=8,
    ),
    described(
        Refractory, "refractory", (-0.4, 1.6), "beta=0.85 period=2 threshold=1.1", "beta=0.5 period=2 threshold=1",
        twin=as_written(Refractory, strict=True), resets=("hard",), exact_levels=QUARTERS,
    ),
    described(
        Gated, "gated", (-0.6, 1.2), "threshold=1.1", "threshold=1", twin=as_written(Gated), resets=("hard",),
        exact_levels=(-0.5, 0.5, 1.0),
    ),
    described(
        Probe, "probe", (-0.4, 1.2), "beta=0.85 threshold=1.1", "beta=0.5 threshold=1",
        twin=as_written(Probe, outputs=2), resets=("soft",), exact_levels=QUARTERS, outputs=("spikes", "output"),
    ),
    described(Constants, "constants", (-1.0, 2.0), "tau=2.7", twin=as_written(Constants), **_PLAIN),
    described(Passing, "passing", (-1.0, 1.0), "", twin=as_written(Passing), **_PLAIN),
    described(
        Coincidence, "coincidence", (-0.8, 1.2), "threshold=0.9", "threshold=1",
        twin=as_written(Coincidence, outputs=2), resets=("none",), exact_levels=QUARTERS,
        outputs=("spikes", "output"),
    ),
)  # fmt: skip
#: Neurons whose states change places at every step: no state can be written before all are read. Their values are
#: products of states and inputs, so that a backward pass needs the states of every step.
SWAP = described(Swap, "swap", (-1.0, 1.0), "leak=0.7", twin=as_written(Swap), **_PLAIN)
TURN = described(
    Turn, "turn", (-1.0, 1.0), "leak=0.7 gain=0.6 start=0.3", twin=as_written(Turn, outputs=2), resets=("none",),
    outputs=("output", "output"),
)  # fmt: skip


def library_surrogate(twin: Derivative) -> sc.Surrogate:
    """The surrogate that an oracle's derivative is the derivative of: the library's, or a user's."""
    of = twin.library or USER_SURROGATES.get(twin.name) or getattr(sc.surrogate, twin.name)
    made: sc.Surrogate = of(**twin.arguments)
    return made
