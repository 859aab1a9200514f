"""The neurons that are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Tuple

import torch
from torch import Tensor

import spikecore as sc


@dataclass(frozen=True)
class Hat(sc.surrogate.Surrogate):
    """A surrogate of a user's own: a hat of half width ``width`` and height ``height``, which no library has ready."""

    width: float = 1.5
    height: float = 0.4

    def derivative(self, u: Any) -> Any:
        """``height max(0, 1 - |u| / width)``."""
        return self.height * sc.ops.maximum(1.0 - abs(u) / self.width, 0.0)


class _HatSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        hat = Hat()
        gradient: Tensor = grads[0] * (hat.height * (1.0 - u.abs() / hat.width).clamp_min(0.0))
        return gradient


def hat_spike(u: Tensor) -> Tensor:
    """:class:`Hat` as one writes it for other libraries: a spike as a function of tensors."""
    spike: Tensor = _HatSpike.apply(u)
    return spike


class TwoStates(sc.Neuron):
    """A neuron of a user's own: LIF whose threshold is raised by each spike."""

    states = {"v": 0.0, "a": 0.0}
    params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step."""
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - (p.threshold + p.beta * s.a))
        return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}


@dataclass(frozen=True)
class Workload:
    """A neuron to measure. All have one input and one output, and the surrogate ATan(2) unless they say otherwise."""

    name: str
    #: The same in words, for a legend.
    about: str
    #: The neuron on the named backend.
    make: Callable[[str], sc.Neuron]


WORKLOADS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        Workload("LIF", "LIF, hard reset", lambda name: sc.LIF(2.0, backend=name)),
        Workload("Leaky", "Leaky of snnTorch, soft reset one step later", lambda name: sc.Leaky(0.9, backend=name)),
        Workload("IF", "integrate-and-fire, hard reset", lambda name: sc.IF(backend=name)),
        Workload("PLIF", "LIF with one learnt tau", lambda name: sc.PLIF(2.0, backend=name)),
        Workload("Synaptic", "current-based LIF", lambda name: sc.Synaptic(backend=name)),
        Workload("ALIF", "LIF with an adaptive threshold", lambda name: sc.ALIF(2.0, backend=name)),
        Workload("own-neuron", "a neuron of a user's own with two states", lambda name: TwoStates(backend=name)),
        Workload(
            "own-surrogate", "LIF with a surrogate of a user's own", lambda name: sc.LIF(surrogate=Hat(), backend=name)
        ),
    )
}

#: Channels of the workloads that have a parameter for each.
CHANNELS = 64


def _per_channel(value: float) -> Tensor:
    return torch.full((CHANNELS,), value)


#: Neurons that are measured in several layouts: with parameters that are fixed, learnt, and learnt for each channel.
IN_LAYOUTS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        WORKLOADS["LIF"],
        WORKLOADS["PLIF"],
        Workload(
            "LIF, tau of each channel",
            "LIF, tau learnt for each channel",
            lambda name: sc.LIF(_per_channel(2.0), learn=("tau",), backend=name),
        ),
        Workload(
            "LIF, threshold of each channel",
            "LIF with a soft reset, threshold learnt for each channel",
            lambda name: sc.LIF(2.0, threshold=_per_channel(1.0), reset="soft", learn=("threshold",), backend=name),
        ),
        Workload(
            "LIF, tau and threshold of each channel",
            "LIF, tau and threshold learnt for each channel",
            lambda name: sc.LIF(
                _per_channel(2.0), threshold=_per_channel(1.0), learn=("tau", "threshold"), backend=name
            ),
        ),
    )
}
