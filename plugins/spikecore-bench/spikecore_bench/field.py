"""The field's own benchmarks: Open Neuromorphic's linear layer with LIF, and the training step of Spyx' paper on SHD.

Every time is wall time with a synchronisation at its end. Beside it stands the bound of the arithmetic: the products'
operations at the rate that the device's products reach here, or the bytes that must be moved at the speed of a copy,
whichever takes longer; where the card's data sheet is known, the same at its peak rates. TF32 is off. What a layer
computes is checked before it is timed, and a row whose equation is another one says so.

Each library is measured alone, in each form in a process of its own, which has a budget of seconds for each case: what
takes longer, compiles for too long or breaks its process has a row that says so. Without a budget all is measured in
this process.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from spikecore.dtypes import DTYPES
from spikecore_bench.cases import Bench, Job, bare, timed
from spikecore_bench.equations import verdict_of
from spikecore_bench.field_cases import (
    OPEN_NEUROMORPHIC,
    SAMPLES,
    SHD,
    Bound,
    ClassifierCase,
    FieldCase,
    LinearCase,
    layer_of,
)
from spikecore_bench.implementations import Implementation, find_again, status_of
from spikecore_bench.machine import PEAKS, Peak
from spikecore_bench.report import MEASURED, Row
from spikecore_bench.settings import Settings, device_named
from spikecore_bench.timing import Failure, Timing, failure, interleave, precision
from spikecore_bench.workers import Here, Worker

#: The row of the products alone.
PRODUCTS = "products alone"
GRAPH = "CUDA graph"
FASTER = "faster than the arithmetic's bound: other work, or the products were disturbed when they were measured"
#: The input of the check: time steps, batch and neurons.
CHECKED = (50, 3, 333)
#: Side of the square matrices whose product counts for the rate, too: products of a small case are slower.
SQUARE = {"cuda": 4096, "cpu": 1024}
#: Numbers of the copy, which shall not fit into a cache.
COPIED = 1 << 26
#: Seconds that the processes have until they are ready, all together.
START = 600.0

#: Time steps, batch and neurons.
_LINEAR = {
    "cuda": ((500, 16, 4096), (500, 16, 8192), (500, 16, 16384)),
    "cpu": ((100, 16, 512), (100, 16, 1024)),
    "quick": ((5, 2, 32),),
}
#: Time steps, batch and width of the hidden layers.
_CLASSIFIER = {
    "cuda": tuple((256, b, h) for b, h in ((128, 128), (128, 256), (64, 512), (128, 512), (256, 512), (128, 1024))),
    "cpu": ((256, 32, 128),),
    "quick": ((5, 2, 8),),
}


def linear_cases(settings: Settings, device: torch.device) -> List[LinearCase]:
    """The widths, in each dtype."""
    usual = _LINEAR["quick" if settings.quick else device.type]
    steps = settings.field_steps or usual[0][0]
    sizes = [(16, width) for (width,) in settings.sizes(OPEN_NEUROMORPHIC)] or [(batch, n) for _, batch, n in usual]
    return [LinearCase(dtype, steps, batch, n) for dtype in settings.field_dtypes for batch, n in sizes]


def classifier_cases(settings: Settings, device: torch.device) -> List[ClassifierCase]:
    """The widths and batches."""
    usual = _CLASSIFIER["quick" if settings.quick else device.type]
    steps = settings.field_steps or usual[0][0]
    sizes = [(batch, width) for width, batch in settings.sizes(SHD)] or [(b, width) for _, b, width in usual]
    return [ClassifierCase(steps, batch, width) for batch, width in sizes]


class Rates(NamedTuple):
    """Operations per second of the products, and bytes per second of a copy."""

    products: float
    copy: float


def jobs(suite: str, settings: Settings, bench: Bench) -> List[Job]:
    """The products of each case first, then one library after the other in all cases, a job for each row."""
    cases: Sequence[FieldCase] = (linear_cases if suite == OPEN_NEUROMORPHIC else classifier_cases)(
        settings, bench.device
    )
    dtypes = tuple(dict.fromkeys(case.dtype for case in cases))
    members = [
        Participant(each, graph, dtypes, settings, bench) for each in bench.in_field for graph in _forms(each, bench)
    ]
    rates: Dict[FieldCase, Rates] = {}
    jobs = [Job(f"{suite}: {len(members)} processes", partial(_start, members))] if settings.budget else []
    jobs += [Job(f"{suite}: {case.label} {PRODUCTS}", partial(_products, case, bench, rates)) for case in cases]
    for member in members:
        for case in cases:
            last = case is cases[-1]
            jobs.append(Job(f"{suite}: {case.label} {member.name}", partial(member.rows, case, rates, last)))
    return jobs


def _forms(library: Implementation, bench: Bench) -> Tuple[bool, ...]:
    """Eager, and on a GPU as a CUDA graph."""
    return (False, True) if bench.device.type == "cuda" and layer_of(library).make is not None else (False,)


def _start(members: Sequence[Participant]) -> List[Row]:
    """Start all processes, and wait until none of them computes any more."""
    end = time.monotonic() + START
    for member in members:
        member.start()
    for member in members:
        member.start().ready(max(0.0, end - time.monotonic()))
    return []


def _products(case: FieldCase, bench: Bench, rates: Dict[FieldCase, Rates]) -> List[Row]:
    """The row of the products, whose rates are those of the bound."""
    try:
        with precision("highest"):
            row, rates[case] = measure_products(case, bench)
        return [row]
    except Exception as error:
        return [Row(case.suite, case.facts, PRODUCTS, "failed", failure(error).reason)]
    finally:
        bench.clock.forget()


def measure_products(case: FieldCase, bench: Bench) -> Tuple[Row, Rates]:
    """The products of a case, a square one and a copy, in turns; the fastest turn counts for the rates."""
    device, dtype = bench.device, DTYPES[case.dtype]
    calls = {kind: {PRODUCTS: call} for kind, call in case.products(device).items()}
    side = SQUARE[device.type]
    square = torch.randn(side, side, device=device).to(dtype)
    source = torch.randn(COPIED, device=device).to(dtype)
    there = torch.empty_like(source)
    first = next(iter(calls.values()))
    first.update(square=lambda i: square @ square, copy=lambda i: there.copy_(source))
    measured = {kind: interleave(some, bench.clock.batch, bench.plan) for kind, some in calls.items()}
    operations = {kind: bound.operations for kind, bound in case.bounds.items()}
    flops = [rate(operations[kind], times[PRODUCTS]) for kind, times in measured.items()]
    times = measured[next(iter(measured))]
    flops.append(rate(2.0 * side**3, times["square"]))
    rates = Rates(max(flops), rate(2.0 * source.numel() * source.element_size(), times["copy"]))
    timings = {kind: some[PRODUCTS] for kind, some in measured.items()}
    return row_of(case, PRODUCTS, "ok", "", timings, rates, PEAKS.get(_card(device))), rates


def rate(amount: float, timing: Any) -> float:
    """Per second, in the fastest turn."""
    if not isinstance(timing, Timing):
        raise RuntimeError(timing.reason)
    return amount / timing.low


def _card(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def row_of(
    case: FieldCase,
    name: str,
    status: str,
    detail: str,
    timings: Mapping[str, Any],
    rates: Rates,
    peak: Optional[Peak],
) -> Row:
    """A row with its times and the bound of each; one that is faster says so."""
    failed = [timing.reason for timing in timings.values() if isinstance(timing, Failure)]
    if failed:
        return Row(case.suite, case.facts, name, "failed", failed[0])
    figures = {"products_tflops": rates.products / 1e12, "bandwidth_gb_s": rates.copy / 1e9}
    details = [detail] if detail else []
    for kind, timing in timings.items():
        bound = case.bounds[kind]
        least = bound.seconds(*rates)
        figures.update(timed(kind, timing))
        figures[f"{kind}_bound_ms"] = least * 1e3
        figures[f"{kind}_over_bound"] = timing.seconds / least
        if peak is not None:
            figures[f"{kind}_peak_ms"] = _at_peak(case, bound, peak) * 1e3
        if name != PRODUCTS and timing.seconds < 0.97 * least:
            details.append(f"{kind}: {FASTER}")
    if isinstance(case, ClassifierCase) and name != PRODUCTS:
        figures["epoch_s"] = timings["step"].seconds * -(-SAMPLES // case.batch)
    return Row(case.suite, case.facts, name, status, "; ".join(details), figures)


def _at_peak(case: FieldCase, bound: Bound, peak: Peak) -> float:
    """Seconds of the bound at the rates of the data sheet."""
    tflops = peak.float32_tflops if case.dtype == "float32" else peak.tensor_tflops
    return bound.seconds(tflops * 1e12, peak.memory_gb_s * 1e9)


class Measurement:
    """A library in a form, in the process that measures it; its equation is checked first, in each dtype."""

    def __init__(self, library: Implementation, graph: bool, dtypes: Sequence[str], bench: Bench) -> None:
        self._library, self._graph, self._bench = library, graph, bench
        self._layer = layer_of(library)
        self._computing = self._layer.set_up()
        self._checked = {dtype: self._check(DTYPES[dtype]) for dtype in dtypes}

    def row(self, case: FieldCase, name: str, rates: Rates) -> Row:
        """The row of a case. It never raises."""
        try:
            with precision("highest"):
                return self._measured(case, name, rates)
        except Exception as error:
            return Row(case.suite, case.facts, name, *status_of(error))
        finally:
            self._bench.clock.forget()

    def _measured(self, case: FieldCase, name: str, rates: Rates) -> Row:
        bench = self._bench
        status, detail = self._checked[case.dtype]
        if status not in MEASURED:
            return Row(case.suite, case.facts, name, status, detail)
        calls = case.calls(self._library, self._computing, bench.device, self._graph)
        timings = {kind: interleave({kind: call}, bench.clock.batch, bench.plan)[kind] for kind, call in calls.items()}
        row = row_of(case, name, status, detail, timings, rates, PEAKS.get(_card(bench.device)))
        # a graph allocates before it is replayed, and torch does not see JAX's memory
        last = list(calls.values())[-1]
        seen = not self._graph and self._layer.make is not None and row.status in MEASURED
        peak = bench.clock.peak(partial(last, 0)) if seen else None
        return row if peak is None else replace(row, figures={**row.figures, "memory_gib": peak / 2**30})

    def _check(self, dtype: torch.dtype) -> Tuple[str, str]:
        device = self._bench.device
        generator = torch.Generator(device).manual_seed(0)
        x, cotangent = (torch.randn(CHECKED, device=device, generator=generator).to(dtype) for _ in range(2))
        try:
            return verdict_of(self._layer, self._library.ours, self._computing, x.requires_grad_(), cotangent)
        except Exception as error:
            return "failed", failure(error).reason


def enter(settings: Settings, name: str, ours: bool, graph: bool, dtypes: Sequence[str]) -> Measurement:
    """A library in a form, in the process that calls this."""
    return Measurement(find_again(name, ours), graph, dtypes, bare(settings, device_named(settings.device)))


class Participant:
    """A library in a form: in a process of its own that has a budget, or here where there is none."""

    def __init__(
        self, library: Implementation, graph: bool, dtypes: Sequence[str], settings: Settings, bench: Bench
    ) -> None:
        self.name = f"{library.name}, {GRAPH}" if graph else library.name
        self._library, self._graph, self._dtypes, self._settings, self._bench = library, graph, dtypes, settings, bench
        self._process: Union[Here, Worker, None] = None

    def start(self) -> Union[Here, Worker]:
        """Its process, started where it has one of its own that does not run."""
        library, graph, dtypes = self._library, self._graph, self._dtypes
        if self._process is not None:
            return self._process
        if self._settings.budget:
            self._process = Worker(enter, self._settings, library.name, library.ours, graph, dtypes)
        else:
            self._process = Here(Measurement, library, graph, dtypes, self._bench)
        return self._process

    def rows(self, case: FieldCase, rates: Mapping[FieldCase, Rates], last: bool) -> List[Row]:
        """Its row of a case; behind the last case the process ends."""
        try:
            if case not in rates:
                raise RuntimeError(f"{PRODUCTS} could not be measured, so that there is no bound")
            process = self.start()
            process.ready(START)
            row: Row = process.ask("row", case, self.name, rates[case], limit=self._settings.budget or None)
            return [row]
        except Exception as error:
            self._end()
            return [Row(case.suite, case.facts, self.name, "failed", failure(error).reason)]
        finally:
            if last:
                self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None
