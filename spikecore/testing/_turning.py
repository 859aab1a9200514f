"""Neurons whose states change places at every step, each with its oracle: no state can be written before all are read.

Their values are products of states and inputs, so that a backward pass needs the states of every step.
"""
# what the methods must do stands in their bases

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

import spikecore as sc
from spikecore.testing._models import Model, single
from spikecore.testing._oracle import Array, Oracle, Step
from spikecore.testing._oracle.through_time import Cotangents

Next = Tuple[Any, Dict[str, Any]]


class Swap(sc.Neuron):
    """Two states that swap: ``u' = leak v + x``, ``v' = u``, ``y = u x + v``."""

    states = {"u": 0.25, "v": 0.0}
    params = {"leak": 0.75}

    def dynamics(self, x: Any, s: Any, p: Any) -> Next:
        return s.u * x + s.v, {"u": s.v * p.leak + x, "v": s.u}


class _Swap(Oracle):
    rest = {"u": 0.25, "v": 0.0}
    params = ("leak",)

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        return Step(outputs=(s.u * x[0] + s.v,), next={"u": s.v * p.leak + x[0], "v": s.u}, x=x[0])

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        (g,) = g_out
        states = {"u": g_next.v + g * k.x, "v": g_next.u * p.leak + g}
        return Cotangents((g_next.u + g * s.u,), states, {"leak": g_next.u * s.v})


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


class _Turn(Oracle):
    inputs = ("x", "y")
    rest = {"a": 0.0, "b": "start", "c": 0.25}
    params = ("leak", "gain", "start")

    def step(self, s: Any, p: Any, *x: Array) -> Step:
        b = s.c + x[1] * p.gain
        after = {"a": s.b * p.leak + x[0], "b": b, "c": s.a}
        return Step(outputs=(s.a * p.gain + b, s.b * x[1]), next=after, x=x)

    def back(self, k: Any, s: Any, p: Any, g_next: Any, *g_out: Array) -> Cotangents:
        y = k.x[1]
        g_b = g_next.b + g_out[0]
        states = {
            "a": g_next.c + g_out[0] * p.gain,
            "b": g_next.a * p.leak + g_out[1] * y,
            "c": g_b,
        }
        params = {"leak": g_next.a * s.b, "gain": g_b * y + g_out[0] * s.a, "start": np.zeros_like(g_b)}
        return Cotangents((g_next.a, g_b * p.gain + g_out[1] * s.b), states, params)


SWAP = Model("swap", Swap, _Swap, single(leak=0.7), (-1.0, 1.0), resets=("none",), outputs=("output",))
TURN = Model(
    "turn",
    Turn,
    _Turn,
    single(leak=0.7, gain=0.6, start=0.3),
    (-1.0, 1.0),
    resets=("none",),
    outputs=("output", "output"),
)
