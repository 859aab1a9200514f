"""Peak memory of training at many numbers of steps: rules that move along with time beside backpropagation.

Two layers of LIF, a batch of 4, inputs included: the rules read chunks, backpropagation the whole sequence. On a CPU
each figure is from a process of its own, the growth of its resident memory over that behind a short sequence.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.cases import Bench, Case, Job, contained, set_up
from spikecore_bench.check import REFERENCE
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings
from spikecore_bench.workers import Worker

STEPS: Tuple[int, ...] = (100, 1_000, 10_000, 100_000)
BATCH, NEURONS, CHUNK = 4, 256, 100
#: Rules, and backpropagation with and without the layers computed again in backward.
WAYS = ("d_rtrl", "eprop", "pp_prop", "ottt", "sltt", "BPTT", "BPTT, checkpointing")


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per number of steps, with the fastest backend for it: the first that is not the reference."""
    backends = [each.backend for each in bench.implementations if each.backend is not None]
    chosen = next((name for name in backends if name != REFERENCE), REFERENCE)
    steps, ways = (STEPS[:1], ("d_rtrl", "BPTT")) if settings.quick else (STEPS, WAYS)
    cases = [Case("online", "memory", "float32", count, NEURONS) for count in steps]
    return [contained(case, bench, partial(measure, chosen, ways)) for case in cases]


def measure(backend: str, ways: Sequence[str], case: Case, bench: Bench) -> List[Row]:
    """The rows of one number of steps."""
    makers = {f"{backend}, {way}": partial(_peak, way, backend, case.steps, bench) for way in ways}
    peaks, rows = set_up(case, makers)
    rows.update({name: case.row(name, "ok", memory_mib=peak / 2**20) for name, peak in peaks.items()})
    return [rows[name] for name in makers]


def _peak(way: str, backend: str, steps: int, bench: Bench) -> int:
    run = partial(train, way, backend, str(bench.device))
    if bench.device.type == "cuda":
        run(CHUNK)
        return bench.clock.peak(partial(run, steps)) or 0
    worker = Worker(Apart, run)
    try:
        return int(worker.ask("peak", steps))
    finally:
        worker.end()


class Apart:
    """Training in a process of its own; libraries are loaded, and kernels compiled."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run
        run(CHUNK)

    def peak(self, steps: int) -> int:
        """Bytes."""
        before = _forget_peak()
        self._run(steps)
        return max(0, _status("VmHWM") - before)


def _forget_peak() -> int:
    """Have the system forget the peak of this process; gives what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(name: str) -> int:
    """Bytes, from what Linux says of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = re.search(rf"{name}:\s+(\d+) kB", text)
    if line is None:
        raise OSError(f"this system does not say {name}")
    return int(line.group(1)) * 1024


def train(way: str, backend: str, device: str, steps: int) -> None:
    """One sequence of so many steps."""
    torch.manual_seed(0)
    pairs = [(nn.Linear(NEURONS, NEURONS), sc.LIF(2.0, backend=backend)) for _ in range(2)]
    net: nn.Module = nn.Sequential(*[layer for pair in pairs for layer in pair]).to(device)
    if way == "BPTT, checkpointing":
        net = sc.checkpoint(net, every=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    if way.startswith("BPTT"):
        step = sc.training_model(net, _loss, optimizer)
        step(_inputs(steps, device), None)
        return
    step = sc.training_model(net, _loss, optimizer, options=sc.OnlineOptions(way, chunk=CHUNK))
    step(_chunks(steps, device), None)


def _inputs(steps: int, device: str) -> Tensor:
    return torch.rand(steps, BATCH, NEURONS, device=device)


def _chunks(steps: int, device: str) -> Iterator[Tensor]:
    for begin in range(0, steps, CHUNK):
        yield _inputs(min(CHUNK, steps - begin), device)


def _loss(outputs: Tensor, _: Any) -> Tensor:
    return outputs.sum()
