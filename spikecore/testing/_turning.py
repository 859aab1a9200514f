"""Neurons whose states change places at every step: no state can be written before all are read.

Their values are products of states and inputs, so that a backward pass needs the states of every step.
"""
# what the methods must do stands in their bases

from __future__ import annotations

from typing import Any, Dict, Tuple

import spikecore as sc
from spikecore.testing._models import Model, as_written, single

Next = Tuple[Any, Dict[str, Any]]


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


SWAP = Model("swap", Swap, as_written(Swap), single(leak=0.7), (-1.0, 1.0), resets=("none",), outputs=("output",))
TURN = Model(
    "turn",
    Turn,
    as_written(Turn, outputs=2),
    single(leak=0.7, gain=0.6, start=0.3),
    (-1.0, 1.0),
    resets=("none",),
    outputs=("output", "output"),
)
