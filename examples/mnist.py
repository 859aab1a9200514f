"""A fully connected spiking network on MNIST: 784-196-10, as in SpikingFlow's first tutorial on training.

    python examples/mnist.py [--data mnist|digits] [--encoder poisson|constant] [--augment] [--resume] ...

MNIST is read from ``--folder``, and downloaded only with ``--download``. ``--data digits`` trains on scikit-learn's
digits. ``--help`` lists all options. The output folder gets TensorBoard logs, ``learning-curve.png``,
``best.safetensors`` with the best weights, and ``checkpoint.pt``. ``--resume`` continues a run that was stopped, by
Ctrl-C or otherwise.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

import spikecore as sc
from common import augment, loop, options
from common.data import DataSet


def network(given: argparse.Namespace, sets: DataSet) -> nn.Sequential:
    """Images ``[B, ...]`` to output spikes ``[T, B, 10]``. The hidden layer has a quarter of MNIST's pixels, 196."""
    return nn.Sequential(
        nn.Flatten(),
        options.encoder(given),
        nn.Linear(math.prod(sets.shape), given.hidden, bias=False),
        sc.LIF(tau=given.tau),
        nn.Linear(given.hidden, sets.classes, bias=False),
        sc.LIF(tau=given.tau),
    )


def changed(images: Tensor, generator: torch.Generator) -> Tensor:
    """Affine maps and noise, which the tutorial needs for its 99 %."""
    return augment.noise(augment.affine(images, generator), generator)


def main() -> None:
    """Run the program."""
    defaults = {"encoder": "poisson", "T": 50, "tau": 2.0, "epochs": 100, "batch_size": 256, "lr": 1e-2}
    parser = options.parser(__doc__, data=("mnist", "digits"), out="runs/mnist", **defaults)
    parser.add_argument("--hidden", type=options.at_least(1), default=196, help="neurons of the hidden layer")
    parser.add_argument("--augment", action="store_true", help="train on images with noise and affine maps")
    loop.main(parser, network, loop.rate_loss, lambda given: changed if given.augment else None)


if __name__ == "__main__":
    main()
