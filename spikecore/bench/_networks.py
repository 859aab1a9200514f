"""Whole-network rows: a training step with Adam (fused on a GPU), beside the same network with ReLU as its neuron.

The network with ReLU is the cost of everything else. Before a network is timed, its neuron is checked as in the other
suites, on a small input of the network's number of steps and dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import nn

import spikecore as sc
from spikecore.backend import Unsupported
from spikecore.bench._cases import Bench, Checked, Job, judge, timed
from spikecore.bench._check import observe
from spikecore.bench._implementations import REFERENCE, Implementation
from spikecore.bench._report import Fact, Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Call, Timing, failure, interleave
from spikecore.bench.models import NETWORKS, Network

RELU = "ReLU"
GRAPH = "CUDA graph"
#: Neurons of the check, an odd number in two dimensions.
CHECKED = (3, 333)
#: Steps before anything is measured; a graph is captured in the last of them, or in the one after.
WARM_UP = 4


class Rectifier(nn.ReLU):
    """``nn.ReLU`` in the place of a neuron, at every step.

    The input is the same at every step and the first layer is computed once (:mod:`spikecore._hoisting`), for ReLU and
    for neurons alike. Plain ReLU would be computed once, too, and so the whole network: T times less work.
    """


@dataclass(frozen=True)
class Training:
    """A network under way: one training step, and the bytes it takes at its peak with everything it owns."""

    call: Call
    memory: Optional[int]
    status: str = "ok"
    detail: str = ""


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per network, and one row for each that was not asked for."""
    found = []
    for name, network in NETWORKS.items():
        case = _case(network, bench)
        if name in settings.networks:
            found.append(_contained(network, case, bench))
        elif not settings.quick:
            row = Row("networks", case, "all", "skipped", f"not asked for; --network {name} does")
            found.append(Job(f"networks: {name}", partial(list, [row])))
    return found


def _contained(network: Network, case: Mapping[str, Fact], bench: Bench) -> Job:
    def run() -> List[Row]:
        try:
            return measure(network, case, bench)
        except Exception as error:
            reason = f"nothing was measured here: {failure(error).reason}"
            return [Row("networks", case, RELU, "failed", reason)]
        finally:
            bench.clock.forget()

    return Job(f"networks: {network.name}", run)


def _case(network: Network, bench: Bench) -> Dict[str, Fact]:
    dtype = str(network.autocast or torch.float32).replace("torch.", "")
    batch = network.batch if bench.device.type == "cuda" else network.batch_on_cpu
    return {
        "network": network.name,
        "about": network.about,
        "dtype": f"{dtype} autocast" if network.autocast else dtype,
        "steps": network.steps,
        "batch": batch,
    }


def measure(network: Network, case: Mapping[str, Fact], bench: Bench) -> List[Row]:
    """The rows of one network."""
    batch = int(case["batch"] or 1)
    train = partial(_train, network, batch, bench)
    entries: Dict[str, Callable[[], Training]] = {RELU: partial(train, Rectifier, REFERENCE)}
    if _graphed(network, bench):
        entries[f"{RELU}, {GRAPH}"] = partial(train, Rectifier, REFERENCE, _graph)
    for implementation in bench.implementations:
        entries.update(_entries(implementation, network, batch, bench))
    running: Dict[str, Training] = {}
    rows: Dict[str, Row] = {}
    for name, enter in entries.items():
        try:
            running[name] = enter()
        except _Out as out:
            rows[name] = Row("networks", case, name, out.status, out.detail)
        except Exception as error:
            status = "unsupported" if isinstance(error, Unsupported) else "failed"
            rows[name] = Row("networks", case, name, status, failure(error).reason)
            bench.clock.forget()
    found = interleave({name: one.call for name, one in running.items()}, bench.clock.batch, bench.plan)
    for name, one in running.items():
        timing = found[name]
        if isinstance(timing, Timing):
            figures = _figures(timing, one.memory, batch, found.get(RELU), running.get(RELU))
            rows[name] = Row("networks", case, name, one.status, one.detail, figures)
        else:
            rows[name] = Row("networks", case, name, "failed", timing.reason)
    return [rows[name] for name in entries]


