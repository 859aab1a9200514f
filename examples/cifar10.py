"""Six convolutions of 256 channels on CIFAR-10, as in SpikingFlow's second tutorial on training.

    python examples/cifar10.py [--data cifar10|digits] [--T 8] [--width 256] [--augment] [--resume] ...

CIFAR-10 is read from ``--folder``, and downloaded only with ``--download``. ``--data digits --width 16`` is small
enough for a CPU. The backward pass needs the spikes of every time step: in the tutorial, T = 50 with 32 images took 12
GB. ``--help`` lists all options. A run writes TensorBoard logs, ``learning-curve.png``, ``best.safetensors`` with the
best weights, and ``checkpoint.pt``. ``--resume`` continues a run that was stopped.
"""

from __future__ import annotations

import argparse
from typing import Optional

from torch import nn

import spikecore as sc
from common import augment, loop, networks, options
from common.data import DataSet


def network(given: argparse.Namespace, sets: DataSet) -> nn.Sequential:
    """Images ``[B, C, H, W]`` to output spikes ``[T, B, 10]``: three times two convolutions and a max pooling."""

    def make(steps: Optional[int]) -> nn.Sequential:
        return networks.cifar10(steps, lambda: sc.LIF(tau=given.tau), given.width, sets.shape, sets.classes)

    return options.encoded(given, make)


def main() -> None:
    """Run the program."""
    defaults = {"T": 8, "tau": 2.0, "epochs": 100, "batch_size": 32, "lr": 1e-3}
    parser = options.parser(__doc__, data=("cifar10", "digits"), out="runs/cifar10", **defaults)
    parser.add_argument("--width", type=options.at_least(1), default=256, help="channels of every convolution")
    parser.add_argument("--augment", action="store_true", help="train on images that are moved and mirrored")
    loop.main(parser, network, loop.rate_loss, lambda given: augment.photographs if given.augment else None)


if __name__ == "__main__":
    main()
