"""Single steps beside the same step written by hand in plain PyTorch, for LIF alone and within ``Recurrent``.

A turn is a run of :data:`STEPS` calls, each of which continues: without gradients, and with one backward behind them.
Figures are per step.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.cases import PLAIN, Bench, Case, Job, both_ways, contained, row_per_step, set_up
from spikecore_bench.check import Observed, differences
from spikecore_bench.implementations import Single
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call
from spikecore_bench.workloads import by_hand

STEPS = 20
#: Batch and neurons.
SIZES = ((64, 128), (16, 256))


_atan: Callable[[Tensor], Tensor] = by_hand(lambda u: 1.0 / (1.0 + (math.pi * u).square()))


class PlainLIF(nn.Module):
    """LIF as one writes it by hand: tau 2, threshold 1, reset to 0, and the surrogate ATan(2)."""

    v: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one step."""
        v = torch.zeros_like(x) if self.v is None else self.v
        h = v + (x - v) / 2.0
        z = _atan(h - 1.0)
        self.v = h * (1.0 - z)
        return z

    def reset(self) -> None:
        """Begin at rest."""
        self.v = None


class PlainFeedback(nn.Module):
    """The same around any neuron: its last output comes back through a matrix."""

    last: Optional[Tensor] = None

    def __init__(self, neuron: Single, linear: nn.Linear) -> None:
        super().__init__()
        (self.neuron, self._reset), self.linear = neuron, linear

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one step."""
        last: Tensor = self.neuron(x + self.linear(torch.zeros_like(x) if self.last is None else self.last))
        self.last = last
        return last

    def reset(self) -> None:
        """Begin at rest."""
        self._reset()
        self.last = None


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per size, with and without feedback."""
    sizes = SIZES[:1] if settings.quick else SIZES
    cases = [Case("single", name, "float32", STEPS, n, batch) for name in ("LIF", "Recurrent") for batch, n in sizes]
    return [contained(case, bench, measure) for case in cases]


def _layers(case: Case, bench: Bench) -> Dict[str, Callable[[], Single]]:
    """Makers of each neuron and of the function that puts it at rest."""
    steps: Dict[str, Callable[[], Single]] = {PLAIN: lambda: _with_reset(PlainLIF())}
    steps.update({each.name: each.single for each in bench.implementations if each.single is not None})
    if case.neuron == "LIF":
        return steps
    ours = {one.name: one.backend for one in bench.implementations if one.backend is not None}

    def fed_back(name: str) -> Single:
        linear = nn.Linear(case.neurons, case.neurons, bias=False)
        nn.init.constant_(linear.weight, 1.0 / case.neurons)
        if name not in ours:
            return _with_reset(PlainFeedback(steps[name](), linear))
        layer = sc.Recurrent(sc.LIF(2.0, backend=ours[name]), linear, step="single")
        return layer, lambda: sc.reset(layer)

    return {name: lambda name=name: fed_back(name) for name in steps}  # type: ignore[misc]  # a default argument


def _with_reset(layer: Any) -> Single:
    return layer, layer.reset


class Run(NamedTuple):
    """A layer under way: what is timed without gradients and with backward, and what it computed."""

    forward: Call
    training: Call
    seen: Observed


def measure(case: Case, bench: Bench) -> List[Row]:
    """The rows of one case."""
    generator = torch.Generator(bench.device).manual_seed(0)
    shape = (STEPS, case.batch, case.neurons)
    xs = torch.rand(shape, device=bench.device, generator=generator).mul_(1.5).requires_grad_()
    known = _layers(case, bench)
    running, rows = set_up(case, {name: partial(_run, make, xs) for name, make in known.items()})
    forward = {name: run.forward for name, run in running.items()}
    times = both_ways(forward, {name: run.training for name, run in running.items()}, bench)
    expected = next(run.seen for run in running.values())
    for name, run in running.items():
        differs = differences(run.seen, expected) or ""
        rows[name] = row_per_step(case, name, differs, {kind: (found, STEPS) for kind, found in times.items()})
    return [rows[name] for name in known]


def _run(make: Callable[[], Single], xs: Tensor) -> Run:
    """All steps from rest, and the same with one backward."""
    layer, reset = make()
    layer = layer.to(xs.device)
    steps, parameters = [x.detach().requires_grad_() for x in xs], list(layer.parameters())

    def forward(i: int) -> None:
        reset()
        for x in steps:
            layer(x)

    def training(i: int) -> None:
        reset()
        torch.stack([layer(x) for x in steps]).sum().backward()
        for value in (*steps, *parameters):
            value.grad = None

    reset()
    spikes = torch.stack([layer(x) for x in xs.unbind(0)])
    return Run(forward, training, Observed(spikes.detach(), torch.autograd.grad(spikes.sum(), xs)[0], ()))
