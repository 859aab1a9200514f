"""Whole-network rows: a training step with Adam (fused on a GPU), beside the same network with ReLU as its neuron.

The network with ReLU is the cost of everything else. All are trained in the same forms
(:mod:`spikecore.bench._forms`), and the ratio that counts is to ReLU in its best form. Before a network is timed, its
neuron is checked as in the other suites, on a small input of the network's number of steps and dtype.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from spikecore.bench._cases import Bench, Job, bench_of, timed
from spikecore.bench._forms import forget_compiled, forms
from spikecore.bench._implementations import REFERENCE
from spikecore.bench._report import MEASURED, Fact, Row
from spikecore.bench._set_up import Rectifier, Training, attempt, enter, train, train_by_jelly
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Call, HostClock, Timing, failure, interleave
from spikecore.bench._workers import Worker, turn
from spikecore.bench.models import NETWORKS, Network, with_triton_neurons

RELU = "ReLU"
#: The row of a network that SpikingJelly has ready; also under a graph of its own.
JELLYS = "SpikingJelly's network"
#: The same with its neurons in 16 bits as Triton kernels, which it has on request alone.
JELLYS_TRITON = f"{JELLYS} with Triton neurons"
#: How the reason of a row begins whose memory was not there.
FULL = "OutOfMemoryError"
#: Networks whose forms are set up before the first of them is timed; their captured steps are all in the memory of a
#: GPU then.
TOGETHER = 8
#: Steps of a profile, and kernels of one that are named.
PROFILED, LISTED = 5, 24
#: Kernels of convolutions and of products of matrices, with what they call before and after themselves.
PRODUCT = re.compile("fprop|dgrad|wgrad|cudnn|cutlass|gemm|nchwToNhwc|nhwcToNchw|cask|gemv|splitK|nvjet", re.IGNORECASE)


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per network, or per :data:`TOGETHER` of them with workers, and a row for each that was not asked for."""
    wanted, rows = [NETWORKS[name] for name in settings.networks if name in NETWORKS], []
    for name, network in NETWORKS.items():
        if name not in settings.networks and not settings.quick:
            detail = f"not asked for; --network {name} does"
            rows.append(Row("networks", _case(network, bench), "all", "skipped", detail))
    if settings.workers:
        groups = [Together(wanted[i : i + TOGETHER], settings, bench) for i in range(0, len(wanted), TOGETHER)]
        jobs = [job for group in groups for job in group.jobs()]
    else:
        jobs = [_contained(network, settings, bench) for network in wanted]
    return [*jobs, *(Job(f"networks: {row.case['network']}", partial(list, [row])) for row in rows)]


def _contained(network: Network, settings: Settings, bench: Bench) -> Job:
    case = _case(network, bench)
    return _guarded(network, case, partial(measure, network, settings.forms, case, bench), bench)


def _guarded(network: Network, case: Mapping[str, Fact], work: Callable[[], List[Row]], bench: Bench) -> Job:
    def run() -> List[Row]:
        try:
            return work()
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
        "dtype": f"{dtype} autocast" if network.autocast else "TF32" if network.tf32 else dtype,
        "steps": network.steps,
        "batch": batch,
    }


def measure(network: Network, wanted: Sequence[str], case: Mapping[str, Fact], bench: Bench) -> List[Row]:
    """The rows of one network, all forms in this process, in turns; what does not fit beside the others, alone."""
    known, plain = entries(network, wanted, case, bench)
    trainings = {name: attempt(enter, bench) for name, enter in known.items()}
    timings = _timed(trainings, bench)
    for name in [name for name, one in trainings.items() if one.detail.startswith(FULL)]:
        alone = {name: attempt(known[name], bench)}
        timings.update(_timed(alone, bench))
        trainings.update(alone)
    return _rows(case, trainings, plain, timings)


def _timed(trainings: Dict[str, Training], bench: Bench) -> Dict[str, Any]:
    """The times of those that were set up, whose memory is given back."""
    calls = {name: one.call for name, one in trainings.items() if one.call is not None}
    timings = interleave(calls, bench.clock.batch, bench.plan)
    calls.clear()
    for name, one in trainings.items():
        trainings[name] = replace(one, call=None)
    bench.clock.forget()
    return dict(timings)


