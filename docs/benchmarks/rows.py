"""Linear layers that add up what fired, beside torch's: forward, a training step, and a network for SHD.

python docs/benchmarks/rows.py [--seconds 1] [--forward 128x128 700x256] [--training 700x256] [--shd 32 128]
    [--batches 1 4 16]

One thread. Times are those that the processor spends on it, the least of rounds in which all take turns, with other
inputs at each call, and of copies of each layer: where a weight lies in memory may change the time of a product by a
tenth.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any, Callable, List, Sequence

import torch
from torch import Tensor, nn

import spikecore as sc

RATES = (0.01, 0.05, 0.1, 0.2, 0.3)
ROWS = (1, 4, 16, 32, 64, 128)
BATCHES = (1, 4, 16, 64, 128)
STEPS = 25
DTYPES = (torch.float32, torch.bfloat16)
#: Inputs that take turns, and seconds of a turn at least.
INPUTS, TURN = 8, 0.002
#: Copies of a layer, at other places in memory.
COPIES = 3


def least(calls: Sequence[Callable[[int], object]], seconds: float) -> List[float]:
    """Microseconds of each call."""
    times, counts = [float("inf")] * len(calls), [1] * len(calls)
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end or rounds < 4:
        for number, call in enumerate(calls):
            start = time.thread_time()
            for turn in range(counts[number]):
                call(turn % INPUTS)
            took = (time.thread_time() - start) / counts[number]
            counts[number] = max(1, round(TURN / took))
            times[number] = min(times[number], took)
        rounds += 1
    return [1e6 * value for value in times]


def packed(inputs: int, outputs: int, dtype: torch.dtype) -> Any:
    """A layer as sc.layers.pack leaves it."""
    return sc.layers.pack(nn.Sequential(sc.LIF(), nn.Linear(inputs, outputs)))[1].to(dtype)


def spikes(*shape: int, rate: float, dtype: torch.dtype) -> List[Tensor]:
    """Inputs of this rate."""
    return [(torch.rand(shape) < rate).to(dtype) for _ in range(INPUTS)]


def copies(inputs: int, outputs: int, dtype: torch.dtype) -> List[nn.Module]:
    """Plain layers, and as many packed ones."""
    plain = [nn.Linear(inputs, outputs).to(dtype) for _ in range(COPIES)]
    return [*plain, *[packed(inputs, outputs, dtype) for _ in range(COPIES)]]


def forward(inputs: int, outputs: int, dtype: torch.dtype, seconds: float) -> None:
    """Without gradients: so many times as fast as nn.Linear, for each rate."""
    layers = copies(inputs, outputs, dtype)
    for rows in ROWS:
        calls = []
        for rate in RATES:
            xs = spikes(rows, inputs, rate=rate, dtype=dtype)
            calls += [lambda turn, xs=xs, layer=layer: layer(xs[turn]) for layer in layers]
        with torch.no_grad():
            times = least(calls, seconds)
        show(f"forward, {inputs}x{outputs}, {rows} rows, {dtype}", times)


def training(inputs: int, outputs: int, dtype: torch.dtype, seconds: float, batches: Sequence[int] = BATCHES) -> None:
    """Forward and backward, all gradients."""
    layers = copies(inputs, outputs, dtype)

    def step(layer: nn.Module, x: Tensor, grad: Tensor) -> None:
        x.grad = None
        layer.zero_grad()
        layer(x).backward(grad)

    for batch in batches:
        grad = torch.randn(STEPS, batch, outputs).to(dtype)
        calls = []
        for rate in RATES:
            xs = [x.requires_grad_() for x in spikes(STEPS, batch, inputs, rate=rate, dtype=dtype)]
            calls += [lambda turn, xs=xs, grad=grad, layer=layer: step(layer, xs[turn], grad) for layer in layers]
        show(f"training, {inputs}x{outputs}, T={STEPS}, B={batch}, {dtype}", least(calls, seconds))


def shd(batch: int, seconds: float) -> None:
    """A step of 700-512-512-20, T=100, 2 % of the inputs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        sc.layers.PackedLinear(700, 512), sc.LIF(), nn.Linear(512, 512), sc.LIF(), nn.Linear(512, 20), sc.LI()
    )
    for layer, spread in ((net[0], 0.28), (net[2], 0.21)):
        nn.init.normal_(layer.weight, 0.0, spread)
        nn.init.zeros_(layer.bias)
    xs, y = spikes(100, batch, 700, rate=0.02, dtype=torch.float32), torch.randint(0, 20, (batch,))
    for autocast in (None, torch.bfloat16):
        calls, nets = [], []
        for change in (sc.layers.unpack, sc.layers.pack):
            own = change(copy.deepcopy(net))
            optimizer = torch.optim.SGD(own.parameters(), 0.0)
            options = sc.TrainingOptions(autocast=autocast)
            step = sc.training_model(own, sc.losses.ce_rate, optimizer, options=options)
            step(xs[0], y)
            calls.append(lambda turn, step=step: step(xs[turn], y))
            nets.append([p.grad.clone() for p in own.parameters()])
        off = max(float((a - b).norm() / b.norm()) for a, b in zip(nets[1], nets[0]))
        show(f"SHD, B={batch}, autocast {autocast}, gradients differ by {off:.1e}", least(calls, seconds))


def show(what: str, times: List[float]) -> None:
    """A line: the time of nn.Linear, and how many times as fast the packed layer is, for each rate."""
    several = min(COPIES, len(times) // 2)
    found = [min(times[at : at + several]) for at in range(0, len(times), several)]
    ratios = " ".join(f"{plain / mine:.2f}" for plain, mine in zip(found[::2], found[1::2]))
    print(f"{what}: {found[0]:.0f} us; {ratios}", flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser()
    sizes = ["128x128", "700x256", "512x512", "1024x1024", "4096x4096"]
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--forward", nargs="*", default=sizes)
    parser.add_argument("--training", nargs="*", default=sizes)
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES), help="of training steps")
    parser.add_argument("--shd", nargs="*", type=int, default=[32, 128])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for dtype in DTYPES:
        for size in options.forward:
            forward(*map(int, size.split("x")), dtype, options.seconds)
        for size in options.training:
            training(*map(int, size.split("x")), dtype, options.seconds, options.batches)
    for batch in options.shd:
        shd(batch, 4 * options.seconds)


if __name__ == "__main__":
    main()
