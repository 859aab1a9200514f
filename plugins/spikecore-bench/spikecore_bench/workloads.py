"""The neurons that are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor

import spikecore as sc


@dataclass(frozen=True)
class Hat(sc.Surrogate):
    """A surrogate of a user's own: a hat of half width ``width`` and height ``height``, which no library has ready."""

    width: float = 1.5
    height: float = 0.4

    def derivative(self, u: Any) -> Any:
        """``height max(0, 1 - |u| / width)``."""
        return self.height * sc.ops.maximum(1.0 - abs(u) / self.width, 0.0)


def by_hand(derivative: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A spike as one writes it in plain PyTorch: 1 where the argument is 0 or more, with a derivative for backward."""

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, u: Tensor) -> Tensor:
            ctx.save_for_backward(u)
            return (u >= 0).to(u.dtype)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            (u,) = ctx.saved_tensors
            return grads[0] * derivative(u)

    apply: Callable[[Tensor], Tensor] = Spike.apply
    return apply


_hat: Callable[[Tensor], Tensor] = by_hand(lambda u: Hat.height * (1.0 - u.abs() / Hat.width).clamp_min(0.0))


def hat_spike(u: Tensor) -> Tensor:
    """:class:`Hat` as one writes it for other libraries: a spike as a function of tensors."""
    return _hat(u)


class TwoStates(sc.Neuron):
    """A neuron of a user's own: LIF whose threshold is raised by each spike."""

    states = {"v": 0.0, "a": 0.0}
    params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step."""
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - (p.threshold + p.beta * s.a))
        return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}


class Workload(NamedTuple):
    """A neuron to measure. All have one input and one output, and the surrogate ATan(2) unless they say otherwise."""

    name: str
    #: The neuron on the named backend.
    make: Callable[[str], sc.Neuron]


WORKLOADS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        Workload("LIF", lambda name: sc.LIF(2.0, backend=name)),
        # snnTorch's, with a soft reset one step later
        Workload("Leaky", lambda name: sc.Leaky(0.9, backend=name)),
        Workload("IF", lambda name: sc.IF(backend=name)),
        Workload("PLIF", lambda name: sc.PLIF(2.0, backend=name)),
        Workload("Synaptic", lambda name: sc.Synaptic(backend=name)),
        Workload("ALIF", lambda name: sc.ALIF(2.0, backend=name)),
        Workload("BRF", lambda name: sc.BRF(backend=name)),
        Workload("own-neuron", lambda name: TwoStates(backend=name)),
        Workload("own-surrogate", lambda name: sc.LIF(surrogate=Hat(), backend=name)),
    )
}

#: Channels of the workloads that have a parameter for each.
CHANNELS = 64


def _per_channel(value: float) -> Tensor:
    return torch.full((CHANNELS,), value)


def _thresholds(name: str) -> sc.Neuron:
    return sc.LIF(2.0, threshold=_per_channel(1.0), reset="soft", learn=("threshold",), backend=name)


def _both(name: str) -> sc.Neuron:
    return sc.LIF(_per_channel(2.0), threshold=_per_channel(1.0), learn=("tau", "threshold"), backend=name)


#: Neurons that are measured in several layouts: with parameters that are fixed, learnt, and learnt for each channel.
IN_LAYOUTS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        WORKLOADS["LIF"],
        WORKLOADS["PLIF"],
        Workload("LIF, tau of each channel", lambda name: sc.LIF(_per_channel(2.0), learn=("tau",), backend=name)),
        Workload("LIF, threshold of each channel", _thresholds),
        Workload("LIF, tau and threshold of each channel", _both),
    )
}
