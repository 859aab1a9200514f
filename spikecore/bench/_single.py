"""Single steps beside the same step written by hand in plain PyTorch, for LIF alone and within ``Recurrent``.

A turn is a run of :data:`STEPS` calls, each of which continues: without gradients, and with one backward behind them.
Figures are per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.bench._cases import Bench, Case, Job, contained, first_failure, quietly
from spikecore.bench._check import Observed, differences
from spikecore.bench._implementations import Single
from spikecore.bench._report import Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Call, Timing, failure, interleave

#: What the ratios are to.
PLAIN = "plain PyTorch"
STEPS = 20
#: Batch and neurons.
SIZES = ((64, 128), (16, 256))


class _ATan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        ctx.save_for_backward(u)
        return (u >= 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        gradient: Tensor = grads[0] / (1.0 + (math.pi * u).square())
        return gradient


class PlainLIF(nn.Module):
    """LIF as one writes it by hand: tau 2, threshold 1, reset to 0, and the surrogate ATan(2)."""

    v: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """Spikes of one step."""
        v = torch.zeros_like(x) if self.v is None else self.v
        h = v + (x - v) / 2.0
        z: Tensor = _ATan.apply(h - 1.0)
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


@dataclass(frozen=True)
class Layer(Case):
    """A layer of single steps ``[B, N]``."""

    batch: int = 1

    @property
    def facts(self) -> Dict[str, Any]:
        """For the report."""
        return {**super().facts, "batch": self.batch}


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per size, with and without feedback."""
    sizes = SIZES[:1] if settings.quick else SIZES
    cases = [Layer("single", name, "float32", STEPS, n, batch) for name in ("LIF", "Recurrent") for batch, n in sizes]
    return [contained(case, bench, measure) for case in cases]


def _layers(case: Case, bench: Bench) -> Dict[str, Callable[[], Single]]:
    """What makes each neuron, and what puts it at rest."""
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


def measure(case: Any, bench: Bench) -> List[Row]:
    """The rows of one case."""
    generator = torch.Generator(bench.device).manual_seed(0)
    shape = (STEPS, case.batch, case.neurons)
    xs = torch.rand(shape, device=bench.device, generator=generator).mul_(1.5).requires_grad_()
    steps = [x.detach().requires_grad_() for x in xs]
    rows: Dict[str, Row] = {}
    forward: Dict[str, Call] = {}
    training: Dict[str, Call] = {}
    expected: Optional[Observed] = None
    known = _layers(case, bench)
    for name, make in known.items():
        try:
            layer, reset = make()
            forward[name], training[name] = _calls(layer.to(bench.device), reset, steps)
            reset()
            spikes = torch.stack([layer(x) for x in xs.unbind(0)])
            seen = Observed(spikes.detach(), torch.autograd.grad(spikes.sum(), xs)[0], ())
        except Exception as error:
            rows[name] = case.row(name, "failed", failure(error).reason)
            continue
        expected = expected or seen
        different = differences(seen, expected)
        rows[name] = case.row(name, "differs" if different else "ok", different or "")
    running = [name for name, row in rows.items() if row.status != "failed"]
    times = [
        interleave({name: forward[name] for name in running}, quietly(bench.clock.batch), bench.plan),
        interleave({name: training[name] for name in running}, bench.clock.batch, bench.plan),
    ]
    for name in running:
        problem = first_failure(*[found[name] for found in times])
        row = rows[name]
        rows[name] = (
            case.row(name, "failed", problem)
            if problem
            else case.row(
                name,
                row.status,
                row.detail,
                **_figures("forward", times[0], name),
                **_figures("training", times[1], name),
            )
        )
    return [rows[name] for name in known]


def _calls(layer: nn.Module, reset: Callable[[], Any], steps: List[Tensor]) -> Tuple[Call, Call]:
    """All steps from rest, and the same with one backward."""
    parameters = list(layer.parameters())

    def forward(i: int) -> None:
        reset()
        for x in steps:
            layer(x)

    def training(i: int) -> None:
        reset()
        torch.stack([layer(x) for x in steps]).sum().backward()
        for value in (*steps, *parameters):
            value.grad = None

    return forward, training


def _figures(kind: str, found: Any, name: str) -> Dict[str, float]:
    """Microseconds per step, and their ratio to those of the plain step."""
    timing, plain = found[name], found.get(PLAIN)
    figures = {f"{kind}_us": timing.seconds * 1e6 / STEPS}
    if isinstance(plain, Timing):
        figures[f"{kind}_over_plain"] = timing.seconds / plain.seconds
    return figures
