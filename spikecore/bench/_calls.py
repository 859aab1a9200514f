"""What a call of a small layer costs the host, forward and backward, beside a function that only allocates.

All that is compared is in one process, eagerly and compiled, and takes many short turns: the host's speed moves by a
third from one second to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple, Union, cast

import torch
from torch import Tensor, nn

import spikecore as sc
from spikecore.bench._cases import Bench, Case, Job, compared, contained, first_failure, quietly, training
from spikecore.bench._check import REFERENCE, differences, observe
from spikecore.bench._report import Row
from spikecore.bench._settings import Settings
from spikecore.bench._timing import Call, Failure, Plan, Timing, failure, interleave

#: What the ratios are to.
YARDSTICK = "allocating function"
STEPS = 8
#: Rows of the layer; its other dimension is that of the channels.
ROWS = 4
#: So many times more turns, of as much less time.
SHORTER = 10


class Allocating(torch.autograd.Function):
    """Allocates its output, keeps its input, and allocates its gradient: the least that any neuron does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Memory of the size of the input."""
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        """The same."""
        (x,) = ctx.saved_tensors
        return torch.empty_like(x)


class AllocatingTwo(torch.autograd.Function):
    """The same with a parameter that has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parameter: Tensor) -> Tensor:
        """Memory of the size of the input."""
        ctx.save_for_backward(x, parameter)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tuple[Tensor, Tensor]:
        """Memory of the size of the input, and of the parameter."""
        x, parameter = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(parameter)


class Allocates(nn.Module):
    """:class:`Allocating` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Numbers that are not set."""
        y: Tensor = Allocating.apply(x)
        return y


class AllocatesWithParameter(nn.Module):
    """:class:`AllocatingTwo` as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Numbers that are not set."""
        y: Tensor = AllocatingTwo.apply(x, self.parameter)
        return y


def _neurons(channels: int) -> Mapping[str, Callable[[str], sc.Neuron]]:
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
    """What is called, by the name of its row."""
    found = {
        YARDSTICK: Entry(Allocates),
        "allocating function with a parameter": Entry(AllocatesWithParameter),
        "ReLU": Entry(nn.ReLU),
    }
    for one in bench.implementations:
        if one.backend is not None:
            for name, make in _neurons(max(1, case.neurons // ROWS)).items():
                found[f"{one.name}, {name}"] = Entry(partial(make, one.backend), partial(make, REFERENCE))
    if compiled:
        found.update({f"{name}, compiled": _compiled(entry) for name, entry in list(found.items())})
    return found


def _compiled(entry: Entry) -> Entry:
    return entry._replace(make=lambda: compiled_apart(entry.make()))


def compiled_apart(layer: nn.Module) -> nn.Module:
    """A layer compiled by itself."""
    made: Any = torch.compile(layer, fullgraph=True, dynamic=False)
    return cast(nn.Module, made)


def measure(compiled: bool, case: Case, bench: Bench) -> List[Row]:
    """The rows of the one case."""
    device = bench.device
    generator = torch.Generator(device).manual_seed(0)
    x, cotangent = (case.made(device, generator) for _ in range(2))
    x.add_(0.5).requires_grad_()
    rows: Dict[str, Row] = {}
    layers: Dict[str, nn.Module] = {}
    known = entries(case, bench, compiled)
    with _many_compiled():
        for name, entry in known.items():
            try:
                layer = entry.make().to(device)
                seen = observe(layer, x, cotangent)
                wrong = entry.expected and differences(seen, observe(entry.expected().to(device), x, cotangent))
            except Exception as error:
                rows[name] = case.row(name, "failed", failure(error).reason)
                continue
            if wrong:
                rows[name] = case.row(name, "wrong", wrong)
            else:
                layers[name] = layer
        plan = replace(bench.plan, at_least=bench.plan.at_least / SHORTER, repetitions=bench.plan.repetitions * SHORTER)
        forward = _times({name: _forward(layer, x) for name, layer in layers.items()}, bench, plan, quiet=True)
        both = _times({name: training(layer, [(x, cotangent)]) for name, layer in layers.items()}, bench, plan)
    for name in layers:
        rows[name] = _row(case, name, forward, both)
    return [rows[name] for name in known]


def _many_compiled() -> Any:
    """torch.compile keeps 8 results of a function by default, and each module here is one of ``nn.Module``'s calls."""
    import torch._dynamo.config as config

    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    return config.patch({limit: 256})


def _times(
    calls: Mapping[str, Call], bench: Bench, plan: Plan, quiet: bool = False
) -> Dict[str, Union[Timing, Failure]]:
    turn = bench.clock.batch
    return interleave(calls, quietly(turn) if quiet else turn, plan)


def _forward(layer: nn.Module, x: Tensor) -> Call:
    return lambda i: layer(x)


def _row(case: Case, name: str, forward: Mapping[str, Any], both: Mapping[str, Any]) -> Row:
    problem = first_failure(forward[name], both[name])
    if problem:
        return case.row(name, "failed", problem)
    eager, _, form = name.rpartition(", ")
    others = {"over_allocating": YARDSTICK, **({"over_eager": eager} if form == "compiled" else {})}
    figures = {**compared("forward", forward, name, **others), **compared("training", both, name, **others)}
    return case.row(name, "ok", "", **figures)
