"""Train a spiking network on scikit-learn's handwritten digits in integers, and run it as C on a microcontroller.

    python examples/microcontroller.py [--epochs N] [--seed S] [--weights BITS] [--word BITS] [--out FOLDER]

The network is trained in floats, put on integers (``sc.quant.prepare``: weights of 8 bits, potentials of 16), trained
further as it will compute, and written as a program in C (``sc.export_c``). That runs on an emulated Cortex-M4 where
``arm-none-eabi-gcc`` and ``qemu-system-arm`` are installed (on Debian: ``gcc-arm-none-eabi qemu-system-arm``), else on
this machine. It must give the same spikes as the network in PyTorch, one for one.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from common import data

STEPS = 8  # time steps per image
IMAGES = 16  # test images that the chip sees


def network() -> nn.Sequential:
    """Images over time ``[T, B, 1, 8, 8]`` to output spikes ``[T, B, 10]``."""
    return nn.Sequential(
        sc.layers.TimeBatched(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)),
        sc.LIF(tau=2.0),
        sc.layers.TimeBatched(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)),
        sc.LIF(tau=2.0),
        sc.layers.TimeBatched(nn.Flatten(), nn.Linear(16 * 4 * 4, 10)),
        sc.LIF(tau=2.0),
    )


def over_time(images: Tensor) -> Tensor:
    """The image drives the network at every step."""
    return images.expand(STEPS, *images.shape)


def train(net: nn.Module, tensors: Tuple[Tensor, ...], epochs: int, rate: float, order: torch.Generator) -> None:
    """Train on spike counts."""
    images, labels = tensors
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    step = sc.training_model(net, sc.losses.ce_count, optimizer)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(64):
            step(over_time(images[batch]), labels[batch])
    net.eval()


def accuracy(net: nn.Module, tensors: Tuple[Tensor, ...]) -> float:
    """The part of images whose label has most spikes."""
    images, labels = tensors
    return sc.metrics.accuracy(sc.inference_model(net)(over_time(images)), labels)


def run(folder: Path) -> str:
    """Build and run the program, on the emulated chip if there is one; what it says."""
    chip = shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm")
    target = "test-cortex-m4" if chip else "test"
    print("on an emulated Cortex-M4:" if chip else "without an emulator of a chip, on this machine:")
    done = subprocess.run(["make", "-s", "-C", str(folder), target], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make -C {folder} {target} failed:\n{done.stdout}{done.stderr}")
    return (done.stdout + done.stderr).strip()


def main(arguments: Any = None) -> None:
    """Train, quantise, export, run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8, help="in floats; a quarter as many follow in integers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=int, default=8, help="bits of a weight, 2 to 8")
    parser.add_argument("--word", type=int, default=16, help="bits of a potential")
    parser.add_argument("--out", type=Path, default=Path("runs/microcontroller"), help="where the C goes")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)
    training, test = (part.tensors for part in data.digits()[1:3])

    net = network()
    train(net, training, options.epochs, 4e-3, order)
    print(f"floats:   {accuracy(net, test):.1%} of the test images")

    quantised = sc.quant.prepare(net, over_time(training[0][:256]), options.weights, word=options.word)
    train(quantised, training, max(1, options.epochs // 4), 4e-4, order)
    print(f"integers: {accuracy(quantised, test):.1%}, weights of {options.weights} bits, potentials of {options.word}")

    program = sc.export_c(quantised, over_time(test[0][:IMAGES]), options.out, name="digits")
    print(f"wrote {options.out}: {program.flash} bytes of tables in flash, {program.memory} bytes of memory")
    print(run(options.out))


if __name__ == "__main__":
    main()
