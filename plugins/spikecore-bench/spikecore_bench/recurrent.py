"""Layers with feedback, ``sc.Recurrent(neuron, nn.Linear(H, H))``, beside ``nn.LSTM(H, H)``: all steps, both ways.

Three times of each: the sum of the device's kernels, the wall time of an eager call, and that of a captured one. One
call of the backend and the loop over time steps are rows of their own. Whole training steps, with a projection before
and behind, are the cases whose neuron is called ``network``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.dtypes import DTYPES
from spikecore_bench.cases import Bench, Case, Job, compared, contained, set_up, training
from spikecore_bench.check import REFERENCE
from spikecore_bench.report import Fact, Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call, HostClock, Timing, interleave

LSTM, LOOP = "nn.LSTM", ", loop"
#: Calls of a profile.
PROFILED = 3
#: Time steps, batch and width.
SIZES = ((100, 256, 128), (250, 128, 256), (250, 128, 512), (1000, 32, 128), (100, 256, 1024), (250, 256, 360))
SMALL = ((5, 2, 8),)
#: Those that are also measured as a loop over time steps, which takes up to a hundred times as long.
LOOPED = (*SIZES[:4], *SMALL)
#: Neuron, dtype and firing rate; the first is also measured as a loop over time steps.
VARIANTS = (("LIF", "float32", 0.04), ("ALIF", "float32", 0.04), ("LIF", "float32", 0.3), ("LIF", "bfloat16", 0.04))
NEURONS: Mapping[str, Callable[[], sc.Neuron]] = {"LIF": lambda: sc.LIF(2.0), "ALIF": lambda: sc.ALIF(2.0)}
#: Inputs and classes of the training steps.
INPUTS, CLASSES = 140, 20


@dataclass(frozen=True)
class Fed(Case):
    """A layer with feedback, or a network of ``layers`` of them."""

    width: int = 1
    rate: float = 0.0
    layers: int = 1
    looped: bool = False

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        return {**super().facts, "width": self.width, "rate": self.rate, "layers": self.layers}

    @property
    def label(self) -> str:
        """For people."""
        sizes = f"T={self.steps} B={self.batch} H={self.width} x{self.layers}"
        return f"{self.neuron} {self.dtype} {sizes}, rate {self.rate}"

    def made(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random numbers, as an input or a cotangent."""
        shape = (self.steps, self.batch, self.width)
        return torch.randn(shape, device=device, generator=generator).to(DTYPES[self.dtype])


