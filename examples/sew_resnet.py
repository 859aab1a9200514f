"""SEW-ResNet18 (Fang et al., 2021) on CIFAR-10, with the small stem that images of 32x32 pixels need.

    python examples/sew_resnet.py [--data cifar10|digits] [--T 4] [--layout channels-last] [--augment] [--resume] ...

CIFAR-10 is read from ``--folder``, and downloaded only with ``--download``. ``--help`` lists all options. A run writes
the same files as ``cifar10.py``.
"""

from __future__ import annotations

import argparse
from typing import Optional

from torch import nn

import spikecore as sc
from common import augment, loop, networks, options
from common.data import DataSet


def network(given: argparse.Namespace, sets: DataSet) -> nn.Sequential:
    """Images ``[B, C, H, W]`` to the values of a linear read-out, ``[T, B, 10]``."""

    def make(steps: Optional[int]) -> nn.Sequential:
        return networks.sew_resnet18(steps, lambda: sc.LIF(tau=given.tau, detach_reset=True), sets.shape, sets.classes)

    return options.encoded(given, make)


def main() -> None:
    """Run the program."""
    defaults = {"T": 4, "tau": 2.0, "epochs": 100, "batch_size": 128, "lr": 1e-3}
    parser = options.parser(__doc__, data=("cifar10", "digits"), out="runs/sew_resnet", **defaults)
    parser.add_argument("--augment", action="store_true", help="train on images that are moved and mirrored")
    loop.main(parser, network, loop.rate_loss, lambda given: augment.photographs if given.augment else None)


if __name__ == "__main__":
    main()
