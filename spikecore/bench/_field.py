"""The field's own benchmarks: Open Neuromorphic's linear layer with LIF, and the training step of Spyx' paper on SHD.

Every time is wall time with a synchronisation at its end. Beside it stands the bound of the arithmetic: the products'
operations at the rate that the device's products reach here, in the same turns, or the bytes that must be moved at the
speed of a copy, whichever takes longer. TF32 is off. What a layer computes is checked before it is timed, and a row
whose equation is another one says so.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.bench._cases import Bench, Job, timed
from spikecore.bench._libraries import Library, find_libraries, of_backend, verdict_of
from spikecore.bench._recurrent import _captured
from spikecore.bench._report import MEASURED, Fact, Row
from spikecore.bench._settings import FIELD, Settings
from spikecore.bench._timing import Call, Failure, Timing, failure, interleave
from spikecore.dtypes import DTYPES

OPEN_NEUROMORPHIC, SHD = FIELD
#: The row of the products alone.
PRODUCTS = "products alone"
COPY, GRAPH = "copy", "CUDA graph"
#: A product of two square matrices, whose rate counts and which has no row.
SQUARE = "square"
FASTER = "faster than the arithmetic's bound: other work, or the products were disturbed when they were measured"
#: The input of the check: time steps, batch and neurons.
CHECKED = (50, 3, 333)
#: Training samples, input channels and classes of the Spiking Heidelberg Digits.
SAMPLES, CHANNELS, CLASSES = 8156, 128, 20
#: Spikes of the synthetic input, per channel and step.
RATE = 0.05
LEARNING_RATE = 5e-4


class Sizes(NamedTuple):
    """What a suite measures on a device: time steps, and batch and width of each case."""

    steps: int
    cases: Tuple[Tuple[int, int], ...]


#: Batch and neurons.
_LINEAR = {
    "cuda": Sizes(500, ((16, 4096), (16, 8192), (16, 16384))),
    "cpu": Sizes(100, ((16, 512), (16, 1024))),
    "quick": Sizes(5, ((2, 32),)),
}
#: Batch and width of the hidden layers.
_CLASSIFIER = {
    "cuda": Sizes(256, ((128, 128), (128, 256), (64, 512), (128, 512), (256, 512), (128, 1024))),
    "cpu": Sizes(256, ((32, 128),)),
    "quick": Sizes(5, ((2, 8),)),
}


class Candidate(NamedTuple):
    """A layer that was checked, and how its row begins."""

    library: Library
    layer: Any
    status: str
    detail: str


class Candidates:
    """The backends and the libraries that are there, each checked once in a dtype."""

    def __init__(self, settings: Settings, bench: Bench) -> None:
        ready, _ = find_libraries(settings.peers, settings.peer_names)
        self._libraries = [*(of_backend(each) for each in bench.implementations if each.ours), *ready]
        self._device = bench.device
        self._checked: Dict[str, List[Candidate]] = {}

    def checked(self, suite: str, case: Mapping[str, Fact]) -> Tuple[List[Candidate], List[Row]]:
        """Those that may be timed, and the rows of the others."""
        dtype = str(case["dtype"])
        if dtype not in self._checked:
            self._checked[dtype] = [self._check(library, DTYPES[dtype]) for library in self._libraries]
        checked = self._checked[dtype]
        others = [layer for layer in checked if layer.status not in MEASURED]
        rows = [Row(suite, case, layer.library.name, layer.status, layer.detail) for layer in others]
        return [layer for layer in checked if layer.status in MEASURED], rows

    def _check(self, library: Library, dtype: torch.dtype) -> Candidate:
        generator = torch.Generator(self._device).manual_seed(0)
        x, cotangent = (torch.randn(CHECKED, device=self._device, generator=generator).to(dtype) for _ in range(2))
        try:
            layer = library.layer()
            return Candidate(library, layer, *verdict_of(library, layer, x.requires_grad_(), cotangent))
        except Exception as error:
            return Candidate(library, None, "failed", failure(error).reason)


def sizes(table: Mapping[str, Sizes], settings: Settings, device: torch.device) -> Sizes:
    """What is measured on a device, with the time steps that were asked for."""
    chosen = table["quick" if settings.quick else device.type]
    return chosen._replace(steps=settings.field_steps or chosen.steps)


def linear_jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per dtype and width."""
    steps, cases = sizes(_LINEAR, settings, bench.device)
    candidates, jobs = Candidates(settings, bench), []
    for dtype in settings.field_dtypes:
        for batch, neurons in cases:
            case: Dict[str, Fact] = {"neuron": "Linear + LIF", "dtype": dtype, "steps": steps, "neurons": neurons}
            case["batch"] = batch
            run = partial(linear, case, bench, candidates)
            jobs.append(_job(OPEN_NEUROMORPHIC, f"n={neurons:,} {dtype}", case, run, bench))
    return jobs