class Outputs(nn.Module):
    """``nn.LSTM`` as a layer: its outputs alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, H] -> [T, B, H]``."""
        y: Tensor = self.lstm(x)[0]
        return y


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per size and variant, and one per network."""
    sizes = SIZES if bench.device.type == "cuda" and not settings.quick else SMALL
    found = []
    for neuron, dtype, rate in (*VARIANTS, ("network", "float32", 0.0)):
        network = neuron == "network"
        for t, b, width in sizes:
            looped = (t, b, width) in LOOPED and (network or (neuron, dtype, rate) == VARIANTS[0])
            count = 2 if network and width == 360 else 1
            case = Fed("recurrent", neuron, dtype, t, b * width, b, width, rate, count, looped)
            found.append(contained(case, bench, trained if network else measure))
    return found


def layers(case: Fed, bench: Bench, neuron: str) -> Dict[str, Callable[[], nn.Module]]:
    """The layers of a case: each backend in one call and as a loop, and the LSTM."""
    found: Dict[str, Callable[[], nn.Module]] = {}
    for one in bench.implementations:
        if one.backend is not None:
            for how, fused in (("one call", True), ("loop", False))[: 1 + case.looped]:
                found[f"{one.name}, {how}"] = partial(_recurrent, NEURONS[neuron], case.width, one.backend, fused)
    found[LSTM] = partial(Outputs, case.width)
    return found


def _recurrent(neuron: Callable[[], sc.Neuron], width: int, backend: str, fused: bool) -> nn.Module:
    layer = sc.Recurrent(neuron(), nn.Linear(width, width), fused=fused)
    sc.set_backend(layer, backend)
    return layer


def _made(make: Callable[[], nn.Module], case: Fed, bench: Bench) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().to(bench.device, DTYPES[case.dtype])


def _scaled(case: Fed, bench: Bench) -> Tuple[Tensor, Tensor, float]:
    """Input and cotangent, the input so large that the neuron fires at the rate of the case, and the rate."""
    generator = torch.Generator(bench.device).manual_seed(0)
    x, cotangent = (case.made(bench.device, generator) for _ in range(2))
    backend = next((one.backend for one in bench.implementations if one.backend is not None), REFERENCE)
    layer = _made(partial(_recurrent, NEURONS[case.neuron], case.width, backend, True), case, bench)
    low, high, scale, found = 0.05, 20.0, 1.0, 0.0
    with torch.no_grad():
        for _ in range(9):
            scale = (low * high) ** 0.5
            found = float(layer(scale * x).float().mean())
            low, high = (scale, high) if found < case.rate else (low, scale)
    return (scale * x).requires_grad_(), cotangent, found


def _entered(
    make: Callable[[], nn.Module], case: Fed, bench: Bench, x: Tensor, cotangent: Tensor
) -> Tuple[Call, Dict[str, float]]:
    """Forward and backward, and the memory that is kept between them."""
    layer = _made(make, case, bench)
    call = training(layer, [(x, cotangent)])
    call(0)
    held = _held(layer, x, bench.clock)
    return call, {} if held is None else {"held_words": held / (4 * x.numel())}


def _held(layer: nn.Module, x: Tensor, clock: HostClock) -> Optional[int]:
    """Bytes that are kept for backward, the output included, which all of them keep; None where nobody counts."""
    clock.synchronize()
    before = clock.allocated()
    y = layer(x)
    after = clock.allocated()
    del y
    return None if before is None or after is None else after - before


def measure(case: Any, bench: Bench) -> List[Row]:
    """The rows of one layer."""
    x, cotangent, rate = _scaled(case, bench)
    known = layers(case, bench, case.neuron)
    under, rows = set_up(
        case, {name: partial(_entered, make, case, bench, x, cotangent) for name, make in known.items()}
    )
    calls = {name: call for name, (call, _) in under.items()}
    # a profile of a loop is that of thousands of kernels; its device time is that of its graph
    once = {name: call for name, call in calls.items() if not name.endswith(LOOP)}
    kinds = {"device": interleave(once, bench.clock.kernels, replace(bench.plan, fixed=PROFILED))}
    kinds["wall"] = interleave(calls, bench.clock.batch, bench.plan)
    if bench.device.type == "cuda":
        captured = {name: as_graph(call) for name, call in calls.items()}
        kinds["graph"] = interleave(captured, bench.clock.batch, bench.plan)
    for name, (_, figures) in under.items():
        rows[name] = _row(case, name, figures if name == LSTM else {**figures, "rate": rate}, kinds)
    return [rows[name] for name in known]


def as_graph(call: Call) -> Call:
    """The same call as a CUDA graph, captured when it is first made."""
    graphs: List[torch.cuda.CUDAGraph] = []

    def replayed(i: int) -> None:
        if not graphs:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                call(0)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call(0)
            graphs.append(graph)
        graphs[0].replay()

    return replayed


def _row(case: Fed, name: str, figures: Mapping[str, float], kinds: Mapping[str, Mapping[str, Any]]) -> Row:
    """A row with the times that there are; what failed is said beside them."""
    times: Dict[str, float] = {}
    problems = []
    for kind, found in kinds.items():
        if isinstance(found.get(name), Timing):
            times.update(compared(kind, found, name, over_lstm=LSTM))
        elif name in found:
            problems.append(f"{kind}: {found[name].reason}")
    detail = "; ".join(problems)
    return case.row(name, "ok", detail, **figures, **times) if times else case.row(name, "failed", detail)


def classifier(make: Callable[[], nn.Module], width: int, layers: int) -> nn.Module:
    """A projection, recurrent layers and a read-out of every step: ``[T, B, 140] -> [T, B, 20]``."""
    return nn.Sequential(nn.Linear(INPUTS, width), *(make() for _ in range(layers)), nn.Linear(width, CLASSES))


def trained(case: Any, bench: Bench) -> List[Row]:
    """The rows of one network: a training step with Adam, eagerly and as a graph."""
    device = bench.device
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(case.steps, case.batch, INPUTS, device=device, generator=generator)
    labels = torch.randint(CLASSES, (case.batch,), device=device, generator=generator)
    makers: Dict[str, Callable[[], Call]] = {}
    for name, make in layers(case, bench, "LIF").items():
        network = partial(_made, partial(classifier, make, case.width, case.layers), case, bench)
        makers[name] = partial(_step, network, x, labels, sc.TrainingOptions())
        if device.type == "cuda":
            makers[f"{name}, CUDA graph"] = partial(_step, network, x, labels, sc.CudaOptions(graph=True))
    calls, rows = set_up(case, makers)
    found = interleave(calls, bench.clock.batch, bench.plan)
    rows.update({name: _row(case, name, {}, {"step": found}) for name in calls})
    return [rows[name] for name in makers]


def _step(network: Callable[[], nn.Module], x: Tensor, labels: Tensor, options: Any) -> Call:
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=x.device.type == "cuda")
    # the batch is the second dimension, and the first is time
    step = sc.training_model(net, _loss, optimizer, options=options)
    for _ in range(4):
        step(x, labels)
    return lambda i: step(x, labels)


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.mean(0), labels)
