"""Settings of a run. Those left out are chosen for the device when the run starts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Mapping, Optional, Sequence, Tuple

import torch

from spikecore.dtypes import DTYPES, NARROW
from spikecore_bench.forms import FORMS
from spikecore_bench.models import NETWORKS
from spikecore_bench.peers import PEERS
from spikecore_bench.timing import Plan
from spikecore_bench.workloads import WORKLOADS

#: The benchmarks of the field.
FIELD = ("open-neuromorphic", "shd")
SUITES = (
    "neurons",
    "layouts",
    "steps",
    "small",
    "single",
    "calls",
    "beside",
    "documents",
    "networks",
    "norms",
    "recurrent",
    "online",
    "pipeline",
    *FIELD,
)
#: Time steps that people use, of which few are powers of two, and layouts: the suite ``steps`` has them.
STEP_LAYOUTS = ("flat", "odd", "contiguous", "channels-last", "batch before time")
BETWEEN = (10, 20, 25, 50, 100, 250, 500, 1000)
#: Field -> its option, and the suites that heed it. The others measure the same whatever it is.
_HEEDING: Mapping[str, Tuple[str, Sequence[str]]] = {
    "neurons": ("--neuron", ("neurons", "layouts", "steps", "small", "documents")),
    "dtypes": ("--dtype", ("neurons", "layouts", "steps", "small", "open-neuromorphic")),
    "steps": ("--steps", ("neurons", "layouts", "steps", "small", *FIELD)),
    "elements": ("--elements", ("neurons", "layouts", "steps")),
    "layouts": ("--layout", ("steps",)),
    "networks": ("--network", ("networks",)),
    "forms": ("--form", ("networks",)),
    "cases": ("--case", FIELD),
    "budget": ("--budget", FIELD),
}
#: Field's suite -> how ``cases`` names one of its sizes.
_CASES = {"open-neuromorphic": re.compile(r"n=([1-9]\d*)"), "shd": re.compile(r"H=([1-9]\d*),B=([1-9]\d*)")}


@dataclass(frozen=True)
class Settings:
    """Settings of a run; empty and None mean: chosen for the device."""

    suites: Tuple[str, ...] = SUITES
    device: str = "auto"
    backends: Tuple[str, ...] = ()
    peers: bool = True
    neurons: Tuple[str, ...] = ()
    dtypes: Tuple[str, ...] = ()
    steps: Tuple[int, ...] = ()
    #: Layouts of the suite ``steps``; none means all.
    layouts: Tuple[str, ...] = ()
    #: Further time steps, of the suite ``steps``.
    between: Tuple[int, ...] = ()
    #: Time steps times neurons of a neuron row.
    elements: Optional[int] = None
    #: Neurons of a small-layer row, and what its neuron and steps are; those given above, if any are.
    size: int = 40
    small_neurons: Tuple[str, ...] = ()
    small_steps: Tuple[int, ...] = ()
    #: Time steps of the benchmarks of the field, and dtypes of the first of them; those given above, if any are.
    field_steps: Optional[int] = None
    field_dtypes: Tuple[str, ...] = ()
    #: Sizes of them, ``n=4096`` and ``H=128,B=64``; a suite of which none is here has its usual ones.
    cases: Tuple[str, ...] = ()
    #: Seconds of a library in a case of them, in a process of its own; 0: no limit, and in this process. Chosen for the
    #: device where None.
    budget: Optional[float] = None
    networks: Tuple[str, ...] = ()
    #: Forms that networks are trained in; none means those that suit network and device.
    forms: Tuple[str, ...] = ()
    #: Those of the other libraries that take part; none means all.
    peer_names: Tuple[str, ...] = ()
    #: Time steps up to which torch.compile takes part; chosen for the run where None.
    compile_steps: Optional[int] = None
    repetitions: Optional[int] = None
    #: Seconds of a turn at least; chosen for the device where None.
    turn: Optional[float] = None
    #: Processes in which networks compile before the first is timed; 0: in this one, when they are needed.
    workers: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        _known("suite", self.suites, SUITES)
        _known("dtype", self.dtypes, tuple(DTYPES))
        _known("neuron", self.neurons, tuple(WORKLOADS))
        for name in self.networks:
            if ":" in name:
                raise ValueError(
                    f"network {name!r} seems to be a network of your own, which bench does not measure; the page "
                    "docs/speed.md has five lines that time its training step"
                )
        _known("network", self.networks, tuple(NETWORKS))
        _known("form", self.forms, tuple(FORMS))
        _known("layout", self.layouts, STEP_LAYOUTS)
        for case in self.cases:
            if not any(pattern.fullmatch(case) for pattern in _CASES.values()):
                raise ValueError(f"case {case!r} is no size; write n=4096 (open-neuromorphic) or H=128,B=64 (shd)")
        _known("peer", self.peer_names, tuple(peer.name for peer in PEERS))
        if self.peer_names and not self.peers:
            raise ValueError(
                f"peer {self.peer_names[0]!r} cannot be measured with peers=False; leave out one of the two"
            )
        numbers = [(name, getattr(self, name)) for name in ("size", "elements", "repetitions")]
        for name, value in [*(("steps", steps) for steps in self.steps), *numbers]:
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")
        for name in ("workers", "compile_steps"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")
        # NaN fails each comparison
        if self.turn is not None and not 0 < self.turn < math.inf:
            raise ValueError(f"turn={self.turn} must be a number of seconds above 0")
        if self.budget is not None and not 0 <= self.budget < math.inf:
            raise ValueError(f"budget={self.budget} must be a number of seconds, 0 or more")

    def check_use(self) -> None:
        """Raise ValueError for an option that none of the suites heeds: the figures would be taken for those of it.

        For what a user chose. After :meth:`on` every field holds a choice.
        """
        for name, (option, heeding) in _HEEDING.items():
            values = getattr(self, name)
            if values and not set(heeding).intersection(self.suites):
                chosen = values if isinstance(values, (int, float)) else ", ".join(map(str, values))
                raise ValueError(
                    f"{option} {chosen} does not change what --suite {', '.join(self.suites)} measures; leave it out, "
                    f"or measure a suite that it is for: {', '.join(heeding)}"
                )

        for suite, pattern in _CASES.items():
            named = [case for case in self.cases if pattern.fullmatch(case)]
            if named and suite not in self.suites:
                raise ValueError(f"--case {named[0]} is a size of --suite {suite}, which is not measured")

    def check_shown(self) -> None:
        """Raise ValueError for what was chosen where a report is shown and nothing is measured."""
        chosen = [option for name, (option, _) in _HEEDING.items() if getattr(self, name)]
        if chosen:
            raise ValueError(f"{', '.join(chosen)}: with --from nothing is measured; leave it out")

    def on(self, device: torch.device) -> Settings:
        """The same with every choice made."""
        gpu, quick = device.type == "cuda", self.quick
        steps = (4,) if quick else (4, 16, 32, 128) if gpu else (4, 16)
        return replace(
            self,
            device=str(device),
            neurons=self.neurons or (("LIF",) if quick else tuple(WORKLOADS)),
            dtypes=self.dtypes or (("float32", *sorted(NARROW)) if gpu and not quick else ("float32",)),
            steps=self.steps or steps,
            between=BETWEEN if gpu and not (quick or self.steps) else (),
            small_neurons=self.neurons or (("LIF",) if quick else ("LIF", "Leaky")),
            small_steps=self.steps or ((8,) if quick else (8, 128)),
            field_steps=self.steps[0] if self.steps else None,
            field_dtypes=self.dtypes or (("float32", "bfloat16") if gpu and not quick else ("float32",)),
            budget=(0.0 if quick else 60.0 if gpu else 120.0) if self.budget is None else self.budget,
            networks=self.networks or (("fc",) if quick else tuple(NETWORKS) if gpu else ("fc", "cifar10")),
            # compilation takes longer than all else of a quick run
            compile_steps=(0 if quick else 4) if self.compile_steps is None else self.compile_steps,
            repetitions=self.repetitions or (3 if quick else 9),
        )

    def sizes(self, suite: str) -> Tuple[Tuple[int, ...], ...]:
        """The numbers of the cases that name a size of this suite."""
        matches = (_CASES[suite].fullmatch(case) for case in self.cases)
        return tuple(tuple(map(int, match.groups())) for match in matches if match)

    @property
    def all_steps(self) -> Tuple[int, ...]:
        """The time steps of the suite ``steps``: beside powers of two those that people use."""
        return tuple(sorted({*self.steps, *self.between}))

    def plan(self, gpu: bool) -> Plan:
        """Repetitions of each call. A CPU that is shared needs longer turns."""
        turn = self.turn or (0.02 if gpu else 0.05)
        return Plan(self.repetitions or 9, turn, 0.3 if self.quick else 1.0 if gpu else 2.0)


def device_named(name: str) -> torch.device:
    """The device to measure on; ``auto`` is the GPU if there is one. Raises ValueError for one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is no torch device; give cpu, cuda or cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={name!r}: there is no clock for {device.type}; give cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: torch finds no GPU here; --device cpu measures the CPU backends")
    if name == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{what} {name!r} is not known; there are: {', '.join(known)}")
