"""Other libraries' neurons as layers ``[T, *N] -> [T, *N]`` that start every call at rest. Imported when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.bench._workloads import hat_spike


class JellyFunctional(nn.Module):
    """SpikingJelly's functional form: one call for all steps, the state in float32.

    The state at rest is made once per shape, outside of what is timed, which is kind to it.
    """

    def __init__(self, function: Callable[..., Any], *, learnt: Optional[float] = None, **keywords: Any) -> None:
        super().__init__()
        self.function, self.keywords = function, keywords
        if learnt is not None:
            self.w = nn.Parameter(torch.tensor(learnt))
        self.rest: Dict[Tuple[Any, ...], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        x = x.contiguous()  # kernels of another library may not know a step that is repeated
        key = (x.shape[1:], x.device)
        start = self.rest.get(key)
        if start is None:
            start = self.rest[key] = torch.zeros(x.shape[1:], device=x.device)
        spikes: Tensor = self.function(x, start, *self.parameters(), **self.keywords)[0]
        return spikes


class JellyModule(nn.Module):
    """SpikingJelly's module, all steps in one call."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        node.step_mode = "m"
        self.node = node

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset()
        spikes: Tensor = self.node(x.contiguous())  # as above
        return spikes


class JellySteps(nn.Module):
    """SpikingJelly's module called step by step, in plain torch."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        node.step_mode = "s"
        self.node = node

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.node.reset()
        return torch.stack([self.node(now) for now in x.unbind(0)])


class SnnSteps(nn.Module):
    """snnTorch's module called step by step; its state starts anew with every call."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.node = node

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        memory = torch.zeros_like(x[0])
        spikes = []
        for now in x.unbind(0):
            spike, memory = self.node(now, memory)
            spikes.append(spike)
        return torch.stack(spikes)


class SnnSingle(nn.Module):
    """snnTorch's module as a single step that continues."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.node = node
        self.memory: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one time step."""
        memory = torch.zeros_like(x) if self.memory is None else self.memory
        spikes: Tensor
        spikes, self.memory = self.node(x, memory)
        return spikes

    def reset(self) -> None:
        """Begin at rest."""
        self.memory = None


