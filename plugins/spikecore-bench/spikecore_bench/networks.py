"""Whole-network rows: a training step with Adam (fused on a GPU), beside the same network with ReLU as its neuron.

The network with ReLU is the cost of everything else. All are trained in the same forms
(:mod:`spikecore_bench.forms`), and the ratio that counts is to ReLU in its best form. Each form is set up, timed in
turns with ReLU's best form, and dropped: the ratio is that of two medians of the same minute. ReLU's best form stays
until the network is done, so that two forms take memory at a time, beside what processes hold that wait.

The forms with ReLU come first. Each is timed in turns with the fastest so far, whose place it takes if it is faster;
ratios between forms with ReLU that never met are products of those that were measured.

Before a network is timed, its neuron is checked as in the other suites, on a small input of the network's number of
steps and dtype.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from spikecore_bench.cases import Bench, Job, bench_of, timed
from spikecore_bench.check import REFERENCE
from spikecore_bench.forms import forget_compiled, forms
from spikecore_bench.models import NETWORKS, with_triton_neurons
from spikecore_bench.network import Network
from spikecore_bench.report import MEASURED, Fact, Row
from spikecore_bench.set_up import Rectifier, Training, attempt, enter, train, train_by_jelly
from spikecore_bench.settings import Settings, device_named
from spikecore_bench.timing import Failure, Timing, failure, interleave
from spikecore_bench.workers import Here, Worker

RELU = "ReLU"
#: Row that all forms take turns with.
BEST = "ReLU's best form"
#: Behind the name of a row: the network is written by hand for its layout.
BY_HAND = " by hand"
#: The row of a network that SpikingJelly has ready; also under a graph of its own.
JELLYS = "SpikingJelly's network"
#: The same with its neurons in 16 bits as Triton kernels, which it has on request alone.
JELLYS_TRITON = f"{JELLYS} with Triton neurons"


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job for ReLU in all forms and one for each other row of a network; a row for each that was not asked for."""
    networks = [NETWORKS[name] for name in settings.networks]
    jobs = [job for network in networks for job in Comparison(network, settings, bench).jobs()]
    for name, network in NETWORKS.items():
        if name not in settings.networks and not settings.quick:
            row = Row("networks", _case(network, bench), "all", "skipped", f"not asked for; --network {name} does")
            jobs.append(Job(f"networks: {name}", partial(list, [row])))
    return jobs


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


#: A form of a network that was set up, in this process or in another: what asks an :class:`Entered`.
Form = Union[Here, Worker]


class Outcome(NamedTuple):
    """Outcome of a form."""

    #: Set-up training, without its step.
    training: Training
    #: Its time; None: it must not be timed.
    time: Union[Timing, Failure, None] = None
    #: The time of ReLU's best form in the same turns; None: there was none.
    best: Union[Timing, Failure, None] = None

    @property
    def ratio(self) -> Optional[float]:
        """Its time over that of ReLU's best form."""
        both = isinstance(self.time, Timing) and isinstance(self.best, Timing)
        return self.time.seconds / self.best.seconds if both else None  # type: ignore[union-attr]


