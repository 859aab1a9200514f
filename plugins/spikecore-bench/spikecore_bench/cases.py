"""One case of a neuron: its inputs, and the implementations that passed the check on them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import torch
from torch import Tensor, nn

from spikecore.dtypes import DTYPES
from spikecore_bench.check import REFERENCE, Observed, differences, observe
from spikecore_bench.implementations import COMPILED, Implementation, NotTimed, find, status_of
from spikecore_bench.report import Availability, Fact, Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call, Failure, HostClock, Plan, Timing, clock_for, failure, interleave
from spikecore_bench.workloads import IN_LAYOUTS, WORKLOADS, Workload

#: Input sets that take turns are this many times the cache, or this many.
CACHES, MOST_SETS = 4, 32
#: A loop written by hand.
PLAIN = "plain PyTorch"
#: Kind of a call -> implementation -> its time.
Times = Mapping[str, Mapping[str, Union[Timing, Failure]]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Job:
    """A part of a run: what it is called, and what measures it. It never raises."""

    label: str
    run: Callable[[], List[Row]]


@dataclass(frozen=True)
class Bench:
    """Context of every job."""

    device: torch.device
    clock: HostClock
    plan: Plan
    #: Those of all suites but the field's, and those of the field's.
    implementations: Sequence[Implementation] = ()
    in_field: Sequence[Implementation] = ()
    #: All, with the reasons of those that do not take part.
    listed: Sequence[Availability] = ()


def bench_of(settings: Settings, device: torch.device) -> Bench:
    """Implementations that take part on a device, for settings in which every choice was made."""
    found, listed = find(settings, device)
    neurons = [one for one in found if one.in_network is not None or one.name == COMPILED]
    return replace(
        bare(settings, device),
        implementations=neurons,
        in_field=[one for one in found if one.in_field is not None],
        listed=listed,
    )


def bare(settings: Settings, device: torch.device) -> Bench:
    """The same without any implementation."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # events are recorded in the stream of the current device
    return Bench(device, clock_for(device), settings.plan(device.type == "cuda"))