class NorseSingle(nn.Module):
    """Norse's LIF without a current, as a single step that continues."""

    def __init__(self, tau: float = 2.0, compiled: bool = False) -> None:
        super().__init__()
        box = self.box = import_module("norse.torch.functional.lif_box")
        # the time step is 1, so the time constant is in time steps
        self.settings = box.LIFBoxParameters(tau_mem_inv=torch.tensor(1.0 / tau))
        step: Callable[..., Any] = box.lif_box_feed_forward_step
        self.step = torch.compile(step) if compiled else step
        self.state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one time step."""
        state = self.box.LIFBoxFeedForwardState(v=torch.zeros_like(x)) if self.state is None else self.state
        spikes: Tensor
        spikes, self.state = self.step(x, state, self.settings, dt=1.0)
        return spikes

    def reset(self) -> None:
        """Begin at rest."""
        self.state = None


class NorseSteps(NorseSingle):
    """The same, called step by step; its state starts anew with every call."""

    def forward(self, x: Tensor) -> Tensor:
        """Spikes."""
        self.reset()
        spikes = torch.stack([super(NorseSteps, self).forward(now) for now in x.unbind(0)])
        self.reset()
        return spikes


#: A neuron as a single step that continues, and what puts it at rest.
Single = Tuple[nn.Module, Callable[[], Any]]


@dataclass(frozen=True)
class Peer:
    """One way to call one library."""

    name: str
    distribution: str
    #: The module whose import says whether it is there.
    module: str
    about: str
    #: Workload -> the same neuron there. A workload that is not here has no counterpart.
    layers: Mapping[str, Callable[[], nn.Module]]
    #: What stands for the neuron in a network, and in words how it differs from LIF.
    in_network: Callable[[], nn.Module]
    unlike: str = ""
    #: The neuron as a single step that continues; None where another row of the library is the same.
    single: Optional[Callable[[], Single]] = None
    #: Which of its implementations it chooses on a device, in a word.
    chooses: Callable[[torch.device], str] = lambda device: ""
    #: Whether it is a loop over time steps in Python.
    loops: bool = False


def spikingjelly(name: str) -> Any:
    """A module of its package for neurons."""
    return import_module(f"spikingjelly.activation_based.{name}")


def _jelly_chooses(device: torch.device) -> str:
    return str(spikingjelly("functional").neuron_implementation("lif", device)["implementation"])


def _atan() -> Any:
    return spikingjelly("surrogate").ATan(alpha=2.0)


def _functional(name: str, surrogate: Callable[[], Any] = _atan, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return JellyFunctional(getattr(spikingjelly("functional"), name), surrogate_function=surrogate(), **options)

    return make


def _nodes(wrap: Callable[[Any], nn.Module]) -> Mapping[str, Callable[[], nn.Module]]:
    def node(name: str, surrogate: Callable[[], Any] = _atan, **options: Any) -> Callable[[], nn.Module]:
        return lambda: wrap(getattr(spikingjelly("neuron"), name)(surrogate_function=surrogate(), **options))

    return {
        "LIF": node("LIFNode", tau=2.0),
        "IF": node("IFNode"),
        "PLIF": node("ParametricLIFNode", init_tau=2.0),
        "Synaptic": node("CUBALIFNode", v_threshold=1.0),
        "own-surrogate": node("LIFNode", lambda: hat_spike, tau=2.0),
    }


def _leaky(beta: float, reset: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        spike = import_module("snntorch.surrogate").atan(alpha=2.0)
        return SnnSteps(import_module("snntorch").Leaky(beta=beta, spike_grad=spike, reset_mechanism=reset))

    return make


def _jelly_single() -> Single:
    node = spikingjelly("neuron").LIFNode(tau=2.0, surrogate_function=_atan(), step_mode="s")
    return node, node.reset


def _snn_single() -> Single:
    layer = SnnSingle(_leaky(0.5, "zero")().node)
    return layer, layer.reset


def _norse_single() -> Single:
    layer = NorseSingle()
    return layer, layer.reset


_FUNCTIONAL: Mapping[str, Callable[[], nn.Module]] = {
    "LIF": _functional("lif_multi_step", tau=2.0),
    "IF": _functional("if_multi_step"),
    # 1 / tau = sigmoid(w), so this is tau = 2
    "PLIF": _functional("plif_multi_step", learnt=0.0),
    "own-surrogate": _functional("lif_multi_step", lambda: hat_spike, tau=2.0),
}
_MODULES, _STEPS = _nodes(JellyModule), _nodes(JellySteps)
_JELLY = ("spikingjelly", "spikingjelly.activation_based.neuron")

PEERS: Tuple[Peer, ...] = (
    Peer(
        "SpikingJelly functional",
        *_JELLY,
        "functional.lif_multi_step and its kin",
        _FUNCTIONAL,
        _FUNCTIONAL["LIF"],
        chooses=_jelly_chooses,
    ),
    Peer(
        "SpikingJelly module",
        *_JELLY,
        "LIFNode and its kin, multi-step",
        _MODULES,
        _MODULES["LIF"],
        single=_jelly_single,
        chooses=_jelly_chooses,
    ),
    Peer(
        "SpikingJelly steps",
        *_JELLY,
        "the same modules in a loop over steps: plain torch",
        _STEPS,
        _STEPS["LIF"],
        loops=True,
    ),
    Peer(
        "snnTorch",
        "snntorch",
        "snntorch",
        "Leaky in a loop over steps",
        {"Leaky": _leaky(0.9, "subtract")},
        _leaky(0.5, "zero"),
        "its Leaky(beta=0.5) stands in, which fires above the threshold only and is reset one step later",
        _snn_single,
        loops=True,
    ),
    Peer(
        "Norse",
        "norse",
        "norse.torch.functional.lif_box",
        "its LIF without a current (LIFBox) in a loop over steps",
        {},
        NorseSteps,
        "its LIFBox stands in, which fires above the threshold only and has its own surrogate",
        _norse_single,
        loops=True,
    ),
)
