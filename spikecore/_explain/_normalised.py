"""Which neurons could normalise their own input, and how one has them do it."""

from __future__ import annotations

from math import prod
from typing import List, Optional, Tuple

from torch import nn

from spikecore._explain._layers import Layer
from spikecore._fusing import pairs
from spikecore._plugins.selection import REFERENCE
from spikecore._shell.binding import backend_on
from spikecore._shell.modules import calls_as
from spikecore._shell.norms import can_defer, is_watched
from spikecore._shell.prologued import prologue_of
from spikecore.neuron import Neuron

#: A layer with its module, and the module that computed its first input.
Placed = Tuple[Layer, nn.Module, Optional[nn.Module]]


def behind_norms(net: nn.Module, placed: List[Placed], device_type: str) -> Tuple[List[Layer], List[Layer]]:
    """Neurons that get what a batch normalisation gives, of a backend that has one kernel for both: those that
    ``sc.fuse(net)`` takes, and those that only :class:`spikecore.layers.NormNeuron` can.

    Left out is one whose input is one step repeated: it is normalised once, and no kernel of both is used.
    """
    taken = set(pairs(net))
    of = {module: layer for layer, module, _ in placed}
    fused: List[Layer] = []
    by_hand: List[Layer] = []
    for layer, neuron, norm in placed:
        if norm not in of or not isinstance(neuron, Neuron) or layer.layout_in.startswith("one step repeated"):
            continue
        if layer.backend in ("", REFERENCE) or not _has_kernel(neuron, device_type):
            continue
        if (norm, neuron) in taken:
            fused.append(layer)
        elif _can_be_one(of[norm], norm, layer, neuron):
            by_hand.append(layer)
    return fused, by_hand


def _has_kernel(neuron: Neuron, device_type: str) -> bool:
    """Whether the backend computes normalisation and neuron in one kernel."""
    return backend_on(neuron, device_type).capabilities_on(device_type).normalisation


def _can_be_one(normalised: Layer, norm: nn.Module, layer: Layer, neuron: Neuron) -> bool:
    """Whether a ``NormNeuron`` of both computes what they compute."""
    if not can_defer(norm) or len(neuron.inputs) != 1 or prologue_of(neuron) is not None:
        return False
    # hooks, and a forward of a derived class, would see what is not normalised yet
    if not calls_as(neuron, Neuron) or is_watched(neuron):
        return False
    # one of them that is called more often stands beside something else, too
    if normalised.calls != layer.calls or prod(normalised.shape) != prod(layer.shape):
        return False
    # a NormNeuron normalises over time, batch and space: the channels are behind time and batch
    behind = 1 if neuron.step == "single" else 2
    return len(layer.shape) > behind and layer.shape[behind] == norm.num_features
