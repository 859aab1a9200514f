"""A convolutional spiking network on recordings of event cameras: N-MNIST and DVS Gesture, as frames.

    python examples/events.py [--data nmnist|dvsgesture|digits] [--T 16] [--workers 4] [--resume] ...

tonic (``pip install '.[events]'``) reads the recordings from ``--folder``, and downloads them only with ``--download``.
``--data digits`` needs no tonic and no download: it turns scikit-learn's digits into events of a moving camera.
``--help`` lists all options. A run writes the same files as ``cifar10.py``.
"""

from __future__ import annotations

import argparse
from typing import List

from torch import Tensor, nn

import spikecore as sc
from common import events, loop, options
from common.data import DataSet


class TimeFirst(nn.Module):
    """``[B, T, ...] -> [T, B, ...]``: loaders put the batch first, neurons want time there."""

    def forward(self, x: Tensor) -> Tensor:
        """A view."""
        return x.transpose(0, 1)


def network(given: argparse.Namespace, sets: DataSet) -> nn.Sequential:
    """Frames ``[B, T, 2, H, W]`` to output spikes ``[T, B, classes]``: convolutions, each halved, down to 4 pixels."""
    _, channels, height, width = sets.shape
    layers: List[nn.Module] = [TimeFirst()]
    while min(height, width) >= 8:
        norm = nn.BatchNorm2d(given.width)
        convolution = nn.Conv2d(channels, given.width, 3, padding=1, bias=False)
        layers += [sc.layers.TimeBatched(convolution, norm, nn.MaxPool2d(2)), sc.LIF(tau=given.tau, detach_reset=True)]
        channels, height, width = given.width, height // 2, width // 2
    read_out = nn.Linear(channels * height * width, sets.classes)
    return nn.Sequential(*layers, sc.layers.TimeBatched(nn.Flatten(), read_out), sc.LIF(tau=given.tau))


def load(given: argparse.Namespace) -> DataSet:
    """The data set asked for."""
    return events.load(given.data, given.T, given.folder, given.download)


def main() -> None:
    """Run the program."""
    defaults = {"encoder": None, "T": 16, "tau": 2.0, "epochs": 64, "batch_size": 32, "lr": 1e-3}
    parser = options.parser(__doc__, data=("nmnist", "dvsgesture", "digits"), out="runs/events", **defaults)
    parser.add_argument("--width", type=options.at_least(1), default=64, help="channels of every convolution")
    loop.main(parser, network, loop.rate_loss, load=load)


if __name__ == "__main__":
    main()