class Together:
    """Networks whose forms are all set up in other processes before the first is timed, alone.

    A compiled form has a process of its own, so that all compile at the same time; what is not compiled shares one.
    """

    def __init__(self, group: Sequence[Network], settings: Settings, bench: Bench) -> None:
        self._group, self._settings, self._bench = group, settings, bench
        self._workers: Dict[str, List[Tuple[List[str], Worker]]] = {}

    def jobs(self) -> List[Job]:
        """What measures them, one after the other."""
        cases = [(network, _case(network, self._bench)) for network in self._group]
        return [_guarded(one, case, partial(self.measure, one, case), self._bench) for one, case in cases]

    def measure(self, network: Network, case: Mapping[str, Fact]) -> List[Row]:
        """The rows of one network; its processes have ended then."""
        if not self._workers:
            self._start()
        known, plain = entries(network, self._settings.forms, case, self._bench)
        mine = self._workers[network.name]
        try:
            trainings: Dict[str, Training] = dict.fromkeys(known, Training(None, None, None))
            calls: Dict[str, Member] = {}
            for rows, worker in mine:
                state, told = worker.ready()
                for row in rows:
                    trainings[row] = (
                        told[row] if state == "ready" else Training(None, None, None, "failed", told.reason)
                    )
                    if trainings[row].status in MEASURED:
                        calls[row] = Member(worker, row)
            timings = interleave({row: calls[row] for row in known if row in calls}, turn, self._bench.plan)
            for form in forms(network, self._settings.forms, self._bench.device.type):
                for row in [row for row in calls if form.compiled and row.endswith(f", {form.name}")]:
                    trainings[row] = _told(trainings[row], calls[row].worker.ask("kernels", row))
            return _rows(case, trainings, plain, timings)
        finally:
            for _, worker in mine:
                worker.end()

    def _start(self) -> None:
        """Set up as many at the same time as there may be; returns when all are ready."""
        started: List[Worker] = []
        for network in self._group:
            mine = self._workers[network.name] = []
            for rows in self._shared(network):
                if len(started) >= self._settings.workers:
                    started[-self._settings.workers].ready()
                worker = Worker(self._settings, enter_apart, network.name, rows)
                started.append(worker)
                mine.append((rows, worker))
        for worker in started:
            worker.ready()

    def _shared(self, network: Network) -> List[List[str]]:
        """The rows of each process: those that compile first, since they take longest."""
        wanted, device = self._settings.forms, self._bench.device.type
        case = _case(network, self._bench)
        alone = [form.name for form in forms(network, wanted, device) if form.compiled or form.compiled_adam]
        rows = list(entries(network, wanted, case, self._bench)[0])
        compiled = [row for row in rows if row.partition(", ")[2] in alone]
        eager = [row for row in rows if row not in compiled]
        return [*([row] for row in compiled), *([eager] if eager else [])]


@dataclass(frozen=True)
class Member:
    """One row of a process."""

    worker: Worker
    row: str

    def turn(self, begin: int, calls: int) -> float:
        """Seconds of some steps."""
        return float(self.worker.ask("turn", self.row, begin, calls))

    def __call__(self, i: int) -> float:
        """One step."""
        return self.turn(i, 1)


def _told(training: Training, kernels: Mapping[str, Tuple[float, int]]) -> Training:
    """The same with the kernels of a step that are no products and no convolutions, by their time."""
    others = {name: one for name, one in kernels.items() if not PRODUCT.search(name)}
    if not others:
        return training
    whole, rest = (sum(seconds for seconds, _ in some.values()) / PROFILED for some in (kernels, others))
    longest = sorted(others.items(), key=lambda item: -item[1][0])[:LISTED]
    listed = [f"{name[:70]} {s / PROFILED * 1e3:.4f} ms in {times / PROFILED:.0f}" for name, (s, times) in longest]
    said = f"device {whole * 1e3:.3f} ms, {rest * 1e3:.3f} of it neither convolutions nor products: {'; '.join(listed)}"
    return replace(training, detail=f"{training.detail} {said}".strip())


