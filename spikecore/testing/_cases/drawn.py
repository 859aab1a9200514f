"""Cases of tier ``language`` with random numbers: they are inputs that the neuron draws, the same on every backend."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Tuple

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._oracle import Array
from spikecore.testing._tolerances import EXACT, TOLERANCES

_TAU, _THRESHOLD, _RESET, _RATE, _DELTA = 2.5, 0.75, -0.125, 0.625, 0.375


def add_to(cases: Collection) -> None:
    """Add the cases of this tier."""
    for name, gradient, needs in (("", False, ()), ("-gradient", True, ("gradients", "parameter_gradients"))):
        cases.add(
            f"custom/escape-noise{name}",
            "language",
            "a neuron that draws random numbers gives what its equations say" + ", and their gradients" * gradient,
            partial(escape, gradient=gradient),
            ("several_inputs", *needs),
        )


def escape(context: Context, gradient: bool) -> None:
    """LIF with escape noise, with the numbers that it draws, in NumPy in float64, and the adjoint by hand."""
    x = np.asarray(np.random.default_rng(3).uniform(-1.0, 3.0, (9, 3, 5)), np.float32).astype(np.float64)
    neuron: Any = sc.EscapeNoise(
        _TAU,
        threshold=_THRESHOLD,
        v_reset=_RESET,
        rate=_RATE,
        delta=_DELTA,
        learn=("tau",) if gradient else (),
        generator=torch.Generator().manual_seed(11),
        backend=context.name,
    )
    neuron = context.place(neuron)
    given: Any = context.tensor(x, grad=gradient)
    u = as_array(sc.EscapeNoise(generator=torch.Generator().manual_seed(11)).draw(torch.zeros(x.shape))[0])
    spikes, kept = _forward(x, u)
    output = neuron(given)
    same("spikes with escape noise", repr(neuron), as_array(output), spikes, EXACT)
    if not gradient:
        return
    cotangent = np.linspace(-1.0, 1.5, x.size).reshape(x.shape)
    backward(repr(neuron), [output], [context.tensor(cotangent)])
    to_x, to_tau = _back(x, spikes, kept, cotangent)
    same("gradient of x", repr(neuron), as_array(given.grad), to_x, TOLERANCES["float32", "input gradient"])
    grad: Any = dict(neuron.named_parameters())["tau"].grad
    same(
        "gradient of tau",
        repr(neuron),
        as_array(grad),
        np.asarray(to_tau),
        TOLERANCES["float32", "parameter gradient"],
        axes="",
    )


def _forward(x: Array, u: Array) -> Tuple[Array, List[Any]]:
    """Spikes, and the potential before each step with the probability's derivative in it."""
    v, spikes, kept = np.full(x.shape[1:], _RESET), [], []
    for now, number in zip(x, u):
        h = v + (now - (v - _RESET)) / _TAU
        rate = _RATE * np.exp((h - _THRESHOLD) / _DELTA)
        z = (number < 1.0 - np.exp(-rate)) * 1.0
        kept.append((v, h, np.exp(-rate) * rate / _DELTA))
        v = np.where(z != 0, _RESET, h)
        spikes.append(z)
    return np.stack(spikes), kept


def _back(x: Array, spikes: Array, kept: List[Any], cotangent: Array) -> Tuple[Array, float]:
    """The gradients of x and of tau."""
    back, found, to_tau = np.zeros(x.shape[1:]), [], 0.0
    for now, z, (v, h, slope), grad in zip(x[::-1], spikes[::-1], kept[::-1], cotangent[::-1]):
        to_h = back * (1.0 - z) + (grad + back * (_RESET - h)) * slope
        to_tau -= float((to_h * (now - (v - _RESET))).sum()) / _TAU**2
        found.append(to_h / _TAU)
        back = to_h * (1.0 - 1.0 / _TAU)
    return np.stack(found[::-1]), to_tau