def classifier_jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per width and batch."""
    steps, cases = sizes(_CLASSIFIER, settings, bench.device)
    candidates, jobs = Candidates(settings, bench), []
    for batch, width in cases:
        case: Dict[str, Fact] = {
            "network": f"{CHANNELS}-{width}-{width}-{CLASSES}",
            "about": f"two hidden layers; synthetic spikes, {RATE} per channel and step",
            "dtype": "float32",
            "steps": steps,
            "batch": batch,
        }
        run = partial(classifier, case, width, bench, candidates)
        jobs.append(_job(SHD, f"{case['network']} B={batch}", case, run, bench))
    return jobs


def _job(suite: str, label: str, case: Mapping[str, Fact], work: Callable[[], List[Row]], bench: Bench) -> Job:
    def run() -> List[Row]:
        try:
            with _full_precision():
                return work()
        except Exception as error:
            return [Row(suite, case, PRODUCTS, "failed", f"nothing was measured here: {failure(error).reason}")]
        finally:
            bench.clock.forget()

    return Job(f"{suite}: {label}", run)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Bound:
    """Operations of the products, and bytes that must be moved."""

    operations: float
    moved: float

    def seconds(self, rate: float, bandwidth: float) -> float:
        """The least time at these rates."""
        return max(self.operations / rate, self.moved / bandwidth)


def linear_bounds(case: Mapping[str, Any]) -> Tuple[Bound, Bound]:
    """Forward, and forward with backward, of a linear layer with neurons.

    Forward reads the input and the weight and writes spikes; backward reads the input again and writes the weight's
    gradient. The current between the two layers is not counted, since it could be computed again.
    """
    rows, n = case["steps"] * case["batch"], case["neurons"]
    word = torch.finfo(DTYPES[case["dtype"]]).bits // 8
    product = 2.0 * rows * n * n
    return Bound(product, word * (2.0 * rows * n + n * n)), Bound(2 * product, word * (3.0 * rows * n + 2.0 * n * n))


def linear(case: Mapping[str, Any], bench: Bench, candidates: Candidates) -> List[Row]:
    """The rows of Open Neuromorphic's benchmark: forward, and forward with backward, of the sum of the output."""
    suite, device, dtype = OPEN_NEUROMORPHIC, bench.device, DTYPES[str(case["dtype"])]
    measurable, rows = candidates.checked(suite, case)
    n = case["neurons"]
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(case["steps"], case["batch"], n, device=device, generator=generator).to(dtype)
    weight = ((torch.rand(n, n, device=device, generator=generator) * 2 - 1) * n**-0.5).to(dtype)
    bias = torch.zeros(n, device=device, dtype=dtype)
    forward, both, failed = _linear_calls(measurable, x, weight, bias)
    rows += [Row(suite, case, name, "failed", reason) for name, reason in failed.items()]
    forward[PRODUCTS], both[PRODUCTS] = _products(x.flatten(0, 1), weight)
    forward[COPY] = _copy(x)
    times = {"forward": interleave(forward, bench.clock.batch, bench.plan)}
    times["training"] = interleave(both, bench.clock.batch, bench.plan)
    rate, bandwidth = _rates(case, times, x.numel() * x.element_size())
    bounds = dict(zip(("forward", "training"), linear_bounds(case)))
    limits = {kind: bound.seconds(rate, bandwidth) for kind, bound in bounds.items()}
    by_name = {candidate.library.name: candidate for candidate in measurable}
    for name, call in both.items():
        candidate = by_name.get(name.partition(", ")[0])
        figures = {"products_tflops": rate / 1e12, "bandwidth_gb_s": bandwidth / 1e9}
        row = _row(suite, case, name, candidate, {kind: found[name] for kind, found in times.items()}, limits, figures)
        # a graph allocates before it is replayed, and torch does not see JAX's memory
        seen = GRAPH not in name and (candidate is None or candidate.library.make is not None)
        peak = bench.clock.peak(partial(call, 0)) if seen and row.status in MEASURED else None
        rows.append(row if peak is None else replace(row, figures={**row.figures, "memory_gib": peak / 2**30}))
    return rows


