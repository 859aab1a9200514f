"""One layer of LIF neurons in each library, for the suites of the field, and the equation that each computes.

The equation of the suites is ``h = v / 2 + x``, a spike where ``h`` reaches 1, then ``v = 0``; the surrogate is
ATan(2) and the reset carries no gradient. A library whose neuron cannot compute it has a row under the equation that it
does compute, and is checked against that one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.bench._check import Observed, differences, observe
from spikecore.bench._implementations import OTHERS, REFERENCE, state_of
from spikecore.bench._machine import version_of
from spikecore.bench._peers import JellyFunctional, JellyModule, NorseSteps, SnnSteps
from spikecore.bench._peers import spikingjelly as _jelly
from spikecore.bench._report import Availability

#: A layer ``[T, B, N] -> [T, B, N]`` of so many neurons.
MakeLayer = Callable[[int], nn.Module]


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


@dataclass(frozen=True)
class Equation:
    """What a layer computes."""

    words: str
    #: The same as a neuron of the named backend.
    neuron: Callable[[str], sc.Neuron]


LIF, RELAXED, SUBTRACTED, NO_RESET, SYNAPSE = "LIF", "LIFBox", "Spyx LIF", "no reset", "Rockpool LIF"
EQUATIONS: Mapping[str, Equation] = {
    LIF: Equation(
        "h = v / 2 + x, hard reset",
        lambda backend: sc.LIF(2.0, decay_input=False, detach_reset=True, backend=backend),
    ),
    RELAXED: Equation("h = (v + x) / 2, hard reset", lambda backend: sc.LIF(2.0, detach_reset=True, backend=backend)),
    SUBTRACTED: Equation(
        "v = v / 2 + x - s, where s is the spike of the step before", lambda backend: Subtracting(backend=backend)
    ),
    NO_RESET: Equation(
        "h = v / 2 + x without a reset", lambda backend: sc.LIF(2.0, decay_input=False, reset="none", backend=backend)
    ),
    SYNAPSE: Equation("i = (i + x) / 2, h = v / 2 + i, soft reset", lambda backend: Synapse(backend=backend)),
}


class LayerOfTorch:
    """A layer that is a module of torch."""

    def __init__(self, make: MakeLayer) -> None:
        self.make = make

    def observe(self, x: Tensor, cotangent: Tensor) -> Observed:
        """Spikes and the input's gradient."""
        spikes = self.make(x.shape[-1]).to(x.device)(x)
        (gradient,) = torch.autograd.grad(spikes, x, cotangent)
        return Observed(spikes.detach(), gradient, ())


@dataclass(frozen=True)
class Library:
    """One way to compute the layer with one library, or with one backend of spikecore."""

    name: str
    distribution: str
    #: The module whose import says whether it is there.
    module: str
    about: str
    #: Its layer of torch; None: the library computes with JAX, and :attr:`of_jax` makes all that is timed.
    make: Optional[MakeLayer]
    equation: str = LIF
    #: Whether it has the surrogate of the suites, so that gradients can be compared.
    surrogate: bool = True
    #: Whether it is a backend of spikecore.
    ours: bool = False
    #: ``of_jax(module)``.
    of_jax: Callable[[Any], Any] = lambda module: import_module("spikecore.bench._jax_layers").LayerOfJax(module.spikes)
    #: Whether it learns along with time: there are gradients of weights, and none of inputs.
    online: bool = False

    def layer(self) -> Any:
        """The layer, with ``observe(x, cotangent)``; its library is imported now."""
        if self.make is not None:
            return LayerOfTorch(self.make)
        return self.of_jax(import_module(self.module))


def verdict_of(library: Library, layer: Any, x: Tensor, cotangent: Tensor) -> Tuple[str, str]:
    """The status and the detail of a layer, by what it computes of an input ``[T, B, N]``.

    ``ok``: the equation of the suites. ``differs``: another one, or other numbers, as the detail says. ``wrong``: a
    backend of spikecore that does not compute what the reference computes.
    """
    equation = EQUATIONS[library.equation]
    expected = observe(equation.neuron(REFERENCE).to(x.device), x, cotangent)
    seen = layer.observe(x, cotangent)
    if not library.surrogate:
        seen, expected = (one._replace(gradient=x.detach()) for one in (seen, expected))
    if library.online:  # the gradient of a weight that is the identity
        weight = x.detach().flatten(0, 1).t() @ expected.gradient.flatten(0, 1)
        seen, expected = seen._replace(gradient=expected.gradient), expected._replace(learnt=(weight,))
    different = differences(seen, expected)
    if library.equation == LIF and different is None and library.surrogate:
        return "ok", ""
    words = [] if library.equation == LIF else [f"computes {equation.words}"]
    words += [] if library.surrogate else ["its surrogate"]
    words.append("checked" if different is None else different)
    return "wrong" if library.ours else "differs", "; ".join(words)


