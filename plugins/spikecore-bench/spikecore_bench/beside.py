"""Layers and small networks beside the other libraries: forward, and forward with backward.

The sizes are those of a CPU: a large layer, a long one, a single step, and the networks of the examples. A ratio is to
SpikingJelly's module, which is plain torch on a CPU. Whether a neuron is right, the other suites check.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.cases import Bench, Case, Job, both_ways, contained, set_up, timed_row
from spikecore_bench.implementations import Implementation, NotTimed
from spikecore_bench.models import EXAMPLES
from spikecore_bench.network import Network
from spikecore_bench.peers import PEERS
from spikecore_bench.report import Fact, Row
from spikecore_bench.settings import Settings
from spikecore_bench.timing import Call

#: Row that ratios refer to.
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


@dataclass(frozen=True)
class Whole(Case):
    """A network; its neuron is the name."""

    about: str = ""

    @property
    def facts(self) -> Mapping[str, Fact]:
        """For the report."""
        facts: Dict[str, Fact] = {"network": self.neuron, "about": self.about, "dtype": self.dtype}
        return {**facts, "steps": self.steps, "batch": self.batch}


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job per layer, one for the single step, and one per network, which a quick run leaves out."""
    found: List[Tuple[Case, Enter]] = [
        (Case("beside", "LIF", "float32", t, n), partial(_layer, t, n))
        for t, n in (((3, 8),) if settings.quick else LAYERS)
    ]
    found.append((Case("beside", "LIF single step", "float32", 1, SINGLE), _single))
    for each in () if settings.quick else EXAMPLES:
        case = Whole("beside", each.name, "float32", each.steps, 0, each.batch_on_cpu, each.about)
        found.append((case, partial(_network, each)))
    return [contained(case, bench, partial(measure, enter)) for case, enter in found]


def measure(enter: Enter, case: Case, bench: Bench) -> List[Row]:
    """The rows of one case: every implementation that runs eagerly, and the peers that are not there."""
    known = {one.name: one for one in bench.implementations if one.in_network is not None}
    running, rows = set_up(case, {name: partial(enter, one, bench) for name, one in known.items()})
    forward, training = ({name: calls[i] for name, calls in running.items()} for i in range(2))
    times = both_ways(forward, training, bench)
    for name in running:
        unlike = known[name].unlike
        rows[name] = timed_row(case, name, "differs" if unlike else "ok", unlike, times, {"ratio": YARDSTICK})
    peers = {one.name for one in PEERS if one.in_network is not None}
    absent = [one for one in bench.listed if one.state != "ready" and one.name in peers]
    return [*(rows[name] for name in known), *(case.row(one.name, "skipped", one.detail) for one in absent)]


def _neuron(implementation: Implementation, device: torch.device) -> nn.Module:
    if implementation.in_network is None:
        raise NotTimed("has no such neuron")
    return implementation.in_network().to(device)


def _layer(steps: int, neurons: int, implementation: Implementation, bench: Bench) -> Calls:
    """A layer that begins every call at rest."""
    return _calls(_neuron(implementation, bench.device), (steps, neurons), bench)


def _single(implementation: Implementation, bench: Bench) -> Calls:
    """A single step ``[N]``: without gradients it continues, with gradients it begins at rest."""
    if implementation.single is None:
        raise NotTimed("another row of the library is its single step")
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
        net = network.make(network.steps, partial(_neuron, implementation, bench.device)).to(bench.device)
        images = torch.rand(network.batch_on_cpu, *network.image).to(bench.device)
        labels = torch.randint(network.classes, (network.batch_on_cpu,)).to(bench.device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def training(i: int) -> None:
        optimizer.zero_grad()
        sc.losses.ce_count(net(images), labels).backward()
        optimizer.step()

    return Calls(lambda i: net(images), training)
