"""Five neurons of three sizes on one thread of a CPU, beside the other CPU backends, in one run.

taskset -c 0 python benchmarks/compare.py [--repetitions 9]

The backends run in turn, again and again, so that all see the same machine. The table shows the fastest turn of each,
forward / forward and backward in milliseconds: float32, inputs of random numbers, all gradients of the input.
"""
# ruff: noqa: INP001, T201 - a program

from __future__ import annotations

import argparse
import os
import time
from typing import Any, Callable, Dict

import torch
from torch import Tensor

import spikecore as sc

BACKENDS = ("opencl", "numba", "c")
SIZES = ((16, 256), (128, 1280), (16, 200_000))
#: Seconds that a backend runs in its turn, at least.
AT_LEAST = 0.03


def made(backend: str) -> Dict[str, sc.Neuron]:
    """The neurons."""
    return {
        "LIF": sc.LIF(backend=backend),
        "PLIF": sc.PLIF(backend=backend),
        "ALIF": sc.ALIF(backend=backend),
        "EIF": sc.EIF(backend=backend),
        "Izhikevich": sc.Izhikevich(backend=backend),
    }


def seconds(run: Callable[..., Any], *args: Any) -> float:
    """Time of a call."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < AT_LEAST:
        run(*args)
        count += 1
    return (time.perf_counter() - began) / count


def forward(neuron: sc.Neuron, x: Tensor, grad: Tensor) -> None:
    """Without gradients."""
    with torch.no_grad():
        neuron(x)


def training(neuron: sc.Neuron, x: Tensor, grad: Tensor) -> None:
    """Forward and backward."""
    neuron(x).backward(grad)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    ready = [status.name for status in sc.backends(probe=True) if status.state == "ready"]
    backends = [name for name in BACKENDS if name in ready]
    print(*(f"{s.name}: {s.detail}" for s in sc.backends(probe=True) if s.name == "opencl"))
    print(f"cores: {sorted(os.sched_getaffinity(0))}\n\n| T, N | neuron |", " | ".join(backends), "|")
    print("|---" * (2 + len(backends)) + "|")
    neurons = {backend: made(backend) for backend in backends}
    for steps, count in SIZES:
        x, grad = (torch.randn(steps, count) + 0.5).requires_grad_(), torch.randn(steps, count)
        for name in neurons[backends[0]]:
            best = {backend: [float("inf")] * 2 for backend in backends}
            for _ in range(repetitions):
                for backend in backends:
                    for k, run in enumerate((forward, training)):
                        best[backend][k] = min(best[backend][k], seconds(run, neurons[backend][name], x, grad))
            cells = (" / ".join(f"{1e3 * value:.3g}" for value in best[backend]) for backend in backends)
            print(f"| {steps}, {count:,} | {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
