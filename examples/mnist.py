"""A fully connected spiking network on MNIST: 784-196-10, as in SpikingFlow's first tutorial on training.

    python examples/mnist.py [--data digits] [--encoder poisson|constant] [--epochs N] [--resume] ...

``--data digits`` trains on scikit-learn's digits; ``--help`` lists all options. In the output folder: TensorBoard logs,
``learning-curve.png``, ``best.safetensors`` with the best weights, and ``checkpoint.pt``. A run that was stopped, by
Ctrl-C or otherwise, goes on from there with ``--resume``.
"""

from __future__ import annotations

import argparse
import math

from torch import Tensor, nn
from torch.nn import functional as F

import spikecore as sc
from common import loop, options
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


def loss(spikes: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the firing rates, as the tutorial has it."""
    return F.cross_entropy(spikes.float().mean(0), labels)


if __name__ == "__main__":
    parser = options.parser(
        __doc__,
        data=("digits",),
        out="runs/mnist",
        encoder="poisson",
        T=50,
        tau=2.0,
        epochs=100,
        batch_size=256,
        lr=1e-2,
    )
    parser.add_argument("--hidden", type=options.at_least(1), default=196, help="neurons of the hidden layer")
    loop.main(parser, network, loss)
