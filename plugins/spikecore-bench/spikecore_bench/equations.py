"""The layer of LIF neurons in the suites of the field, and the equation that each library computes for it.

The equation of the suites is ``h = v / 2 + x``, a spike where ``h`` reaches 1, then ``v = 0``; the surrogate is
ATan(2) and the reset carries no gradient. A library whose neuron cannot compute it has a row under the equation that it
does compute, and is checked against that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.check import REFERENCE, Observed, differences, observe


class Synapse(sc.Neuron):
    """Rockpool's ``LIFTorch`` with one spike per step at most: a current that decays, and a soft reset."""

    states = {"i": 0.0, "v": 0.0}
    params = {"alpha": 0.5, "beta": 0.5, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step."""
        i = p.beta * (s.i + x)
        h = p.alpha * s.v + i
        z = self.spike(h - p.threshold)
        return z, {"i": i, "v": h - z * p.threshold}


class Subtracting(sc.Neuron):
    """Spyx's ``LIF``: it fires by the potential of the step before, and the threshold is subtracted."""

    states = {"v": 0.0}
    params = {"beta": 0.5, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step."""
        z = self.spike(s.v - p.threshold)
        return z, {"v": p.beta * s.v + x - z * p.threshold}


class Equation(NamedTuple):
    """Equation of a layer."""

    words: str
    #: The same as a neuron of the named backend.
    neuron: Callable[[str], sc.Neuron]


LIF = Equation(
    "h = v / 2 + x, hard reset",
    lambda backend: sc.LIF(2.0, decay_input=False, detach_reset=True, backend=backend),
)
RELAXED = Equation("h = (v + x) / 2, hard reset", lambda backend: sc.LIF(2.0, detach_reset=True, backend=backend))
SUBTRACTED = Equation(
    "v = v / 2 + x - s, where s is the spike of the step before", lambda backend: Subtracting(backend=backend)
)
NO_RESET = Equation(
    "h = v / 2 + x without a reset", lambda backend: sc.LIF(2.0, decay_input=False, reset="none", backend=backend)
)
SYNAPSE = Equation("i = (i + x) / 2, h = v / 2 + i, soft reset", lambda backend: Synapse(backend=backend))


@dataclass(frozen=True)
class Layer:
    """A layer of LIF neurons of one library, or of one backend of spikecore."""

    #: ``[T, B, N] -> [T, B, N]`` of ``N`` neurons; None: the library computes with JAX.
    make: Optional[Callable[[int], nn.Module]]
    equation: Equation = LIF
    #: True if it has the surrogate of the suites, so that gradients can be compared.
    surrogate: bool = True
    #: Of a library with JAX: makes all that is timed.
    of_jax: Optional[Callable[[], Any]] = None
    #: True if it learns along with time: with gradients of weights, and none of inputs.
    online: bool = False

    def set_up(self) -> Any:
        """Object with ``observe(x, cotangent)``; its library is imported now."""
        return self if self.of_jax is None else self.of_jax()

    def observe(self, x: Tensor, cotangent: Tensor) -> Observed:
        """Spikes and the input's gradient, of a layer of torch."""
        make: Any = self.make
        spikes = make(x.shape[-1]).to(x.device)(x)
        (gradient,) = torch.autograd.grad(spikes, x, cotangent)
        return Observed(spikes.detach(), gradient, ())


def of_backend(name: str) -> Layer:
    """The layer of a backend of spikecore."""
    return Layer(lambda width: LIF.neuron(name))


def with_jax(module: str) -> Callable[[], Any]:
    """Function that sets up a layer of JAX, whose module has ``spikes(x, unrolled)``."""
    return lambda: import_module("spikecore_bench.jax_layers").LayerOfJax(import_module(module).spikes)


def verdict_of(layer: Layer, ours: bool, computing: Any, x: Tensor, cotangent: Tensor) -> Tuple[str, str]:
    """The status and the detail of a layer that was set up, by what it computes of an input ``[T, B, N]``.

    ``ok``: the equation of the suites. ``differs``: another one, or other numbers, as the detail says. ``wrong``: a
    backend of spikecore (``ours``) that does not compute what the reference computes.
    """
    equation = layer.equation
    expected = observe(equation.neuron(REFERENCE).to(x.device), x, cotangent)
    seen = computing.observe(x, cotangent)
    if not layer.surrogate:
        seen, expected = (one._replace(gradient=x.detach()) for one in (seen, expected))
    if layer.online:  # the gradient of a weight that is the identity
        weight = x.detach().flatten(0, 1).t() @ expected.gradient.flatten(0, 1)
        seen, expected = seen._replace(gradient=expected.gradient), expected._replace(learnt=(weight,))
    different = differences(seen, expected)
    if equation is LIF and different is None and layer.surrogate:
        return "ok", ""
    words = [] if equation is LIF else [f"computes {equation.words}"]
    words += [] if layer.surrogate else ["its surrogate"]
    words.append("checked" if different is None else different)
    return "wrong" if ours else "differs", "; ".join(words)
