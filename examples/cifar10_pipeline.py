"""The network of ``cifar10.py`` over several devices, as in SpikingFlow's programs cifar10mp and cifar10cmp.

    python examples/cifar10_pipeline.py --devices cuda:0,cuda:1,cuda:2,cuda:0,cuda:3 --split-size 16 [--constant] ...

There are five stages. The first four are short, because they store the largest activations: convolution, neurons,
convolution, neurons. The fifth has all other layers. With fewer devices, neighbouring stages share a device. Without
``--constant`` the batch is streamed through the stages in parts. With it, the image is streamed step by step. ``--every
N`` recomputes groups of N layers in backward. On a CPU: ``--devices cpu,cpu --data digits --width 16``.
"""

from __future__ import annotations

import argparse
from typing import Any, Optional

from torch import Tensor, nn

import spikecore as sc
from common import augment, loop, networks, options
from common.data import DataSet

#: Where the stages begin in the network of ``cifar10.py``, whose first module is the encoder or its place.
BEGINS = (0, 2, 3, 4, 5)


class Net(sc.parallel.Pipeline):
    """Images ``[B, C, H, W]`` to output spikes ``[T, B, 10]``, or with ``--constant`` to their rates ``[1, B, 10]``."""

    def __init__(self, given: argparse.Namespace, sets: DataSet) -> None:
        devices = given.devices.split(",")
        if len(devices) > len(BEGINS):
            raise ValueError(f"--devices {given.devices} are {len(devices)} devices for {len(BEGINS)} stages")

        def make(steps: Optional[int]) -> nn.Sequential:
            return networks.cifar10(steps, lambda: sc.LIF(tau=given.tau), given.width, sets.shape, sets.classes)

        net = nn.Sequential(nn.Identity(), *make(None)) if given.constant else options.encoded(given, make)
        stages = [net[begin:end] for begin, end in zip(BEGINS, (*BEGINS[1:], len(net)))]
        placed = [(stage, devices[k * len(devices) // len(stages)]) for k, stage in enumerate(stages)]
        super().__init__(placed, batch_dim=(0, 1))  # [B, C, H, W] to [T, B, classes]
        self.given = given

    def forward(self, images: Tensor) -> Any:
        """As the options say."""
        if self.given.constant:
            return self.constant_forward(images, self.given.T)[None] / self.given.T
        parts, remainder = divmod(len(images), self.given.split_size)  # the last batch of a test is a short one
        self.set_split(split_sizes=[self.given.split_size] * parts + [remainder] * (remainder > 0))
        return super().forward(images)


def network(given: argparse.Namespace, sets: DataSet) -> sc.parallel.Pipeline:
    """The pipeline that the options describe."""
    net = Net(given, sets)
    if given.every is not None:
        sc.checkpoint(net, every=given.every)
    return net


def main() -> None:
    """Run the program."""
    defaults = {"T": 50, "tau": 100.0, "epochs": 100, "batch_size": 64, "lr": 1e-3, "encoder": "poisson"}
    files = {"data": ("cifar10", "digits"), "out": "runs/cifar10_pipeline"}
    parser = options.parser(__doc__, **files, devices="cpu,cpu", **defaults)
    parser.add_argument("--split-size", type=options.at_least(1), default=16, help="images in a part of the batch")
    parser.add_argument("--constant", action="store_true", help="the image itself at every step, without an encoder")
    parser.add_argument("--every", type=options.at_least(1), help="compute groups of so many layers again in backward")
    parser.add_argument("--width", type=options.at_least(1), default=256, help="channels of every convolution")
    parser.add_argument("--augment", action="store_true", help="train on images that are moved and mirrored")
    streamed = {"--encoder": "the image itself is the input", "--split-size": "steps are streamed, of whole batches"}
    parser.ignored += [options.Ignored(one, "--constant", True, why) for one, why in streamed.items()]
    loop.main(parser, network, loop.rate_loss, lambda given: augment.photographs if given.augment else None)


if __name__ == "__main__":
    main()
