"""Layers and small networks beside the other libraries: forward, and forward with backward.

The sizes are those of a CPU: a large layer, a long one, a single step, and the networks of the examples. A ratio is to
SpikingJelly's module, which is plain torch on a CPU. Whether a neuron is right, the other suites check.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.bench._cases import Bench, Job, compared, first_failure, quietly
from spikecore.bench._implementations import COMPILED, Implementation, NotHere
from spikecore.bench._peers import PEERS
from spikecore.bench._report import Fact, Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Call, failure, interleave
from spikecore.bench.models import EXAMPLES, Network

#: What the ratios are to.
YARDSTICK = "SpikingJelly module"
#: Time steps and neurons of the layers.
LAYERS = ((16, 200_000), (128, 1280))
#: Neurons of the single step.
SINGLE = 256


class Calls(NamedTuple):
    """An implementation in one case: what is timed without gradients, and what with backward."""

    forward: Call
    training: Call


#: The calls of an implementation.
Enter = Callable[[Implementation, Bench], Calls]


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per layer, one for the single step, and one per network, which a quick run leaves out."""
    sizes = ((3, 8),) if settings.quick else LAYERS
    found = [
        Job(f"beside: LIF T={t} N={n:,}", partial(measure, _facts("LIF", t, n), partial(_layer, t, n), bench))
        for t, n in sizes
    ]
    case = _facts("LIF single step", 1, SINGLE)
    found.append(Job("beside: LIF single step", partial(measure, case, _single, bench)))
    for network in () if settings.quick else EXAMPLES:
        facts: Dict[str, Fact] = {"network": network.name, "about": network.about, "dtype": "float32"}
        facts.update(steps=network.steps, batch=network.batch_on_cpu)
        found.append(Job(f"beside: {network.name}", partial(measure, facts, partial(_network, network), bench)))
    return found


def _facts(neuron: str, steps: int, neurons: int) -> Dict[str, Fact]:
    return {"neuron": neuron, "dtype": "float32", "steps": steps, "neurons": neurons}


def measure(case: Mapping[str, Fact], enter: Enter, bench: Bench) -> List[Row]:
    """The rows of one case: every implementation that runs eagerly, and the peers that are not there."""
    rows: Dict[str, Row] = {}
    running: Dict[str, Calls] = {}
    known = {one.name: one for one in bench.implementations if one.name != COMPILED and one.in_network is not None}
    for name, implementation in known.items():
        try:
            running[name] = enter(implementation, bench)
        except NotHere as reason:
            rows[name] = Row("beside", case, name, "skipped", str(reason))
        except Exception as error:
            rows[name] = Row("beside", case, name, "failed", failure(error).reason)
    forward = interleave({name: one.forward for name, one in running.items()}, quietly(bench.clock.batch), bench.plan)
    training = interleave({name: one.training for name, one in running.items()}, bench.clock.batch, bench.plan)
    for name in running:
        problem = first_failure(forward[name], training[name])
        if problem:
            rows[name] = Row("beside", case, name, "failed", problem)
            continue
        figures = compared("forward", forward, name, ratio=YARDSTICK)
        figures.update(compared("training", training, name, ratio=YARDSTICK))
        rows[name] = Row("beside", case, name, "differs" if known[name].unlike else "ok", known[name].unlike, figures)
    bench.clock.forget()
    peers = {one.name for one in PEERS if one.in_network is not None}
    absent = [one for one in bench.listed if one.state != "ready" and one.name in peers]
    missing = [Row("beside", case, one.name, "skipped", one.detail) for one in absent]
    return [*(rows[name] for name in known), *missing]


def _neuron(implementation: Implementation, device: torch.device) -> nn.Module:
    if implementation.in_network is None:
        raise NotHere("has no such neuron")
    return implementation.in_network().to(device)


def _layer(steps: int, neurons: int, implementation: Implementation, bench: Bench) -> Calls:
    """A layer that begins every call at rest."""
    return _calls(_neuron(implementation, bench.device), (steps, neurons), bench)


def _single(implementation: Implementation, bench: Bench) -> Calls:
    """A single step ``[N]``: without gradients it continues, with gradients it begins at rest."""
    if implementation.single is None:
        raise NotHere("another row of the library is its single step")
    layer, reset = implementation.single()
    return _calls(layer.to(bench.device), (SINGLE,), bench, reset)


def _calls(layer: nn.Module, shape: Any, bench: Bench, reset: Optional[Callable[[], Any]] = None) -> Calls:
    generator = torch.Generator(bench.device).manual_seed(0)
    x, cotangent = (torch.rand(shape, device=bench.device, generator=generator) for _ in range(2))
    x.mul_(2.0).requires_grad_()

    def training(i: int) -> None:
        if reset is not None:
            reset()
        layer(x).backward(cotangent)
        x.grad = None

    def forward(i: int) -> Tensor:
        spikes: Tensor = layer(x)
        return spikes

    if reset is not None:
        reset()
    return Calls(forward, training)


def _network(network: Network, implementation: Implementation, bench: Bench) -> Calls:
    """Inference, and a training step with Adam. The first layer is computed once, whatever the neuron."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = sc.hoist(network.make(network.steps, partial(_neuron, implementation, bench.device)).to(bench.device))
        images = torch.rand(network.batch_on_cpu, *network.image).to(bench.device)
        labels = torch.randint(network.classes, (network.batch_on_cpu,)).to(bench.device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def training(i: int) -> None:
        optimizer.zero_grad()
        sc.losses.ce_count(net(images), labels).backward()
        optimizer.step()

    return Calls(lambda i: net(images), training)