class SinabsLayer(nn.Module):
    """sinabs' ``LIF``, whose inputs are ``[B, T, N]``."""

    def __init__(self) -> None:
        super().__init__()
        layers, activation = import_module("sinabs.layers"), import_module("sinabs.activation")
        self.node = layers.LIF(
            tau_mem=1.0 / math.log(2.0),  # it decays by exp(-1 / tau_mem)
            norm_input=False,
            spike_fn=activation.SingleSpike,
            reset_fn=activation.MembraneReset(),
            surrogate_grad_fn=lambda v, threshold: 1.0 / (1.0 + (math.pi * (v - threshold)) ** 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset_states()
        spikes: Tensor = self.node(x.transpose(0, 1)).transpose(0, 1)
        return spikes


class RockpoolLayer(nn.Module):
    """Rockpool's ``LIFTorch``, whose inputs are ``[B, T, N]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        constant = import_module("rockpool.parameters").Constant
        self.node = import_module("rockpool.nn.modules.torch.lif_torch").LIFTorch(
            width,
            leak_mode="decays",
            alpha=constant(0.5),
            beta=constant(0.5),
            threshold=constant(torch.ones(width)),
            bias=constant(torch.zeros(width)),
            max_spikes_per_dt=torch.tensor(1.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset_state()
        spikes: Tensor = self.node(x.transpose(0, 1))[0].transpose(0, 1)
        return spikes


class SnnParallel(nn.Module):
    """snnTorch's ``StateLeaky``, a convolution over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        atan = import_module("snntorch.surrogate").atan(alpha=2.0)
        # it decays by exp(-(1 - beta))
        self.node = import_module("snntorch").StateLeaky(1.0 - math.log(2.0), width, spike_grad=atan)

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        spikes: Tensor = self.node(x)[0].to(x.dtype)
        return spikes


def _jelly_functional(width: int) -> nn.Module:
    atan = _jelly("surrogate").ATan(alpha=2.0)
    options = {"tau": 2.0, "decay_input": False, "detach_reset": True, "surrogate_function": atan}
    return JellyFunctional(_jelly("functional").lif_multi_step, **options)


def _jelly_module(width: int) -> nn.Module:
    atan = _jelly("surrogate").ATan(alpha=2.0)
    node = _jelly("neuron").LIFNode(tau=2.0, decay_input=False, detach_reset=True, surrogate_function=atan)
    return JellyModule(node)


def _snn(width: int) -> nn.Module:
    atan = import_module("snntorch.surrogate").atan(alpha=2.0)
    return SnnSteps(import_module("snntorch").Leaky(beta=0.5, spike_grad=atan, reset_mechanism="zero"))


_BRAIN = "spikecore.bench._braintrace"
_JELLY, _SNN = ("spikingjelly", "spikingjelly.activation_based.neuron"), ("snntorch", "snntorch")
#: In the order in which they are measured: loops over time steps, which take longest, come last.
LIBRARIES: Tuple[Library, ...] = (
    Library("SpikingJelly functional", *_JELLY, "functional.lif_multi_step", _jelly_functional),
    Library("SpikingJelly module", *_JELLY, "LIFNode, multi-step", _jelly_module),
    Library("Spyx", "spyx", "spikecore.bench._spyx", "nn.LIF in lax.scan, compiled by XLA", None, SUBTRACTED),
    Library("brainstate BPTT", "brainstate", _BRAIN, "a LIF cell in for_loop, backpropagation, compiled by XLA", None),
    Library(
        "BrainTrace pp_prop",
        *("braintrace", _BRAIN),
        "a LIF cell, traces of inputs and of outputs along with time",
        None,
        of_jax=lambda module: module.OnlineLayer("pp_prop", decay_or_rank=0.5),
        online=True,
    ),
    Library(
        "BrainTrace D-RTRL",
        *("braintrace", _BRAIN),
        "a LIF cell, a trace of each weight along with time",
        None,
        of_jax=lambda module: module.OnlineLayer("d_rtrl"),
        online=True,
    ),
    Library("snnTorch StateLeaky", *_SNN, "a convolution over time", SnnParallel, NO_RESET),
    Library("snnTorch", *_SNN, "Leaky in a loop over steps", _snn),
    Library(
        "Norse compiled",
        "norse",
        "norse.torch.functional.lif_box",
        "LIFBox in a loop over steps, each compiled by torch.compile",
        lambda width: NorseSteps(compiled=True),
        RELAXED,
        surrogate=False,
    ),
    Library("sinabs", "sinabs", "sinabs.layers", "LIF, a loop over steps", lambda width: SinabsLayer()),
    Library(
        "Norse",
        "norse",
        "norse.torch.functional.lif_box",
        "LIFBox in a loop over steps",
        lambda width: NorseSteps(),
        RELAXED,
        surrogate=False,
    ),
    Library(
        "Rockpool",
        "rockpool",
        "rockpool.nn.modules.torch.lif_torch",
        "LIFTorch, a loop over steps",
        RockpoolLayer,
        SYNAPSE,
        surrogate=False,
    ),
)


def of_backend(name: str) -> Library:
    """A backend of spikecore."""
    return Library(name, "spikecore", "spikecore", "sc.LIF", lambda width: EQUATIONS[LIF].neuron(name), ours=True)


def find_libraries(wanted: bool, names: Tuple[str, ...]) -> Tuple[List[Library], List[Availability]]:
    """The libraries that can take part, and the list of all, with the reasons of the others."""
    ready, listed = [], []
    for library in LIBRARIES:
        state, detail = OTHERS if wanted else ("left out", "--no-peers")
        if wanted and library.name in (names or (library.name,)):
            state, detail = state_of(library.distribution, library.module, partial(str, library.about))
        listed.append(Availability(library.name, "peer", state, version_of(library.distribution) or "", detail))
        if state == "ready":
            ready.append(library)
    return ready, listed
