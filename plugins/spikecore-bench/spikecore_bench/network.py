"""A network to train, and the beginning of one whose input has no time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

import torch
from torch import nn

import spikecore as sc

#: Makes the neuron of one layer.
Activation = Callable[[], nn.Module]


def beginning(steps: Optional[int], layers: nn.Module, neuron: nn.Module) -> List[nn.Module]:
    """Layers of ``[B, ...]`` and the neuron behind them, which makes the time steps; without ``steps`` the input has
    time. Parameters then have the same names behind an encoder.
    """
    if steps is None:
        return [sc.layers.TimeBatched(layers), neuron]
    once = OrderedDict([("module", layers)])
    if isinstance(neuron, sc.Neuron):
        neuron.repeat = steps
    else:
        once["constant"] = sc.encode.Constant(steps)
    return [nn.Identity(), nn.Sequential(once), neuron]


@dataclass(frozen=True)
class Network:
    """A network to train, and on what."""

    name: str
    about: str
    make: Callable[[int, Activation], nn.Module]
    steps: int
    batch: int
    #: Images in a batch on a CPU, where more would take minutes.
    batch_on_cpu: int
    image: Tuple[int, ...]
    classes: int
    autocast: Optional[torch.dtype] = None
    #: True if products of float32 matrices are those of TF32.
    tf32: bool = False
    #: The network as SpikingJelly has it ready, for a number of steps; where it is not there, there is no row.
    of_spikingjelly: Optional[Callable[[int], nn.Module]] = None
    #: The neuron on a named backend; LIF where none is given, and then also those of other libraries.
    neuron: Optional[Callable[[str], nn.Module]] = None
    #: The same network with ReLU in mind: in the layout that makes it fastest.
    by_hand: Optional[Callable[[int, Activation], nn.Module]] = None
    #: True if the input has time, ``[T, B, ...]``.
    in_time: bool = False
    #: Forms that it is measured in on a GPU; those of images or of vectors where none are given.
    forms: Tuple[str, ...] = ()