def _linear_calls(
    measurable: List[Candidate], x: Tensor, weight: Tensor, bias: Tensor
) -> Tuple[Dict[str, Call], Dict[str, Call], Dict[str, str]]:
    forward: Dict[str, Call] = {}
    both: Dict[str, Call] = {}
    failed: Dict[str, str] = {}
    for library, layer, _, _ in measurable:
        try:
            if library.make is None:
                forward[library.name], both[library.name] = layer.linear(x, weight, bias)
                continue
            calls = _of_torch(layer.make(x.shape[-1]), x, weight, bias)
        except Exception as error:
            failed[library.name] = failure(error).reason
            continue
        forward[library.name], both[library.name] = calls
        if x.device.type == "cuda" and library.graph and library.loops:
            # without the host's time between the loop's kernels; with weights that no other stream has used
            row = f"{library.name}, {GRAPH}"
            forward[row], both[row] = map(_captured, _of_torch(layer.make(x.shape[-1]), x, weight, bias))
    return forward, both, failed


def _of_torch(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor) -> Tuple[Call, Call]:
    """Forward with a graph of its gradients, as the original has it, and forward with backward."""
    layer = layer.to(x.device)
    weight, bias = (parameter.detach().clone().requires_grad_() for parameter in (weight, bias))

    def forward(i: int) -> Tensor:
        spikes: Tensor = layer(nn.functional.linear(x, weight, bias))
        return spikes

    def both(i: int) -> None:
        forward(i).sum().backward()
        weight.grad = bias.grad = None

    return forward, both


def _products(x: Tensor, weight: Tensor) -> Tuple[Call, Call]:
    """The product of forward, and both products of forward and backward."""
    gradient = torch.randn_like(x)

    def both(i: int) -> None:
        x @ weight.t()
        gradient.t() @ x

    return lambda i: x @ weight.t(), both


def _copy(x: Tensor) -> Call:
    there = torch.empty_like(x)
    return lambda i: there.copy_(x)


def _rates(case: Mapping[str, Any], times: Mapping[str, Mapping[str, Any]], size: int) -> Tuple[float, float]:
    """Operations per second of the products, and bytes per second of a copy: the fastest turn that was seen."""
    bounds = dict(zip(("forward", "training"), linear_bounds(case)))
    copy = times["forward"][COPY]
    if not isinstance(copy, Timing):
        raise RuntimeError(f"the copy could not be measured: {copy.reason}")
    return max(_rate(bounds[kind].operations, times[kind][PRODUCTS]) for kind in bounds), 2 * size / copy.low


def _row(
    suite: str,
    case: Mapping[str, Fact],
    name: str,
    candidate: Optional[Candidate],
    timings: Mapping[str, Any],
    limits: Mapping[str, float],
    figures: Dict[str, float],
) -> Row:
    """A row with its times and the bound of each; one that is faster says so."""
    details = [candidate.detail] if candidate and candidate.detail else []
    measured = {kind: timing for kind, timing in timings.items() if isinstance(timing, Timing)}
    if len(measured) < len(timings):
        reasons = [timing.reason for timing in timings.values() if isinstance(timing, Failure)]
        return Row(suite, case, name, "failed", reasons[0])
    for kind, timing in measured.items():
        figures.update(timed(kind, timing))
        figures[f"{kind}_bound_ms"] = limits[kind] * 1e3
        figures[f"{kind}_over_bound"] = timing.seconds / limits[kind]
        if candidate is not None and timing.seconds < 0.97 * limits[kind]:
            details.append(f"{kind}: {FASTER}")
    return Row(suite, case, name, candidate.status if candidate else "ok", "; ".join(details), figures)