class _Out(Exception):
    """An implementation that must not be timed."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def _eager(network: Network) -> Any:
    return sc.TrainingOptions(autocast=network.autocast)


def _graph(network: Network) -> Any:
    """Options for a captured CUDA graph, where this version of spikecore has them."""
    options = getattr(sc, "CudaOptions", None)
    if options is None:
        raise _Out("skipped", "this version of spikecore has no CudaOptions")
    return options(graph=True, autocast=network.autocast)


def _graphed(network: Network, bench: Bench) -> bool:
    return network.graph and bench.device.type == "cuda"


def _entries(
    implementation: Implementation, network: Network, batch: int, bench: Bench
) -> List[Tuple[str, Callable[[], Training]]]:
    """The ways in which an implementation trains a network: by name, what sets it up."""
    neuron = implementation.in_network
    if neuron is None:
        return []

    def enter(options: Callable[[Network], Any] = _eager) -> Training:
        status, detail = _admit(implementation, neuron, network, bench)
        trained = _train(network, batch, bench, neuron, implementation.backend or REFERENCE, options)
        return Training(trained.call, trained.memory, status, detail)

    found: List[Tuple[str, Callable[[], Training]]] = [(implementation.name, enter)]
    if implementation.ours and _graphed(network, bench):
        found.append((f"{implementation.name}, {GRAPH}", lambda: enter(_graph)))
    return found


def _admit(
    implementation: Implementation, neuron: Callable[[], nn.Module], network: Network, bench: Bench
) -> Tuple[str, str]:
    """Status and detail of an implementation whose neuron was checked; raises _Out for one that must not be timed."""
    if implementation.unlike:
        return "differs", implementation.unlike
    generator = torch.Generator(bench.device).manual_seed(0)
    shape, dtype = (network.steps, *CHECKED), network.autocast or torch.float32
    x, cotangent = (torch.randn(shape, device=bench.device, dtype=dtype, generator=generator) for _ in range(2))
    x.add_(0.5).requires_grad_()
    expected = observe(sc.LIF(2.0, backend=REFERENCE), x, cotangent)
    verdict = judge(implementation, neuron, x, cotangent, expected, bench.clock)
    if isinstance(verdict, Checked):
        return verdict.status, verdict.detail
    raise _Out(*verdict)


def _train(
    network: Network,
    batch: int,
    bench: Bench,
    neuron: Callable[[], nn.Module],
    backend: str,
    options: Callable[[Network], Any] = _eager,
) -> Training:
    """Set a network up, and measure the memory of a step once a few have been made."""
    clock, device = bench.clock, bench.device
    before = clock.allocated()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = network.make(network.steps, neuron).to(device)
    generator = torch.Generator(device).manual_seed(0)
    images = torch.rand(batch, *network.image, device=device, generator=generator)
    labels = torch.randint(network.classes, (batch,), device=device, generator=generator)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=clock.device.type == "cuda")
    step = sc.training_model(net, sc.losses.ce_count, optimizer, backend=backend, options=options(network))

    def call(i: int) -> Any:
        return step(images, labels)

    for i in range(WARM_UP):
        call(i)
    if not torch.isfinite(call(0)[1]):
        raise _Out("failed", "the loss is not finite after a few steps")
    # a graph that is replayed allocates nothing, so what it takes is not seen
    peak = None if options is _graph else clock.peak(lambda: call(0))
    held = clock.allocated()
    owned = None if peak is None or before is None or held is None else held - before + peak
    return Training(call, owned)


def _figures(
    timing: Timing, memory: Optional[int], batch: int, relu: object, plain: Optional[Training]
) -> Dict[str, float]:
    figures = {**timed("step", timing), "images_per_second": batch / timing.seconds}
    if isinstance(relu, Timing):
        figures["time_over_relu"] = timing.seconds / relu.seconds
    if memory is not None:
        figures["memory_gib"] = memory / 2**30
        if plain is not None and plain.memory:
            figures["memory_over_relu"] = memory / plain.memory
    return figures
