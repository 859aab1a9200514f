"""Host time of a call of a small layer, forward and backward, beside a function that only allocates.

All that is compared is in one process, eagerly and compiled, and takes many short turns: the host's speed moves by a
third from one second to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, cast

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore_bench.cases import Bench, Case, Job, both_ways, contained, set_up, timed_row, training
from spikecore_bench.check import REFERENCE, differences, observe
from spikecore_bench.implementations import NotTimed
from spikecore_bench.report import Row
from spikecore_bench.settings import Settings

#: Row that ratios refer to.
YARDSTICK = "allocating function"
STEPS = 8
#: Rows of the layer; its other dimension is that of the channels.
ROWS = 4
#: So many times more turns, of as much less time.
SHORTER = 10


class Allocating(torch.autograd.Function):
    """Allocates its output, keeps its inputs, and allocates their gradients: the least that any neuron does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Optional[Tensor]) -> Tensor:
        """Memory of the size of the input."""
        ctx.save_for_backward(x, parameter)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """Memory of the size of the input, and of the parameter if there is one."""
        x, parameter = ctx.saved_tensors
        return torch.empty_like(x), None if parameter is None else torch.empty_like(parameter)


class Allocates(nn.Module):
    """:class:`Allocating` as a layer, with a parameter that has a gradient or without."""

    def __init__(self, learnt: bool = False) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.ones(())) if learnt else None

    def forward(self, x: Tensor) -> Tensor:
        """Numbers that are not set."""
        y: Tensor = Allocating.apply(x, self.parameter)
        return y


def neurons(channels: int) -> Mapping[str, Callable[[str], sc.Neuron]]:
    """The neurons, each on a backend that is named."""
    tau, threshold = torch.full((channels,), 2.0), torch.full((channels,), 1.0)
    return {
        "LIF": lambda backend: sc.LIF(2.0, backend=backend),
        "PLIF": lambda backend: sc.PLIF(2.0, backend=backend),
        "LIF, tau learnt": lambda backend: sc.LIF(2.0, learn=("tau",), backend=backend),
        "LIF, tau of each channel": lambda backend: sc.LIF(tau, learn=("tau",), backend=backend),
        "LIF, tau and threshold of each channel": lambda backend: sc.LIF(
            tau, threshold=threshold, learn=("tau", "threshold"), backend=backend
        ),
    }


class Entry(NamedTuple):
    """A layer that takes part: what makes it, and the neuron that it is checked with, if it is one."""

    make: Callable[[], nn.Module]
    expected: Any = None


@dataclass(frozen=True)
class Small(Case):
    """A layer ``[T, 4, N / 4]``."""

    def made(self, device: torch.device, generator: torch.Generator) -> Tensor:
        """Random numbers, as an input or a cotangent."""
        shape = (self.steps, ROWS, max(1, self.neurons // ROWS))
        return torch.randn(shape, device=device, generator=generator)


def jobs(settings: Settings, bench: Bench) -> List[Job]:
    """One job: all of them take turns."""
    case = Small("calls", "calls", "float32", STEPS, settings.size)
    return [contained(case, bench, partial(measure, bool(settings.compile_steps)))]


def entries(case: Case, bench: Bench, compiled: bool) -> Dict[str, Entry]:
    """Entries to call, by the name of their row."""
    found = {
        YARDSTICK: Entry(Allocates),
        "allocating function with a parameter": Entry(partial(Allocates, True)),
        "ReLU": Entry(nn.ReLU),
    }
    for one in bench.implementations:
        if one.backend is not None:
            for name, make in neurons(max(1, case.neurons // ROWS)).items():
                found[f"{one.name}, {name}"] = Entry(partial(make, one.backend), partial(make, REFERENCE))
    if compiled:
        for name, entry in list(found.items()):
            found[f"{name}, compiled"] = entry._replace(make=partial(compiled_apart, entry.make))
    return found


def compiled_apart(make: Callable[[], nn.Module]) -> nn.Module:
    """A layer compiled by itself."""
    made: Any = torch.compile(make(), fullgraph=True, dynamic=False)
    return cast(nn.Module, made)


def measure(compiled: bool, case: Case, bench: Bench) -> List[Row]:
    """The rows of the one case."""
    generator = torch.Generator(bench.device).manual_seed(0)
    x, cotangent = (case.made(bench.device, generator) for _ in range(2))
    x.add_(0.5).requires_grad_()
    known = entries(case, bench, compiled)
    plan = bench.plan
    shorter = replace(plan, at_least=plan.at_least / SHORTER, repetitions=plan.repetitions * SHORTER)
    with _many_compiled():
        layers, rows = set_up(case, {name: partial(_checked, entry, x, cotangent) for name, entry in known.items()})
        forward = {name: partial(_forward, layer, x) for name, layer in layers.items()}
        both = {name: training(layer, [(x, cotangent)]) for name, layer in layers.items()}
        times = both_ways(forward, both, replace(bench, plan=shorter))
    for name in layers:
        eager, _, form = name.rpartition(", ")
        ratios = {"over_allocating": YARDSTICK, **({"over_eager": eager} if form == "compiled" else {})}
        rows[name] = timed_row(case, name, "ok", "", times, ratios)
    return [rows[name] for name in known]


def _checked(entry: Entry, x: Tensor, cotangent: Tensor) -> nn.Module:
    """A layer. Raises NotTimed for one that is wrong."""
    layer = entry.make().to(x.device)
    seen = observe(layer, x, cotangent)
    wrong = entry.expected and differences(seen, observe(entry.expected().to(x.device), x, cotangent))
    if wrong:
        raise NotTimed(wrong, "wrong")
    return layer


def _forward(layer: nn.Module, x: Tensor, i: int) -> Any:
    return layer(x)


def _many_compiled() -> Any:
    """torch.compile keeps 8 results of a function by default, and each module here is one of ``nn.Module``'s calls."""
    import torch._dynamo.config as config

    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    return config.patch({limit: 256})
