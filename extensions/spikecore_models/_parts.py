"""Shared parts of the networks: the beginning, the read-out, and the default neuron."""

from __future__ import annotations

from collections import OrderedDict
from typing import Dict, List, Optional, TypeVar

from torch import nn

from spikecore.core.modules import calls_as
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stepped
from spikecore.encode import Constant
from spikecore.layers import TimeBatched, normalised
from spikecore.neurons import LIF

_Config = TypeVar("_Config")


def lif() -> nn.Module:
    """The neuron of networks that are given none: time constant 2, and spikes carry no gradient through the reset."""
    return LIF(tau=2.0, detach_reset=True)


def beginning(
    layer: nn.Module, norm: nn.Module, steps: Optional[int], neuron: Optional[nn.Module] = None
) -> List[nn.Module]:
    """The first layer with its normalisation, and the neuron behind it, if there is one.

    With ``steps`` the layer takes images ``[B, ...]``, and computes them once. The neuron makes the time steps; without
    one that has ``repeat``, an encoder behind the layer does. Parameters have the names of a network whose first module
    is an encoder, so that weights fit where one stands in front.
    """
    behind = [] if neuron is None else [neuron]
    if steps is None:
        return [normalised(layer, norm), *behind]
    encoder = Constant(steps)
    if isinstance(norm, Stepped):  # it takes all steps
        return [nn.Identity(), nn.Sequential(_once(layer, encoder), norm), *behind]
    if not isinstance(neuron, Neuron) or not calls_as(neuron, Neuron):
        return [nn.Identity(), _once(nn.Sequential(layer, norm), encoder), *behind]
    neuron.repeat = encoder.steps
    return [nn.Identity(), _once(nn.Sequential(layer, norm)), neuron]


def _once(layer: nn.Module, *encoder: nn.Module) -> nn.Module:
    """A layer of images under the name that it has within ``TimeBatched``."""
    return nn.Sequential(OrderedDict([("module", layer), *[("constant", module) for module in encoder]]))


def read_out(channels: int, classes: int) -> nn.Module:
    """The mean over an image, and a linear layer."""
    return TimeBatched(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def of_depth(owner: str, known: Dict[int, _Config], depth: int) -> _Config:
    """The configuration of a depth. Raises ValueError for another one."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth not in known:
        raise ValueError(f"{owner}: depth must be one of {', '.join(map(str, known))}, got {depth!r}")
    return known[depth]
