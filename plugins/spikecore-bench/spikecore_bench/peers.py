"""The other libraries: each way to call one, what it computes in which suite, and what is to be said about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Callable, Mapping, Optional, Tuple

import torch
from torch import nn

from spikecore_bench.adapters import (
    JellyFunctional,
    JellyModule,
    NorseSingle,
    RockpoolLayer,
    SinabsLayer,
    SnnParallel,
    SnnSingle,
    Steps,
)
from spikecore_bench.equations import NO_RESET, RELAXED, SUBTRACTED, SYNAPSE, Layer, with_jax
from spikecore_bench.workloads import hat_spike

Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Peer:
    """One way to call one library."""

    name: str
    distribution: str
    #: The module whose import says whether it is there.
    module: str
    about: str
    #: Its layer in the suites of the field; None: it takes no part there.
    in_field: Optional[Layer] = None
    #: Maker of the neuron of a network, and its difference from LIF in words; None: it is in no other suite.
    in_network: Optional[Make] = None
    unlike: str = ""
    #: Workload -> the same neuron there. A workload that is not here has no counterpart.
    layers: Mapping[str, Make] = field(default_factory=dict)
    #: The neuron as a single step that continues, which ``reset()`` puts at rest; None where another row of the library
    #: is the same.
    single: Optional[Callable[[], Any]] = None
    #: Which of its implementations it chooses on a device, in a word.
    chooses: Callable[[torch.device], str] = lambda device: ""
    #: True if it is a loop over time steps in Python.
    loops: bool = False


def _jelly(name: str) -> Any:
    """A module of its package for neurons."""
    return import_module(f"spikingjelly.activation_based.{name}")


def _jelly_chooses(device: torch.device) -> str:
    return str(_jelly("functional").neuron_implementation("lif", device)["implementation"])


def _atan() -> Any:
    return _jelly("surrogate").ATan(alpha=2.0)


def _functional(name: str, surrogate: Callable[[], Any] = _atan, **options: Any) -> Make:
    return lambda: JellyFunctional(getattr(_jelly("functional"), name), surrogate_function=surrogate(), **options)


def _node(name: str, surrogate: Callable[[], Any] = _atan, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(_jelly("neuron"), name)(surrogate_function=surrogate(), **options)


_NODES: Mapping[str, Callable[[], Any]] = {
    "LIF": _node("LIFNode", tau=2.0),
    "IF": _node("IFNode"),
    "PLIF": _node("ParametricLIFNode", init_tau=2.0),
    "Synaptic": _node("CUBALIFNode", v_threshold=1.0),
    "own-surrogate": _node("LIFNode", lambda: hat_spike, tau=2.0),
}
_FUNCTIONAL: Mapping[str, Make] = {
    "LIF": _functional("lif_multi_step", tau=2.0),
    "IF": _functional("if_multi_step"),
    # 1 / tau = sigmoid(w), so this is tau = 2
    "PLIF": _functional("plif_multi_step", learnt=0.0),
    "own-surrogate": _functional("lif_multi_step", lambda: hat_spike, tau=2.0),
}


def _over(wrap: Callable[[Any], nn.Module], make: Callable[[], Any]) -> Make:
    """Maker that wraps a neuron, which is made when the maker is called."""
    return lambda: wrap(make())


_MODULES = {name: _over(JellyModule, node) for name, node in _NODES.items()}
_STEPS = {name: _over(Steps, node) for name, node in _NODES.items()}


def _leaky(beta: float, reset: str) -> SnnSingle:
    spike = import_module("snntorch.surrogate").atan(alpha=2.0)
    return SnnSingle(import_module("snntorch").Leaky(beta=beta, spike_grad=spike, reset_mechanism=reset))


_LEAKY = partial(_leaky, 0.5, "zero")


def _any(make: Make) -> Callable[[int], nn.Module]:
    """A layer of any width."""
    return lambda width: make()


#: Of the equation of the suites of the field.
_OPTIONS: Mapping[str, Any] = {"tau": 2.0, "decay_input": False, "detach_reset": True}
_JELLY, _SNN = ("spikingjelly", "spikingjelly.activation_based.neuron"), ("snntorch", "snntorch")
_NORSE = ("norse", "norse.torch.functional.lif_box")
_SPYX, _BRAIN = "spikecore_bench.spyx", "spikecore_bench.braintrace"


def _online(rule: str, **options: Any) -> Layer:
    """A layer of BrainTrace that learns by a rule."""
    return Layer(None, of_jax=lambda: import_module(_BRAIN).OnlineLayer(rule, **options), online=True)


#: In the order in which they are measured: loops over time steps, which take longest, come last.
PEERS: Tuple[Peer, ...] = (
    Peer(
        "SpikingJelly functional",
        *_JELLY,
        "functional.lif_multi_step and its kin",
        Layer(_any(_functional("lif_multi_step", **_OPTIONS))),
        _FUNCTIONAL["LIF"],
        layers=_FUNCTIONAL,
        chooses=_jelly_chooses,
    ),
    Peer(
        "SpikingJelly module",
        *_JELLY,
        "LIFNode and its kin, multi-step",
        Layer(_any(_over(JellyModule, _node("LIFNode", **_OPTIONS)))),
        _MODULES["LIF"],
        layers=_MODULES,
        single=_NODES["LIF"],
        chooses=_jelly_chooses,
    ),
    Peer(
        "SpikingJelly steps",
        *_JELLY,
        "the same modules in a loop over steps: plain torch",
        None,
        _STEPS["LIF"],
        layers=_STEPS,
        loops=True,
    ),
    Peer("Spyx", "spyx", _SPYX, "nn.LIF in lax.scan, compiled by XLA", Layer(None, SUBTRACTED, of_jax=with_jax(_SPYX))),
    Peer(
        "brainstate BPTT",
        "brainstate",
        _BRAIN,
        "a LIF cell in for_loop, backpropagation, compiled by XLA",
        Layer(None, of_jax=with_jax(_BRAIN)),
    ),
    Peer(
        "BrainTrace pp_prop",
        "braintrace",
        _BRAIN,
        "a LIF cell, traces of inputs and of outputs along with time",
        _online("pp_prop", decay_or_rank=0.5),
    ),
    Peer(
        "BrainTrace D-RTRL",
        "braintrace",
        _BRAIN,
        "a LIF cell, a trace of each weight along with time",
        _online("d_rtrl"),
    ),
    Peer("snnTorch StateLeaky", *_SNN, "a convolution over time", Layer(SnnParallel, NO_RESET)),
    Peer(
        "snnTorch",
        *_SNN,
        "Leaky in a loop over steps",
        Layer(_any(_over(Steps, _LEAKY))),
        _over(Steps, _LEAKY),
        "its Leaky(beta=0.5) stands in, which fires above the threshold only and is reset one step later",
        {"Leaky": _over(Steps, partial(_leaky, 0.9, "subtract"))},
        _LEAKY,
        loops=True,
    ),
    Peer(
        "Norse compiled",
        *_NORSE,
        "LIFBox in a loop over steps, each compiled by torch.compile",
        Layer(_any(_over(Steps, partial(NorseSingle, compiled=True))), RELAXED, surrogate=False),
    ),
    Peer("sinabs", "sinabs", "sinabs.layers", "LIF, a loop over steps", Layer(_any(SinabsLayer))),
    Peer(
        "Norse",
        *_NORSE,
        "its LIF without a current (LIFBox) in a loop over steps",
        Layer(_any(_over(Steps, NorseSingle)), RELAXED, surrogate=False),
        _over(Steps, NorseSingle),
        "its LIFBox stands in, which fires above the threshold only and has its own surrogate",
        single=NorseSingle,
        loops=True,
    ),
    Peer(
        "Rockpool",
        "rockpool",
        "rockpool.nn.modules.torch.lif_torch",
        "LIFTorch, a loop over steps",
        Layer(RockpoolLayer, SYNAPSE, surrogate=False),
    ),
)
