"""Small networks with trained weights, which come with spikecore.

A file of ``weights/`` has a network's weights, in float16, and what is known of its training as JSON. The programs of
``examples/`` write it, whose networks these are (``--weights``).
"""

from __future__ import annotations

import io
import json
import pkgutil
from typing import Any, Callable, Dict, NamedTuple, Tuple

import numpy as np
import torch
from torch import nn

from spikecore import layers
from spikecore.neurons import LI, LIF


def _digits() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24)),
        LIF(tau=2.0, repeat=8),
        layers.TimeBatched(nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48)),
        LIF(tau=2.0),
        layers.TimeBatched(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48 * 4 * 4, 10)),
        LIF(tau=2.0),
    )


def _mnist() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16)),
        LIF(tau=2.0, repeat=4),
        layers.TimeBatched(nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.BatchNorm2d(32)),
        LIF(tau=2.0),
        layers.TimeBatched(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
        LI(tau=2.0),
    )


_NETWORKS: Dict[str, Callable[[], nn.Sequential]] = {"digits": _digits, "mnist": _mnist}


class Trained(NamedTuple):
    """Facts about trained weights: the data set and its licence, the accuracy on its test part, the training."""

    name: str
    data: str
    licence: str
    network: str
    parameters: int
    accuracy: float
    #: Test images of the accuracy.
    images: int
    epochs: int
    seed: int
    #: The program that trained them.
    command: str


def trained() -> Dict[str, Trained]:
    """The networks that :func:`load` knows, by name."""
    return {name: _read(name)[0] for name in _NETWORKS}


def load(name: str) -> nn.Sequential:
    """A network with trained weights, in evaluation mode: ``sc.models.load("mnist")``.

    - ``"digits"``: scikit-learn's digits, ``[B, 1, 8, 8]`` in [0, 1] to spikes ``[8, B, 10]``.
    - ``"mnist"``: MNIST, ``[B, 1, 28, 28]`` in [0, 1] to potentials ``[4, B, 10]``.

    The class of an image has the highest sum over time: ``net(images).sum(0).argmax(-1)``. :func:`trained` has the
    accuracies, and where the weights are from. Weights are stored in float16, and float32 in the network.
    """
    if name not in _NETWORKS:
        raise ValueError(f"no network {name!r} comes with spikecore; there are {', '.join(map(repr, _NETWORKS))}")
    net = _NETWORKS[name]()
    net.load_state_dict(_read(name)[1])
    return net.eval()


def _read(name: str) -> Tuple[Trained, Dict[str, Any]]:
    content = pkgutil.get_data(__package__, f"weights/{name}.npz")
    if content is None:
        raise FileNotFoundError(f"weights/{name}.npz of spikecore_models cannot be read")
    with np.load(io.BytesIO(content)) as arrays:  # no pickles, which could run code
        about = json.loads(str(arrays["about"]))
        weights = {key: torch.from_numpy(arrays[key]) for key in arrays.files if key != "about"}
    facts = {key: value for key, value in about.items() if key in Trained._fields}
    return Trained(name=name, **facts), weights