@dataclass(frozen=True)
class Case:
    """A neuron, a dtype and a size."""

    suite: str
    neuron: str
    dtype: str
    steps: int
    neurons: int
    #: Of a case whose inputs have one, else 0.
    batch: int = 0

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        facts: Dict[str, Fact] = {"neuron": self.neuron, "dtype": self.dtype, "steps": self.steps}
        return {**facts, "neurons": self.neurons, **({"batch": self.batch} if self.batch else {})}

    @property
    def workload(self) -> Workload:
        """The neuron itself."""
        return IN_LAYOUTS[self.neuron] if self.neuron in IN_LAYOUTS else WORKLOADS[self.neuron]

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.neuron} {self.dtype} T={self.steps} N={self.neurons:,}"

    def made(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random numbers ``[T, N]``, as an input or a cotangent of this case."""
        shape = (self.steps, self.neurons)
        return torch.randn(shape, device=device, dtype=DTYPES[self.dtype], generator=generator)

    def row(self, implementation: str, status: str, detail: str = "", **figures: float) -> Row:
        """A row of this case."""
        return Row(self.suite, self.facts, implementation, status, detail, figures)


class Inputs:
    """Inputs and cotangents that take turns, so that a small case is not served from the cache alone."""

    def __init__(self, case: Case, bench: Bench) -> None:
        dtype = DTYPES[case.dtype]
        size = 2 * case.steps * case.neurons * torch.finfo(dtype).bits // 8
        count = max(1, min(MOST_SETS, math.ceil(CACHES * bench.clock.cache_bytes() / size)))
        generator = torch.Generator(bench.device).manual_seed(0)
        self.sets: List[Tuple[Tensor, Tensor]] = []
        for _ in range(count):
            x, cotangent = (case.made(bench.device, generator) for _ in range(2))
            self.sets.append((x.add_(0.5).requires_grad_(), cotangent))

    def calls(self, admitted: Mapping[str, Checked]) -> Tuple[Dict[str, Call], Dict[str, Call]]:
        """Forward, to be called under ``no_grad``, and forward with backward, of each."""
        forward = {name: self._inference(one.layer) for name, one in admitted.items()}
        return forward, {name: training(one.layer, self.sets) for name, one in admitted.items()}

    def _inference(self, layer: nn.Module) -> Call:
        sets, count = self.sets, len(self.sets)
        return lambda i: layer(sets[i % count][0])

    def copy(self) -> Call:
        """A copy of the input to memory that is there: two words per element."""
        sets, count = [(x.detach(), torch.empty_like(x)) for x, _ in self.sets], len(self.sets)

        def call(i: int) -> Tensor:
            x, there = sets[i % count]
            return there.copy_(x)

        return call


def training(layer: nn.Module, sets: Sequence[Tuple[Tensor, Tensor]]) -> Call:
    """Forward and backward on inputs and cotangents that take turns; the gradients are dropped."""
    count, parameters = len(sets), list(layer.parameters())

    def call(i: int) -> None:
        x, cotangent = sets[i % count]
        layer(x).backward(cotangent)
        x.grad = None
        for parameter in parameters:
            parameter.grad = None

    return call


@dataclass(frozen=True)
class Checked:
    """A layer that may be timed, and the status and detail of its row."""

    layer: nn.Module
    status: str
    detail: str
    #: Seconds of its first forward and backward pass, compilation included.
    first: float


def admit(case: Case, inputs: Inputs, bench: Bench) -> Tuple[Dict[str, Checked], List[Row]]:
    """The implementations to be timed, and the rows of those that are not: each is in one of the two."""
    x, cotangent = inputs.sets[0]
    expected = observe(case.workload.make(REFERENCE).to(bench.device), x, cotangent)
    makers = {}
    for each in bench.implementations:
        make = partial(each.layer, case.workload, case.steps)
        makers[each.name] = partial(checked, each, make, x, cotangent, expected, bench.clock)
    admitted, rows = set_up(case, makers)
    return admitted, list(rows.values())


def checked(
    implementation: Implementation,
    make: Callable[[], nn.Module],
    x: Tensor,
    cotangent: Tensor,
    expected: Observed,
    clock: HostClock,
) -> Checked:
    """Layer that may be timed. Raises NotTimed for a backend with wrong results, and any error of the layer."""
    layer = make().to(x.device)
    clock.synchronize()
    begin = time.perf_counter()
    seen = observe(layer, x, cotangent)
    clock.synchronize()
    first = time.perf_counter() - begin
    different = differences(seen, expected)
    if different is not None and implementation.ours:
        raise NotTimed(different, "wrong")
    return Checked(layer, "differs" if different else "ok", different or "", first)


def timed(name: str, found: Timing) -> Dict[str, float]:
    """A timing as figures whose names begin with ``name``."""
    return {
        f"{name}_ms": found.seconds * 1e3,
        f"{name}_ms_low": found.low * 1e3,
        f"{name}_ms_high": found.high * 1e3,
        f"{name}_turns": found.turns,
        f"{name}_calls": found.calls,
    }


def compared(kind: str, times: Mapping[str, Any], name: str, **others: str) -> Dict[str, float]:
    """The time of a row as figures, and its ratios: ``over_lstm="nn.LSTM"`` gives ``kind_over_lstm`` where that is."""
    figures = timed(kind, times[name])
    for word, other in others.items():
        if isinstance(times.get(other), Timing):
            figures[f"{kind}_{word}"] = times[name].seconds / times[other].seconds
    return figures


def set_up(case: Case, makers: Mapping[str, Callable[[], Made]]) -> Tuple[Dict[str, Made], Dict[str, Row]]:
    """Results of the makers, and the rows of those that raise."""
    made: Dict[str, Made] = {}
    rows: Dict[str, Row] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except Exception as error:
            rows[name] = case.row(name, *status_of(error))
    return made, rows


def both_ways(forward: Mapping[str, Call], both: Mapping[str, Call], bench: Bench) -> Times:
    """Wall time of calls without gradients, and of calls with backward."""
    turn, plan = bench.clock.batch, bench.plan
    return {"forward": interleave(forward, torch.no_grad()(turn), plan), "training": interleave(both, turn, plan)}


def timed_row(
    case: Case, name: str, status: str, detail: str, times: Times, ratios: Optional[Mapping[str, str]] = None
) -> Row:
    """The row of an implementation: its times and their ratios, as :func:`compared` has them, or that one failed."""
    problem = first_failure(*(found[name] for found in times.values()))
    if problem:
        return case.row(name, "failed", problem)
    figures: Dict[str, float] = {}
    for kind, found in times.items():
        figures.update(compared(kind, found, name, **(ratios or {})))
    return case.row(name, status, detail, **figures)


def row_per_step(case: Case, name: str, differs: str, times: Mapping[str, Tuple[Mapping[str, Any], int]]) -> Row:
    """The row of an implementation in microseconds per step, beside a loop by hand.

    ``times``: of each kind, the times of those that have it, and how many steps they are of.
    """
    problem = first_failure(*(found.get(name) for found, _ in times.values()))
    if problem:
        return case.row(name, "failed", problem)
    figures: Dict[str, float] = {}
    for kind, (found, steps) in times.items():
        if name in found:
            figures[f"{kind}_us"] = found[name].seconds * 1e6 / steps
            if isinstance(found.get(PLAIN), Timing):
                figures[f"{kind}_over_plain"] = found[name].seconds / found[PLAIN].seconds
    return case.row(name, "differs" if differs else "ok", differs, **figures)


def contained(case: Case, bench: Bench, measure: Callable[[Case, Bench], List[Row]]) -> Job:
    """A job that measures a case; what goes wrong outside of any implementation is a row of its own."""

    def run() -> List[Row]:
        try:
            return measure(case, bench)
        except Exception as error:
            return [case.row(REFERENCE, "failed", f"nothing was measured here: {failure(error).reason}")]
        finally:
            bench.clock.forget()

    return Job(f"{case.suite}: {case.label}", run)


def first_failure(*found: Any) -> str:
    """The reason of the first failure among these; empty if there is none."""
    return next((one.reason for one in found if isinstance(one, Failure)), "")