class Comparison:
    """The rows of one network."""

    def __init__(self, network: Network, settings: Settings, bench: Bench) -> None:
        self._network, self._settings, self._bench = network, settings, bench
        self._case = _case(network, bench)
        self._makers, self._plain = entries(network, settings.forms, self._case, bench)
        self._workers: Dict[str, Worker] = {}
        #: ReLU's best form so far.
        self._best: Optional[Form] = None
        #: The time of each form with ReLU, over that of the best one.
        self._ratios: Dict[str, float] = {}
        #: ReLU's first form, whose memory the others' is compared with.
        self._first: Optional[Training] = None

    def jobs(self) -> List[Job]:
        """Jobs that measure them: ReLU first, in all forms, since the ratios are to its best one."""
        label = f"networks: {self._network.name}"
        others = [name for name in self._makers if name not in self._plain]
        others.sort(key=lambda name: name.startswith(JELLYS_TRITON))  # they compile for long
        apart = [Job(f"{label} compiled forms", self._start)] if self._settings.workers else []
        relu = [Job(f"{label} {RELU}", self._relu)] if self._plain else []  # there is no fused or packed one
        return [
            *apart,
            *relu,
            *(Job(f"{label} {name}", partial(self._other, name)) for name in others),
            Job(f"{label} end", self._end),
        ]

    def _start(self) -> List[Row]:
        """Set the compiled forms up in processes of their own, so many at the same time; returns when all are ready."""
        of_device = forms(self._network, self._settings.forms, self._bench.device.type)
        names = [form.name for form in of_device if form.compiled or form.compiled_adam]
        started: List[Worker] = []
        for row in [row for row in self._makers if row.partition(", ")[2] in names]:
            if len(started) >= self._settings.workers:
                started[-self._settings.workers].ready()
            self._workers[row] = Worker(enter_apart, self._settings, self._network.name, row)
            started.append(self._workers[row])
        for worker in started:
            worker.ready()
        return []

    def _end(self) -> List[Row]:
        """Drop ReLU's best form."""
        self._drop(self._best)
        self._best = None
        return []

    def _drop(self, form: Optional[Form]) -> None:
        if form is not None:
            form.end()
        # ReLU's best form, if it compiles in this process and is no graph, compiles again before its next turns
        forget_compiled()
        self._bench.clock.forget()

    def _relu(self) -> List[Row]:
        """All rows with ReLU."""
        outcomes = {name: self._timed(name) for name in self._plain}
        self._first = outcomes[self._plain[0]].training
        return [self._row(name, outcome, self._ratios.get(name)) for name, outcome in outcomes.items()]

    def _other(self, name: str) -> List[Row]:
        outcome = self._timed(name)
        return [self._row(name, outcome, outcome.ratio)]

    def _timed(self, name: str) -> Outcome:
        """A form in turns with ReLU's best one; it is dropped then, unless it is the best one now. It never raises."""
        form: Form = self._workers.pop(name, None) or Here(self._entered, name)
        done: Optional[Form] = form
        try:
            training = form.ask("training")
            if training.status not in MEASURED:
                return Outcome(training)
            racing = {name: form} if self._best is None else {name: form, BEST: self._best}
            times = interleave(racing, _turn, self._bench.plan, paired=True)
            outcome = Outcome(training, times[name], times.get(BEST))
            if name in self._plain and isinstance(outcome.time, Timing):
                done = self._placed(name, form, outcome.ratio)
            return outcome
        except Exception as error:
            return Outcome(Training(None, None, None, "failed", failure(error).reason))
        finally:
            self._drop(done)

    def _entered(self, name: str) -> Entered:
        return Entered(attempt(self._makers[name], self._bench), self._bench)

    def _placed(self, name: str, form: Form, ratio: Optional[float]) -> Optional[Form]:
        """Place a form with ReLU by its ratio to the best one, None where that has no time; gives the slower one."""
        if ratio is not None and ratio >= 1.0:
            self._ratios[name] = ratio
            return form
        self._ratios = {} if ratio is None else {other: its / ratio for other, its in self._ratios.items()}
        self._ratios[name] = 1.0
        slower, self._best = self._best, form
        return slower

    def _row(self, name: str, outcome: Outcome, ratio: Optional[float]) -> Row:
        training, time, best = outcome
        if time is None:
            return Row("networks", self._case, name, training.status, training.detail)
        if isinstance(time, Failure):
            return Row("networks", self._case, name, "failed", time.reason)
        figures = {**timed("step", time), "images_per_second": int(self._case["batch"] or 1) / time.seconds}
        if ratio is not None:
            figures["time_over_best_relu"] = ratio
            if self._plain[0] in self._ratios:
                figures["time_over_relu"] = ratio / self._ratios[self._plain[0]]
        figures.update(_memory(training, self._first))
        problem = f"{BEST} beside it: {best.reason}" if isinstance(best, Failure) else ""
        details = [words for words in (training.detail, problem) if words]
        return Row("networks", self._case, name, training.status, "; ".join(details), figures)


def _turn(form: Form, begin: int, calls: int) -> float:
    """Seconds of some steps, in the process of the form."""
    return float(form.ask("turn", begin, calls))


class Entered:
    """A form of a network that was set up, here or in a process of its own."""

    def __init__(self, training: Training, bench: Bench) -> None:
        self._training, self._bench = training, bench

    def training(self) -> Training:
        """Set-up training, without its step."""
        return replace(self._training, call=None)

    def turn(self, begin: int, calls: int) -> float:
        """Seconds of some steps. Before several, one is not timed: the turn before was another form's."""
        call: Any = self._training.call
        if calls > 1:
            call(begin)
        return self._bench.clock.batch(call, begin, calls)


def enter_apart(settings: Settings, name: str, row: str) -> Entered:
    """A form of a network, in the process that calls this."""
    bench = bench_of(settings, device_named(settings.device))
    makers, _ = entries(NETWORKS[name], settings.forms, _case(NETWORKS[name], bench), bench)
    training = attempt(makers[row], bench)
    bench.clock.forget()  # others need the memory until it is this one's turn
    return Entered(training, bench)


def entries(
    network: Network, wanted: Sequence[str], case: Mapping[str, Fact], bench: Bench
) -> Tuple[Dict[str, Callable[[], Training]], List[str]]:
    """Functions that set up each row, by its name, and the names of those with ReLU."""
    batch = int(case["batch"] or 1)
    makers: Dict[str, Callable[[], Training]] = {}
    plain: List[str] = []
    rewritten = None if network.by_hand is None else replace(network, make=network.by_hand)
    for form in forms(network, wanted, bench.device.type):
        if not form.ours:
            plain.append(form.row(RELU))
            makers[plain[-1]] = partial(train, network, batch, bench, Rectifier, REFERENCE, form)
            if rewritten is not None and form.channels_last:
                plain.append(form.row(f"{RELU}{BY_HAND}"))
                makers[plain[-1]] = partial(train, rewritten, batch, bench, Rectifier, REFERENCE, form)
        for other in bench.implementations:
            # a loop over time steps is written out by the compiler, for minutes
            if other.in_network is not None and (other.ours or not (form.ours or (form.compiled and other.loops))):
                its = form if other.ours else replace(form, apart=True)
                makers[form.row(other.name)] = partial(enter, other, network, batch, bench, its)
                if rewritten is not None and form.channels_last:
                    makers[form.row(f"{other.name}{BY_HAND}")] = partial(enter, other, rewritten, batch, bench, its)
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