class Classifier(nn.Module):
    """Linear layers with neurons between them; the scores are the sum of the last one over time."""

    def __init__(self, weights: List[Tensor], make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        linears = [nn.Linear(weight.shape[1], weight.shape[0], bias=False) for weight in weights]
        for linear_layer, weight in zip(linears, weights):
            linear_layer.weight.data.copy_(weight)
        layers: List[nn.Module] = []
        for linear_layer in linears[:-1]:
            layers += [linear_layer, make(linear_layer.out_features)]
        self.layers = nn.Sequential(*layers, linears[-1])

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, 128] -> [T, B, 20]``."""
        scores: Tensor = self.layers(x)
        return scores


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.sum(0), labels)


def classifier_operations(steps: int, batch: int, width: int) -> float:
    """Of the products of a training step: forward, the weights' gradients, and those of all inputs but the first."""
    first, others = CHANNELS * width, width * width + CLASSES * width
    return 2.0 * steps * batch * (2 * first + 3 * others)


def classifier(case: Mapping[str, Any], width: int, bench: Bench, candidates: Candidates) -> List[Row]:
    """The rows of a training step on SHD: loss, backward and Adam, and an epoch's steps."""
    device, steps, batch = bench.device, case["steps"], case["batch"]
    measurable, rows = candidates.checked(SHD, case)
    generator = torch.Generator(device).manual_seed(0)
    x = (torch.rand(steps, batch, CHANNELS, device=device, generator=generator) < RATE).float()
    labels = torch.randint(CLASSES, (batch,), device=device, generator=generator)
    shapes = ((width, CHANNELS), (width, width), (CLASSES, width))
    weights = [
        (torch.rand(shape, device=device, generator=generator) * 2 - 1) * 3 * shape[1] ** -0.5 for shape in shapes
    ]
    calls: Dict[str, Call] = {}
    for library, layer, _, _ in measurable:
        for form in ("", GRAPH) if device.type == "cuda" and library.graph else ("",):
            name = f"{library.name}, {form}" if form else library.name
            try:
                if library.make is None:
                    calls[name] = layer.classifier(weights, x, labels, LEARNING_RATE)
                else:
                    net = Classifier(weights, layer.make).to(device)
                    calls[name] = _step(net, x, labels, form == GRAPH, library)
            except Exception as error:
                rows.append(Row(SHD, case, name, "failed", failure(error).reason))
    side = 4096 if device.type == "cuda" else 1024
    square = torch.randn(side, side, device=device, generator=generator)
    calls[PRODUCTS] = _products_of_step(weights, x)
    # in the same turns as the steps, so that all meet the same machine
    times = interleave({**calls, SQUARE: lambda i: square @ square}, bench.clock.batch, bench.plan)
    operations = classifier_operations(steps, batch, width)
    rate = max(_rate(operations, times[PRODUCTS]), _rate(2.0 * side**3, times.pop(SQUARE)))
    limit = operations / rate
    by_name = {candidate.library.name: candidate for candidate in measurable}
    for name, timing in times.items():
        figures = {"products_tflops": rate / 1e12}
        if isinstance(timing, Timing) and name != PRODUCTS:
            figures["epoch_s"] = timing.seconds * -(-SAMPLES // batch)
        candidate = by_name.get(name.partition(", ")[0])
        rows.append(_row(SHD, case, name, candidate, {"step": timing}, {"step": limit}, figures))
    return rows


def _products_of_step(weights: List[Tensor], x: Tensor) -> Call:
    """The products of a training step: forward, the weights' gradients, and those of all inputs but the first."""
    inputs = [x.flatten(0, 1), *(torch.randn(x.shape[0] * x.shape[1], len(w), device=x.device) for w in weights)]

    def call(i: int) -> None:
        for k, weight in enumerate(weights):
            inputs[k] @ weight.t()
            inputs[k + 1].t() @ inputs[k]
            if k:
                inputs[k + 1] @ weight

    return call


def _rate(operations: float, timing: Any) -> float:
    """Operations per second, in the fastest turn."""
    if not isinstance(timing, Timing):
        raise RuntimeError(f"the products could not be measured: {timing.reason}")
    return operations / timing.low


def _step(net: nn.Module, x: Tensor, labels: Tensor, graph: bool, library: Library) -> Call:
    gpu = x.device.type == "cuda"
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE, fused=gpu)
    options = sc.CudaOptions(graph=True) if graph else sc.TrainingOptions()
    backend = library.name if library.ours else "torch"
    step = sc.training_model(net, _loss, optimizer, backend=backend, options=options)
    for _ in range(4):
        step(x, labels)
    return lambda i: step(x, labels)
