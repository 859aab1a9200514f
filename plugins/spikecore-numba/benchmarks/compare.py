"""LIF, forward and backward, beside other libraries and a copy of the input, in one run.

python benchmarks/compare.py [--threads 2] [--repetitions 9] [--sizes 16x1048576 128x40]

Every implementation runs in turn, again and again, so that all see the same machine; the table shows medians. Those
that are not installed are left out. float32, hard reset, ATan surrogate (snnTorch: its Leaky with reset to zero).
"""
# ruff: noqa: INP001, T201 - a program

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, Iterable, List, Tuple

import torch
from torch import Tensor

import spikecore as sc

Implementation = Callable[[Tensor, Tensor], None]
#: Seconds that an implementation runs in its turn, at least.
AT_LEAST = 0.05


class Quiet(sc.Neuron):
    """A neuron of one's own: LIF whose threshold follows its activity."""

    states = {"v": 0.0, "a": 0.0}
    params = {"tau": 2.0, "rho": 0.9, "beta": 0.2, "threshold": 1.0}

    def dynamics(self, x: Any, s: Any, p: Any) -> Any:
        """One step."""
        h = s.v + (x - s.v) / p.tau
        z = self.spike(h - (p.threshold + p.beta * s.a))
        return z, {"v": sc.ops.select(z, 0.0, h), "a": p.rho * s.a + z}


def copy(x: Tensor, grad: Tensor) -> None:
    """Cost of moving the input once."""
    x.detach().clone()


def train(layer: Callable[[Tensor], Tensor]) -> Implementation:
    """Forward and backward of a layer that takes [T, N]."""

    def run(x: Tensor, grad: Tensor) -> None:
        x.grad = None
        layer(x).backward(grad)

    return run


def spikingjelly() -> Implementation:
    """SpikingJelly's LIFNode in multi-step mode."""
    from spikingjelly.activation_based import functional, neuron, surrogate

    node = neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan(alpha=2.0), step_mode="m")

    def layer(x: Tensor) -> Tensor:
        functional.reset_net(node)
        return node(x)

    return train(layer)


def snntorch(parts: Callable[[Tensor], Iterable[Tensor]]) -> Implementation:
    """SnnTorch's Leaky, step by step; ``parts`` takes the input apart."""
    import snntorch as snn
    from snntorch import surrogate

    node = snn.Leaky(beta=0.5, spike_grad=surrogate.atan(alpha=2.0), reset_mechanism="zero")

    def layer(x: Tensor) -> Tensor:
        memory = node.init_leaky()
        spikes = []
        for now in parts(x):
            spike, memory = node(now, memory)
            spikes.append(spike)
        return torch.stack(spikes)

    return train(layer)


def by_index(x: Tensor) -> Iterable[Tensor]:
    """The steps as tutorials take them, each of whose gradients torch makes as large as all of ``x``."""
    return (x[t] for t in range(len(x)))


def implementations() -> Dict[str, Implementation]:
    """The implementations that are installed, by name."""
    found: Dict[str, Implementation] = {
        "copy of x": copy,
        "spikecore-numba LIF": train(sc.LIF(2.0, backend="numba")),
        "spikecore-numba, one's own": train(Quiet(backend="numba")),
    }
    others: Dict[str, Callable[[], Implementation]] = {
        "SpikingJelly": spikingjelly,
        "snnTorch, x.unbind()": lambda: snntorch(Tensor.unbind),
        "snnTorch, x[t]": lambda: snntorch(by_index),
    }
    for name, make in others.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"without {name}: {error}")
    return found


def measure(steps: int, neurons: int, repetitions: int) -> List[Tuple[str, float]]:
    """Median milliseconds of each implementation."""
    x = (torch.randn(steps, neurons) + 0.5).requires_grad_()
    grad = torch.randn(steps, neurons)
    running = implementations()
    times: Dict[str, List[float]] = {name: [] for name in running}
    for repetition in range(repetitions + 1):
        for name, run in running.items():
            calls, begin = 0, time.perf_counter()
            while not calls or time.perf_counter() - begin < AT_LEAST:
                run(x, grad)
                calls += 1
            if repetition:  # the first one warms up
                times[name].append((time.perf_counter() - begin) / calls * 1e3)
    return [(name, statistics.median(values)) for name, values in times.items()]


def operations(neuron: sc.Neuron) -> int:
    """Arithmetic operations of one step, forward and backward."""
    from spikecore.lang import topological

    program = neuron.program
    adjoint = program.adjoint()
    return sum(not node.is_leaf for node in topological([*program.nodes, *adjoint.inputs, *adjoint.states]))


def main() -> None:
    """Print one table per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--sizes", nargs="+", default=["16x1048576", "4x1048576", "128x40", "8x40"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads, median of {given.repetitions}")
    print(f"operations of a step: LIF {operations(sc.LIF())}, one's own {operations(Quiet())}")
    for size in given.sizes:
        steps, neurons = map(int, size.split("x"))
        rows = measure(steps, neurons, given.repetitions)
        of = dict(rows)
        print(f"\nT={steps}, N={neurons}{'':<12} ms | times the copy | times numba LIF")
        for name, value in rows:
            copy, ours = value / of["copy of x"], value / of["spikecore-numba LIF"]
            print(f"{name:<28} {value:9.3f} | {copy:14.2f} | {ours:15.2f}")


if __name__ == "__main__":
    main()
