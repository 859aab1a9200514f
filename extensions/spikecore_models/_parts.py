"""What the networks share: where they begin, how they end, and their default neuron."""

from __future__ import annotations

from typing import Dict, List, Optional, TypeVar

from torch import nn

from spikecore._transforms import move_encoders
from spikecore.encode import Constant
from spikecore.layers import TimeBatched
from spikecore.neurons import LIF

_Config = TypeVar("_Config")


def lif() -> nn.Module:
    """The neuron of networks that are given none: time constant 2, and spikes carry no gradient through the reset."""
    return LIF(tau=2.0, detach_reset=True)


def beginning(steps: Optional[int]) -> List[nn.Module]:
    """An encoder that makes so many steps, or nothing in front of an input that has time."""
    return [] if steps is None else [Constant(steps)]


def made(*layers: nn.Module) -> nn.Sequential:
    """The network of these layers, the first ones of which compute once where an encoder repeats the images."""
    net = nn.Sequential(*layers)
    move_encoders(net)
    return net


def read_out(channels: int, classes: int) -> nn.Module:
    """The mean over an image, and a linear layer."""
    return TimeBatched(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def of_depth(owner: str, known: Dict[int, _Config], depth: int) -> _Config:
    """The configuration of a depth. Raises ValueError for another one."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth not in known:
        raise ValueError(f"{owner}: depth must be one of {', '.join(map(str, known))}, got {depth!r}")
    return known[depth]