class Apart:
    """Forms of a network under way in a process of their own."""

    def __init__(self, trainings: Mapping[str, Training], clock: HostClock) -> None:
        self._trainings, self._clock = trainings, clock

    def told(self) -> Dict[str, Training]:
        """What the process that compares is told."""
        return {row: replace(one, call=None) for row, one in self._trainings.items()}

    def turn(self, row: str, begin: int, calls: int) -> float:
        """Seconds of some steps."""
        return self._clock.batch(self._called(row), begin, calls)

    def kernels(self, row: str) -> Dict[str, Tuple[float, int]]:
        """The kernels of some steps."""
        return self._clock.profile(self._called(row), 0, PROFILED)

    def _called(self, row: str) -> Call:
        training = self._trainings[row]
        if training.call is None:
            raise RuntimeError(training.detail)
        return training.call


def enter_apart(settings: Settings, name: str, rows: Sequence[str]) -> Apart:
    """Some forms of one network, in the process that calls this."""
    bench = bench_of(settings)
    network = NETWORKS[name]
    known, _ = entries(network, settings.forms, _case(network, bench), bench)
    trainings = {}
    for row in rows:
        trainings[row] = attempt(known[row], bench)
        bench.clock.forget()  # others need the memory until it is this one's turn
    return Apart(trainings, bench.clock)


def entries(
    network: Network, wanted: Sequence[str], case: Mapping[str, Fact], bench: Bench
) -> Tuple[Dict[str, Callable[[], Training]], List[str]]:
    """What sets each row up, by its name, and the names of those with ReLU."""
    batch = int(case["batch"] or 1)
    makers: Dict[str, Callable[[], Training]] = {}
    plain: List[str] = []
    for form in forms(network, wanted, bench.device.type):
        if not form.ours:
            plain.append(form.row(RELU))
            makers[plain[-1]] = partial(train, network, batch, bench, Rectifier, REFERENCE, form)
        for other in bench.implementations:
            # a loop over time steps is written out by the compiler, for minutes
            if other.in_network is not None and (other.ours or not (form.ours or (form.compiled and other.loops))):
                its = form if other.ours else replace(form, apart=True)
                makers[form.row(other.name)] = partial(enter, other, network, batch, bench, its)
        for name, make in _jellys(network, bench).items() if not form.ours else ():
            ready = replace(network, of_spikingjelly=make, make=partial(_ready, make))
            its = replace(form, apart=True)
            makers[form.row(name)] = partial(train, ready, batch, bench, Rectifier, REFERENCE, its)
            if form.graph and not (form.compiled or form.compiled_adam):
                makers[f"{name}, its own {form.name}"] = partial(train_by_jelly, ready, batch, bench, its)
    return makers, plain


def _jellys(network: Network, bench: Bench) -> Dict[str, Callable[[int], nn.Module]]:
    """The networks that SpikingJelly has ready, where it takes part."""
    make = network.of_spikingjelly
    if make is None or not any(other.name.startswith("SpikingJelly") for other in bench.implementations):
        return {}
    makers = {JELLYS: make}
    if bench.device.type == "cuda" and network.autocast is not None:
        makers[JELLYS_TRITON] = partial(with_triton_neurons, make, bench.device)
    return makers


def _ready(make: Callable[[int], nn.Module], steps: int, neuron: Any) -> nn.Module:
    """A network whose neurons are its own."""
    return make(steps)


def _rows(
    case: Mapping[str, Fact], trainings: Mapping[str, Training], plain: Sequence[str], timings: Mapping[str, Any]
) -> List[Row]:
    batch = int(case["batch"] or 1)
    good = {name: one for name, one in timings.items() if isinstance(one, Timing)}
    best = min((good[name].seconds for name in plain if name in good), default=None)
    first = plain[0] if plain else ""
    rows = []
    for name, one in trainings.items():
        if name in good:
            figures = _figures(good[name], batch, good.get(first), best)
            figures.update(_memory(one, trainings.get(first)))
            rows.append(Row("networks", case, name, one.status, one.detail, figures))
        elif name in timings:
            rows.append(Row("networks", case, name, "failed", timings[name].reason))
        else:
            rows.append(Row("networks", case, name, one.status, one.detail))
    return rows


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
