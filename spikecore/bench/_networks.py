"""Whole-network rows: a training step with Adam (fused on a GPU), beside the same network with ReLU as its neuron.

The network with ReLU is the cost of everything else. All are trained in the same forms
(:mod:`spikecore.bench._forms`), and the ratio that counts is to ReLU in its best form. Before a network is timed, its
neuron is checked as in the other suites, on a small input of the network's number of steps and dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.backend import Unsupported
from spikecore.bench._cases import Bench, Checked, Job, judge, timed
from spikecore.bench._check import observe
from spikecore.bench._forms import Form, forget_compiled, forms
from spikecore.bench._implementations import REFERENCE, Implementation
from spikecore.bench._report import Fact, Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Call, Timing, failure, interleave
from spikecore.bench.models import NETWORKS, Network

RELU = "ReLU"
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
    #: The bytes of these that are not parameters, buffers or what the optimiser keeps.
    activations: Optional[int]
    status: str = "ok"
    detail: str = ""


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per network, and one row for each that was not asked for."""
    found = []
    for name, network in NETWORKS.items():
        case = _case(network, bench)
        if name in settings.networks:
            found.append(_contained(network, settings.forms, case, bench))
        elif not settings.quick:
            row = Row("networks", case, "all", "skipped", f"not asked for; --network {name} does")
            found.append(Job(f"networks: {name}", partial(list, [row])))
    return found


def _contained(network: Network, wanted: Sequence[str], case: Mapping[str, Fact], bench: Bench) -> Job:
    def run() -> List[Row]:
        try:
            return measure(network, wanted, case, bench)
        except Exception as error:
            reason = f"nothing was measured here: {failure(error).reason}"
            return [Row("networks", case, RELU, "failed", reason)]
        finally:
            forget_compiled()
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


def measure(network: Network, wanted: Sequence[str], case: Mapping[str, Fact], bench: Bench) -> List[Row]:
    """The rows of one network."""
    batch = int(case["batch"] or 1)
    entries: Dict[str, Callable[[], Training]] = {}
    plain: List[str] = []
    for form in forms(network, wanted, bench.device.type):
        if not form.ours:
            plain.append(form.row(RELU))
            entries[plain[-1]] = partial(_train, network, batch, bench, Rectifier, REFERENCE, form)
        for other in bench.implementations:
            # a loop over time steps is written out by the compiler, for minutes
            if other.in_network is not None and (other.ours or not (form.ours or (form.compiled and other.loops))):
                entries[form.row(other.name)] = partial(_enter, other, network, batch, bench, form)
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
    timings = {name: one for name, one in found.items() if isinstance(one, Timing)}
    best = min((timings[name].seconds for name in plain if name in timings), default=None)
    for name, one in running.items():
        timing = found[name]
        if isinstance(timing, Timing):
            figures = _figures(timing, batch, timings.get(plain[0]) if plain else None, best)
            figures.update(_memory(one, running.get(plain[0]) if plain else None))
            rows[name] = Row("networks", case, name, one.status, one.detail, figures)
        else:
            rows[name] = Row("networks", case, name, "failed", timing.reason)
    return [rows[name] for name in entries]


class _Out(Exception):
    """An implementation that must not be timed."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def _enter(implementation: Implementation, network: Network, batch: int, bench: Bench, form: Form) -> Training:
    """An implementation that trains a network, once its neuron was checked."""
    neuron = implementation.in_network
    if neuron is None:
        raise _Out("skipped", "has no such neuron")
    status, detail = _admit(implementation, neuron, network, bench)
    trained = _train(network, batch, bench, neuron, implementation.backend or REFERENCE, form)
    return replace(trained, status=status, detail=detail)


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
    network: Network, batch: int, bench: Bench, neuron: Callable[[], nn.Module], backend: str, form: Form
) -> Training:
    """Set a network up, and measure the memory of a step once a few have been made."""
    clock, device = bench.clock, bench.device
    before = clock.allocated()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = form.network(network.make(network.steps, neuron).to(device))
    generator = torch.Generator(device).manual_seed(0)
    images = form.images(torch.rand(batch, *network.image, device=device, generator=generator))
    labels = torch.randint(network.classes, (batch,), device=device, generator=generator)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=clock.device.type == "cuda")
    step = sc.training_model(net, sc.losses.ce_count, optimizer, backend=backend, options=form.options(network))

    def call(i: int) -> Any:
        return step(images, labels)

    for i in range(WARM_UP):
        call(i)
    if not torch.isfinite(call(0)[1]):
        raise _Out("failed", "the loss is not finite after a few steps")
    # a graph that is replayed allocates nothing, so what it takes is not seen
    peak = None if form.graph else clock.peak(lambda: call(0))
    held = clock.allocated()
    if peak is None or before is None or held is None:
        return Training(call, None, None)
    owned = held - before + peak
    return Training(call, owned, owned - _kept(net, optimizer))


def _kept(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers and of what the optimiser keeps."""
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(value.element_size() * value.numel() for value in (*net.parameters(), *net.buffers(), *kept))


def _figures(timing: Timing, batch: int, relu: Optional[Timing], best: Optional[float]) -> Dict[str, float]:
    figures = {**timed("step", timing), "images_per_second": batch / timing.seconds}
    if relu is not None:
        figures["time_over_relu"] = timing.seconds / relu.seconds
    if best is not None:
        figures["time_over_best_relu"] = timing.seconds / best
    return figures


def _memory(one: Training, relu: Optional[Training]) -> Dict[str, float]:
    """Memory of a step, and beside the first form of the network with ReLU."""
    figures: Dict[str, float] = {}
    for name in ("memory", "activations"):
        mine, its = getattr(one, name), None if relu is None else getattr(relu, name)
        if mine is not None:
            figures[f"{name}_gib"] = mine / 2**30
            if its:
                figures[f"{name}_over_relu"] = mine / its
    return figures
