"""Accuracy of ``sc.ann2snn`` for a residual network with maximum pooling, beside SpikingJelly's converter.

python docs/benchmarks/ann2snn.py                              # scikit-learn's digits
python docs/benchmarks/ann2snn.py --mnist FOLDER --epochs 3    # MNIST, from its four IDX files (.gz)
python docs/benchmarks/ann2snn.py --spikingjelly               # beside SpikingJelly 2.0.0, which must be installed
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any, Callable, Tuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import spikecore as sc


class Block(nn.Module):
    """Two convolutions, and their input or a projection of it."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]``."""
        y = self.relu1(self.norm1(self.conv1(x)))
        out: Tensor = self.relu2(self.norm2(self.conv2(y)) + self.shortcut(x))
        return out


def resnet(width: int) -> nn.Sequential:
    """Eight layers of weights, a maximum pooling and three residual sums."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(Block(width, width), Block(width, 2 * width, 2), Block(2 * width, 2 * width)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)),
    )


def digits() -> Tuple[Tensor, Tensor, int]:
    """Images, labels, and the number of those to train with."""
    data = load_digits()
    return torch.tensor(data.images).float()[:, None] / 16, torch.tensor(data.target), 1400


def mnist(folder: Path) -> Tuple[Tensor, Tensor, int]:
    """The same of MNIST."""

    def read(name: str, header: int) -> Tensor:
        with gzip.open(folder / f"{name}.gz") as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=header).copy())

    images = [read(f"{part}-images-idx3-ubyte", 16).view(-1, 1, 28, 28).float() / 255 for part in ("train", "t10k")]
    labels = [read(f"{part}-labels-idx1-ubyte", 8).long() for part in ("train", "t10k")]
    return torch.cat(images), torch.cat(labels), len(images[0])


def trained(images: Tensor, labels: Tensor, width: int, epochs: int) -> nn.Module:
    """The network of ReLUs."""
    net = resnet(width)
    batch = 100
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * len(images) // batch)
    for _ in range(epochs):
        for samples in torch.randperm(len(images)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(net(images[samples]), labels[samples]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def accuracy(network: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> float:
    """Per cent of the images whose class is right."""
    parts = zip(images.split(500), labels.split(500))
    return 100 * torch.cat([network(x).argmax(1) == y for x, y in parts]).double().mean().item()


def of_spikingjelly(net: nn.Module, data: Any, mode: str, steps: int) -> Callable[[Tensor], Tensor]:
    """SpikingJelly's network."""
    from spikingjelly.activation_based import ann2snn, functional  # optional

    snn = ann2snn.Converter(ann2snn.RateCodingRecipe([(x, 0) for x in data], mode=mode)).convert(net)

    def run(x: Tensor) -> Tensor:
        functional.reset_net(snn)
        total = snn(x)
        for _ in range(steps - 1):
            total = total + snn(x)
        return total

    return run


def main() -> None:
    """Train, convert, and print a row for each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--spikingjelly", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    images, labels, train = digits() if options.mnist is None else mnist(options.mnist)
    net = trained(images[:train], labels[:train], options.width, options.epochs)
    test = images[train:], labels[train:]
    data = images[:1400].split(200)
    print(f"seed {options.seed}, ReLU: {accuracy(net, *test):.2f} %", flush=True)
    for steps in options.steps:
        snn, _ = sc.ann2snn(net, data, steps=steps)
        row = f"T={steps}: {accuracy(lambda x, snn=snn: snn(x).mean(0), *test):.2f} %"  # type: ignore[misc]
        if options.spikingjelly:
            for mode in ("max", "99.9%"):
                row += f", SpikingJelly {mode}: {accuracy(of_spikingjelly(net, data, mode, steps), *test):.2f} %"
        print(row, flush=True)


if __name__ == "__main__":
    main()
