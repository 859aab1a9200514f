"""LIF, forward and backward, beside a copy of the same number of bytes, on a GPU.

python benchmarks/roofline.py [--dtypes float32 bfloat16] [--steps 4 16 32] [--numbers 134217728] [--bytes 8]

A layer must read x and write spikes, then read x and the cotangent and write the gradient: 2 and 3 numbers per
element. "forward", "backward" and "both" are the time that torch takes to copy as many bytes, over the time of the
layer on the device: 1 is as fast as a copy. The device is kept busy while the calls are made, so that what Python takes
is not in it. The last column is what a call of a small layer takes, forward and backward, in wall time. ``--bytes``,
``--threads`` and ``--budget`` try other shapes of a kernel than those it is shipped with.
"""
# ruff: noqa: INP001, T201 - a program

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable, List

import torch
from torch import Tensor

import spikecore as sc
from spikecore_triton import compiler, writer

#: Cycles of the device that take longer than the calls of one forward and one backward pass.
WAIT = 2_000_000


def milliseconds(run: Callable[[], object], repetitions: int) -> float:
    """Median time on the device, which waits until the calls are made."""
    for _ in range(3):
        run()
    times: List[float] = []
    for _ in range(repetitions):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(WAIT)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def copying(bytes_: int, repetitions: int) -> float:
    """Bytes read and written per millisecond by a copy of a large float32 tensor."""
    source = torch.empty(bytes_ // 8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source), repetitions)


def row(dtype: torch.dtype, steps: int, numbers: int, rate: float, repetitions: int) -> str:
    """One line of the table."""
    neuron = sc.LIF(2.0, backend="triton")
    x = (torch.randn(steps, numbers // steps, device="cuda") + 0.5).to(dtype).requires_grad_()
    cotangent = torch.randn_like(x)
    out = neuron(x)

    def both() -> Tensor:
        return torch.autograd.grad(neuron(x), x, cotangent)[0]

    forward = milliseconds(lambda: neuron(x), repetitions)
    backward = milliseconds(lambda: torch.autograd.grad(out, x, cotangent, retain_graph=True), repetitions)
    times = (forward, backward, milliseconds(both, repetitions))
    shares = [words * x.nbytes / rate / taken for words, taken in zip((2, 3, 5), times)]
    measured = " | ".join(f"{share:8.2f}" for share in shares)
    return f"{str(dtype)[6:]:9} {steps:4} | {measured} | {times[2]:8.3f} ms | {small(neuron, dtype, steps):6.1f} us"


def small(neuron: sc.Neuron, dtype: torch.dtype, steps: int) -> float:
    """Microseconds of wall time of forward and backward for 40 neurons."""
    x = torch.randn(steps, 40, device="cuda").to(dtype).requires_grad_()
    cotangent = torch.randn_like(x)
    calls, taken = 300, 0.0
    for _ in range(2):  # the first time warms up
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            neuron(x).backward(cotangent)
        torch.cuda.synchronize()
        taken = time.perf_counter() - begin
    return taken / calls * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", nargs="+", type=int, default=[4, 16, 32])
    parser.add_argument("--numbers", type=int, default=1 << 27)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--bytes", type=int, default=writer.BYTES)
    parser.add_argument("--threads", type=int, default=writer.THREADS)
    parser.add_argument("--budget", type=int, default=writer.BUDGET)
    given = parser.parse_args()
    writer.BYTES, writer.BUDGET = given.bytes, given.budget
    writer.THREADS = compiler.THREADS = given.threads
    rate = copying(1 << 31, given.repetitions)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e9:.2f} TB/s, {given}")
    print("dtype     steps |  forward | backward |     both |        both | small, both")
    for dtype in given.dtypes:
        for steps in given.steps:
            print(row(getattr(torch, dtype), steps, given.numbers, rate, given.repetitions), flush=True)


if __name__ == "__main__":
    main()
