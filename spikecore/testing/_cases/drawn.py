"""Cases of tier ``language`` with random numbers: they are inputs that the neuron draws, the same on every backend."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict

import numpy as np
import torch

import spikecore as sc
from spikecore.testing._case import Collection
from spikecore.testing._compare import as_array, backward, same
from spikecore.testing._context import Context
from spikecore.testing._oracle import Next, Oracle, Value, adjoint, ops, run
from spikecore.testing._oracle.values import spike
from spikecore.testing._tolerances import EXACT, TOLERANCES

_PARAMS: Dict[str, Any] = {"tau": 2.5, "threshold": 0.75, "v_reset": -0.125, "rate": 0.625, "delta": 0.375}


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


class Escape(Oracle):
    """LIF that fires with the probability ``1 - exp(-rate exp((h - threshold) / delta))``, drawn as a second input."""

    inputs = ("x", "number")
    rest = {"v": "v_reset"}
    params = ("tau", "threshold", "v_reset", "rate", "delta")

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        """The spike has the gradient of the probability."""
        h = s.v + (x[0] - (s.v - p.v_reset)) / p.tau
        rate = p.rate * ops.exp((h - p.threshold) / p.delta)
        z = spike(1.0 - ops.exp(-rate) - x[1], np.ones_like, strict=True)
        return (z,), {"v": ops.select(z, p.v_reset, h)}


def escape(context: Context, gradient: bool) -> None:
    """LIF with escape noise, with the numbers that it draws."""
    x = np.asarray(np.random.default_rng(3).uniform(-1.0, 3.0, (9, 3, 5)), np.float32).astype(np.float64)
    neuron: Any = sc.EscapeNoise(
        **_PARAMS,
        learn=("tau",) if gradient else (),
        generator=torch.Generator().manual_seed(11),
        backend=context.name,
    )
    neuron = context.place(neuron)
    given: Any = context.tensor(x, grad=gradient)
    numbers = as_array(sc.EscapeNoise(generator=torch.Generator().manual_seed(11)).draw(torch.zeros(x.shape))[0])
    seen = run(Escape(), (x, numbers), _PARAMS)
    output = neuron(given)
    same("spikes with escape noise", repr(neuron), as_array(output), seen.outputs[0], EXACT)
    if not gradient:
        return
    cotangent = np.linspace(-1.0, 1.5, x.size).reshape(x.shape)
    backward(repr(neuron), [output], [context.tensor(cotangent)])
    right = adjoint(seen, [cotangent])
    near = TOLERANCES["float32", "input gradient"]
    same("gradient of x", repr(neuron), as_array(given.grad), right.inputs[0], near)
    same("gradient of tau", repr(neuron), as_array(neuron.tau.grad), right.params["tau"], near, axes="")
