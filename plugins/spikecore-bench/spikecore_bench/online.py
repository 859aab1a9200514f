"""Learning rules that move along with time, beside loops written by hand, other libraries and backpropagation.

A layer learns from ``sum_t c[t] y[t]`` with numbers ``c``. Two calls are timed:

- single steps: :data:`FED` steps, each with forward, trace, gradient and an update of the weights;
- a sequence, in chunks of :data:`CHUNK` steps where there are chunks, with one update at its end.

Gradients of a sequence are compared with those of the loop by hand before anything is timed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench import online_memory as memory
from spikecore_bench.cases import PLAIN, Bench, Case, Job, contained, row_per_step, set_up
from spikecore_bench.implementations import NotTimed
from spikecore_bench.machine import version_of
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call, interleave

#: Steps of a turn of single steps, of a sequence, and of a chunk; batch and neurons; the same of a quick run.
FED, STEPS, CHUNK, SIZE = 20, 100, 20, (64, 256)
QUICK = (20, 10, (2, 8))
#: Allowed difference of gradients of a sequence, relative to the largest.
TOLERANCE = 1e-4


def neuron(rule: str, backend: str) -> sc.Neuron:
    """The neuron of each rule: one whose reset has a gradient, and that of the paper, whose leak is all there is."""
    if rule == "d_rtrl":
        return sc.LIF(2.0, backend=backend)
    return sc.LIF(2.0, decay_input=False, reset="soft", detach_reset=True, backend=backend)


class Learner(NamedTuple):
    """A layer that learns."""

    #: The gradient of the weights ``[J, I]`` by a sequence, none of whose weights moved.
    gradient: Callable[[], Tensor]
    #: One call each; no single steps where there are none.
    sequence: Call
    steps: Optional[Call]


class ByHand:
    """Both rules as one writes them in a loop, for the neurons above with the surrogate ATan(2)."""

    def __init__(self, rule: str, weight: Tensor) -> None:
        self.rule, self.weight = rule, weight.clone()
        self.step = self._ottt if rule == "ottt" else self._d_rtrl
        self.reset()

    def reset(self) -> None:
        """Begin at rest."""
        self.v: Any = 0.0
        self.trace: Any = 0.0

    def _ottt(self, x: Tensor, c: Tensor) -> Tensor:
        """``v = h - z``, ``h = v / 2 + W x``: the trace of the inputs decays as the potential does."""
        self.trace = 0.5 * self.trace + x
        h = 0.5 * self.v + x @ self.weight.t()
        self.v = h - (h >= 1.0).to(h.dtype)
        gradient: Tensor = (c * self._surrogate(h)).t() @ self.trace
        return gradient

    def _d_rtrl(self, x: Tensor, c: Tensor) -> Tensor:
        """``v = (1 - z) h``, ``h = (v + W x) / 2``: a trace of dh/dW for each sample and weight."""
        h = (self.v + x @ self.weight.t()) / 2.0
        trace = (self.trace + x.unsqueeze(1)) / 2.0
        z, slope = (h >= 1.0).to(h.dtype), self._surrogate(h)
        gradient = torch.einsum("bj,bji->ji", c * slope, trace.expand(*h.shape, -1))
        self.v = (1.0 - z) * h
        self.trace = (1.0 - z - h * slope).unsqueeze(2) * trace
        return gradient

    @staticmethod
    def _surrogate(h: Tensor) -> Tensor:
        return 1.0 / (1.0 + (math.pi * (h - 1.0)).square())


class Numbers(NamedTuple):
    """Weights, spikes and the numbers of the loss."""

    weight: Tensor
    x: Tensor
    c: Tensor


@dataclass(frozen=True)
class Rule(Case):
    """A rule on a layer ``[B, N]``."""

    @property
    def facts(self) -> Dict[str, Any]:
        """For the report."""
        return {**super().facts, "rule": self.neuron.partition(" ")[2]}


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per rule, and one for memory at each number of steps."""
    steps, chunk, (batch, n) = QUICK if settings.quick else (STEPS, CHUNK, SIZE)
    cases = [Rule("online", f"LIF {rule}", "float32", steps, n, batch) for rule in ("d_rtrl", "ottt")]
    timed = [contained(case, bench, partial(measure, settings.peers, chunk)) for case in cases]
    return [*timed, *memory.jobs(settings, bench)]


def measure(peers: bool, chunk: int, case: Case, bench: Bench) -> List[Row]:
    """The rows of one rule."""
    rule, numbers = case.neuron.partition(" ")[2], _numbers(case, bench.device)
    expected = _by_hand(rule, numbers).gradient()
    makers = _makers(rule, numbers, chunk, bench, peers)
    learners, rows = set_up(case, {name: partial(_checked, make, expected) for name, make in makers.items()})
    steps = {name: learner.steps for name, (learner, _) in learners.items() if learner.steps is not None}
    fed = interleave(steps, bench.clock.batch, bench.plan)
    sequences = {name: learner.sequence for name, (learner, _) in learners.items()}
    whole = interleave(sequences, bench.clock.batch, bench.plan)
    for name, (_, differs) in learners.items():
        rows[name] = row_per_step(case, name, differs, {"step": (fed, FED), "chunk": (whole, case.steps)})
    return [rows[name] for name in makers]


def _checked(make: Callable[[], Learner], expected: Tensor) -> Tuple[Learner, str]:
    """A learner, and how its gradients differ."""
    learner = make()
    apart = ((learner.gradient() - expected).abs().max() / expected.abs().max()).item()
    return learner, "" if apart <= TOLERANCE else f"gradients differ by {apart:.1g} of the largest"


