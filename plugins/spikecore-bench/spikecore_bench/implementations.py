"""Implementations that take part: every backend that works here, torch.compile, and the other libraries that are
installed.

Nobody is left out in silence: :func:`find` lists those who cannot take part, too, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Callable, List, Optional, Sequence, Tuple, cast

import torch
from torch import nn

import spikecore as sc
from spikecore.backend import ANY_DEVICE, Unsupported
from spikecore_bench.check import REFERENCE
from spikecore_bench.equations import Layer, of_backend
from spikecore_bench.machine import version_of
from spikecore_bench.peers import PEERS, Peer
from spikecore_bench.report import Availability
from spikecore_bench.settings import FIELD, Settings
from spikecore_bench.timing import failure
from spikecore_bench.workloads import Workload

COMPILED = "torch.compile"
_NOT_COMPILED = "--compile-steps 0, which --quick chooses, too"


class NotTimed(Exception):
    """An implementation is not timed in a case; by default for a reason that is no fault."""

    def __init__(self, reason: str, status: str = "skipped") -> None:
        super().__init__(reason)
        self.status = status


def status_of(error: Exception) -> Tuple[str, str]:
    """Status and detail of the row of what raised this."""
    if isinstance(error, NotTimed):
        return error.status, str(error)
    return "unsupported" if isinstance(error, Unsupported) else "failed", failure(error).reason


#: A neuron as a single step that continues, and what puts it at rest.
Single = Tuple[nn.Module, Callable[[], Any]]


@dataclass(frozen=True)
class Implementation:
    """One way to compute neurons."""

    name: str
    #: True if it is a backend of spikecore, which must compute exactly what the reference computes.
    ours: bool
    #: The layer ``[T, *N] -> [T, *N]`` for a workload and a number of steps. Raises :class:`NotTimed`.
    layer: Callable[[Workload, int], nn.Module]
    #: The layer of the suites of the field; None if it takes no part there.
    in_field: Optional[Layer] = None
    #: Maker of the neuron of a network; None if the implementation takes no part there.
    in_network: Optional[Callable[[], nn.Module]] = None
    #: The neuron as a single step ``[*N] -> [*N]`` that continues, and what puts it at rest.
    single: Optional[Callable[[], Single]] = None
    #: The backend's name, for ours.
    backend: Optional[str] = None
    #: Difference of its equation in a network, in words.
    unlike: str = ""
    #: True if it is a loop over time steps in Python.
    loops: bool = False


Found = Tuple[List[Implementation], List[Availability]]


def find(settings: Settings, device: torch.device) -> Found:
    """Those who can take part in the suites of some settings, and the list of all."""
    taking_part, listed = _backends(device, settings.backends)
    most = settings.compile_steps or 0
    about = f"the reference, compiled; neurons and small layers up to T={most}"
    state, detail = ("ready", about) if most else ("left out", _NOT_COMPILED)
    listed.append(Availability(COMPILED, "yardstick", state, str(torch.__version__), detail))
    if most:
        taking_part.append(_compiled(most))
    in_field = set(FIELD).intersection(settings.suites)
    for peer in PEERS:
        if peer.in_network is None and not in_field:
            continue
        if not settings.peers:
            state, detail = "left out", "--no-peers"
        elif settings.peer_names and peer.name not in settings.peer_names:
            state, detail = "left out", "--peer names others"
        else:
            state, detail = _state_of(peer, device)
        listed.append(Availability(peer.name, "peer", state, version_of(peer.distribution) or "", detail))
        if state == "ready":
            taking_part.append(of_peer(peer))
    return taking_part, listed


def find_again(name: str, ours: bool) -> Implementation:
    """An implementation that takes part, in another process."""
    return _backend(name) if ours else of_peer(next(peer for peer in PEERS if peer.name == name))


def _backends(device: torch.device, wanted: Sequence[str]) -> Found:
    taking_part, listed = [], []
    rows = sc.backends(probe=True)
    unknown = [name for name in wanted if name not in {row.name for row in rows}]
    if unknown:
        known = ", ".join(sorted({row.name for row in rows}))
        raise ValueError(f"backend {unknown[0]!r} is not installed; there are: {known}")
    for row in rows:
        state, detail = row.state, row.detail
        if wanted and row.name not in wanted:
            state, detail = "left out", "--backend names others"
        elif state == "ready" and ANY_DEVICE not in row.devices and device.type not in row.devices:
            state, detail = "elsewhere", f"computes on {', '.join(row.devices)}, not on {device.type}"
        listed.append(Availability(row.name, "backend", state, f"{row.distribution} {row.version}".strip(), detail))
        if state == "ready":
            taking_part.append(_backend(row.name))
    return taking_part, listed


def _backend(name: str) -> Implementation:
    return Implementation(
        name,
        True,
        lambda workload, steps: workload.make(name),
        of_backend(name),
        lambda: sc.LIF(2.0, backend=name),
        single=lambda: _single(name),
        backend=name,
    )


def _single(backend: str) -> Single:
    neuron = sc.LIF(2.0, step="single", backend=backend)
    return neuron, lambda: sc.reset(neuron)


def _compiled(most: int) -> Implementation:
    def layer(workload: Workload, steps: int) -> nn.Module:
        if steps > most:
            raise NotTimed(f"more time steps than --compile-steps {most}; each takes about a second to compile")
        # what was compiled for other cases counts against a limit of dynamo's
        import_module("torch._dynamo").reset()
        compiled: Any = torch.compile(workload.make(REFERENCE), fullgraph=True)
        return cast(nn.Module, compiled)

    return Implementation(COMPILED, False, layer)


def _state_of(peer: Peer, device: torch.device) -> Tuple[str, str]:
    """The state of a library, and what there is to say about it."""
    if version_of(peer.distribution) is None:
        return "missing", f"not installed: pip install {peer.distribution}"
    try:
        import_module(peer.module)
        chosen = peer.chooses(device)
    except Exception as error:
        return "failed", failure(error).reason
    return "ready", f"{peer.about}; it chooses {chosen} here" if chosen else peer.about


def of_peer(peer: Peer) -> Implementation:
    """A library in one of its ways to be called."""

    def layer(workload: Workload, steps: int) -> nn.Module:
        if workload.name not in peer.layers:
            raise NotTimed("has no such neuron")
        return peer.layers[workload.name]()

    def single(make: Callable[[], Any]) -> Single:
        step = make()
        return step, step.reset

    return Implementation(
        peer.name,
        False,
        layer,
        peer.in_field,
        peer.in_network,
        partial(single, peer.single) if peer.single else None,
        unlike=peer.unlike,
        loops=peer.loops,
    )
