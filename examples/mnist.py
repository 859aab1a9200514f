"""A spiking network on MNIST, trained in some minutes on two CPU cores: 98 % plain, 99 % with augmentation.

    python examples/mnist.py --data FOLDER                             # 784-512-10 neurons, 98 %
    python examples/mnist.py --data FOLDER --network conv --augment    # two convolutions, 99 %
    python examples/mnist.py --data FOLDER --device cuda               # the same on a GPU

FOLDER has the four files of MNIST as Y. LeCun, C. Cortes and C. Burges published them, plain or with ``.gz``:
``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte``, ``t10k-labels-idx1-ubyte``.
``--download`` gets them into it, 11 MB. They are read here; torchvision is not needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Iterator

import torch
from torch import Tensor, nn

import spikecore as sc
from common import augment, data, results
from common.files import DataError
from common.options import EPOCHS, SEED, Defaults, any_seed, at_least

STEPS = 4  # time steps of an image
BATCH = 120  # divides 60,000: all batches have one size, as an IPU needs


def dense() -> nn.Sequential:
    """Images ``[B, 1, 28, 28]`` to potentials ``[T, B, 10]``. The image drives the first neurons at every step."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(784, 512)),  # without time, so computed once
        sc.LIF(tau=2.0, repeat=STEPS),
        nn.Linear(512, 10),
        sc.LI(tau=2.0),  # a read-out that integrates and does not fire
    )


def conv() -> nn.Sequential:
    """The same with two convolutions, each of which halves the image: a fourteenth of the weights."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.BatchNorm2d(16)),
        sc.LIF(tau=2.0, repeat=STEPS),
        sc.layers.TimeBatched(nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.BatchNorm2d(32)),
        sc.LIF(tau=2.0),
        sc.layers.TimeBatched(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
        sc.LI(tau=2.0),
    )


def loss_fn(potentials: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the mean over time."""
    return nn.functional.cross_entropy(potentials.mean(0), labels)


def train(net: nn.Module, sets: data.DataSet, options: argparse.Namespace) -> Iterator[float]:
    """Train the network; gives the test accuracy after each epoch."""
    (images, labels), tests = (part.tensors for part in (sets.training, sets.test))
    images, labels = images.to(options.device), labels.to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    step, predict = sc.training_model(net, loss_fn, optimizer), sc.inference_model(net)
    order = torch.Generator().manual_seed(options.seed)
    for _ in range(options.epochs):
        for rows in torch.randperm(len(images), generator=order).to(images.device).split(BATCH):
            batch = augment.affine(images[rows], order, 0.6) if options.augment else images[rows]
            step(batch, labels[rows])
        schedule.step()
        yield results.accuracy(predict, *tests)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description="A spiking network on MNIST.", formatter_class=Defaults)
    parser.add_argument("--data", type=Path, metavar="FOLDER", default=Path("data/mnist"), help="of MNIST's files")
    parser.add_argument("--download", action="store_true", help="get the files where they are not there")
    parser.add_argument("--network", choices=("dense", "conv"), default="dense", help="what is trained")
    parser.add_argument("--augment", action="store_true", help="train on images that are turned, scaled and moved")
    parser.add_argument("--epochs", type=at_least(1), default=10, help=EPOCHS)
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate at the start; a cosine ends it")
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--backend", default=None, help="name of a backend; see `spikecore backends`")
    parser.add_argument("--device", default="cpu", help="torch device, for example cuda")
    results.add_option(parser)
    results.add_weights_option(parser)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    try:
        way_out = "Name the folder of these files with --data, or get them with --download"
        sets = data.mnist(options.data, options.download, way_out=way_out)
        net = (dense if options.network == "dense" else conv)().to(options.device)
        sc.set_backend(net, options.backend)
        run = results.Run(net, "MNIST", options)
        for score in train(net, sets, options):
            run.epoch(score)
    except (DataError, sc.backend.BackendError, sc.backend.Unsupported) as error:
        parser.error(str(error))
    run.finish()
    if options.weights is not None:
        results.save_weights(options.weights, run, sets.test.tensors, "CC BY-SA 3.0")


if __name__ == "__main__":
    main()