def _numbers(case: Case, device: torch.device) -> Numbers:
    generator = torch.Generator(device).manual_seed(0)
    n, shape = case.neurons, (case.steps, case.batch, case.neurons)
    weight = torch.randn(n, n, device=device, generator=generator) * (2.0 / n**0.5)
    x = (torch.rand(shape, device=device, generator=generator) < 0.3).float()
    return Numbers(weight, x, torch.randn(shape, device=device, generator=generator))


def _makers(rule: str, numbers: Numbers, chunk: int, bench: Bench, peers: bool) -> Dict[str, Callable[[], Learner]]:
    """Makers of the learners, by name."""
    learners_of: Dict[str, Callable[[], Learner]] = {PLAIN: partial(_by_hand, rule, numbers)}
    for each in bench.implementations:
        if each.backend is not None:
            learners_of[each.name] = partial(_ours, rule, numbers, chunk, each.backend)
            if bench.device.type == "cuda":
                learners_of[f"{each.name}, CUDA graph"] = partial(_ours, rule, numbers, chunk, each.backend, graph=True)
            learners_of[f"{each.name}, BPTT"] = partial(_ours, "bptt", numbers, len(numbers.x), each.backend, of=rule)
    if peers and rule == "ottt":
        learners_of["SpikingJelly OTTT"] = partial(_installed, "spikingjelly", partial(_jelly, numbers))
    if peers and rule == "d_rtrl":
        learners_of["braintrace"] = partial(_installed, "braintrace", partial(_braintrace, numbers))
    return learners_of


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.device)
    linear.weight.data.copy_(weight)
    return linear


def _gradient_of(linear: nn.Linear) -> Tensor:
    gradient: Any = linear.weight.grad
    copy: Tensor = gradient.clone()
    return copy


def _installed(distribution: str, make: Callable[[], Learner]) -> Learner:
    if version_of(distribution) is None:
        raise NotTimed(f"not installed: pip install {distribution}")
    return make()


def _by_hand(rule: str, numbers: Numbers) -> Learner:
    learner, small = ByHand(rule, numbers.weight), 1e-9

    def gradient() -> Tensor:
        learner.reset()
        total = torch.zeros_like(learner.weight)
        for x, c in zip(numbers.x, numbers.c):
            total += learner.step(x, c)
        return total

    def sequence(i: int) -> None:
        learner.weight -= small * gradient()

    def steps(i: int) -> None:
        for x, c in zip(numbers.x[:FED], numbers.c):
            learner.weight -= small * learner.step(x, c)

    return Learner(gradient, sequence, steps)


def weighted(outputs: Tensor, numbers: Tensor) -> Tensor:
    """The loss: a sum over all."""
    return (outputs * numbers).sum()


def _ours(
    rule: str, numbers: Numbers, chunk: int, backend: str, of: Optional[str] = None, graph: bool = False
) -> Learner:
    """A step of spikecore; ``of``: the rule whose neuron it is, if it is another."""
    linear = _linear(numbers.weight)
    net = nn.Sequential(linear, neuron(of or rule, backend))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)

    def step(chunk: int, update: str) -> Any:
        options = sc.OnlineOptions(rule, chunk=chunk, update=update, time_targets=True, graph=graph)
        return sc.training_model(net, weighted, optimizer, options=options)

    whole, fed = step(chunk, "sequence"), step(1, "chunk")

    def gradient() -> Tensor:
        whole(numbers.x, numbers.c)
        return _gradient_of(linear)

    def steps(i: int) -> None:
        for x, c in zip(numbers.x[:FED], numbers.c):
            fed.feed(x, c)

    return Learner(gradient, lambda i: whole(numbers.x, numbers.c), None if rule == "bptt" else steps)


def _jelly(numbers: Numbers) -> Learner:
    """Their layers, the loop of their ``ottt_online_training``, and the trace of the input as their node has it."""
    package = "spikingjelly.activation_based"
    nodes, layers = import_module(f"{package}.neuron"), import_module(f"{package}.layer")
    detach = import_module(f"{package}.functional").detach_net
    linear = _linear(numbers.weight)
    surrogate = import_module(f"{package}.surrogate").ATan(alpha=2.0)
    node = nodes.OTTTLIFNode(tau=2.0, surrogate_function=surrogate)
    net, optimizer = layers.OTTTSequential(linear, node), torch.optim.SGD([linear.weight], lr=1e-9)
    traces: Dict[str, Tensor] = {}

    def learn(x: Tensor, c: Tensor) -> None:
        traces["x"] = nodes.OTTTLIFNode.track_trace(x, traces.get("x", torch.zeros_like(x)), 2.0)
        weighted(net([x, traces["x"]])[0], c).backward()
        detach(net)

    def gradient() -> Tensor:
        node.reset()
        traces.clear()
        optimizer.zero_grad()
        for x, c in zip(numbers.x, numbers.c):
            learn(x, c)
        return _gradient_of(linear)

    def sequence(i: int) -> None:
        gradient()
        optimizer.step()

    def steps(i: int) -> None:
        for x, c in zip(numbers.x[:FED], numbers.c):
            optimizer.zero_grad()
            learn(x, c)
            optimizer.step()

    return Learner(gradient, sequence, steps)


def _braintrace(numbers: Numbers) -> Learner:
    layer = import_module("spikecore_bench.braintrace").Layer(*numbers)
    return Learner(layer.gradient, layer.sequence, partial(layer.steps, FED))
