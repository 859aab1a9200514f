"""Who takes part: every backend that works here, torch.compile, and the other libraries that are installed.

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
from spikecore.backend import ANY_DEVICE
from spikecore.bench._machine import version_of
from spikecore.bench._peers import PEERS, Peer, Single
from spikecore.bench._report import Availability
from spikecore.bench._timing import failure
from spikecore.bench._workloads import Workload

#: The backend that says what is right.
REFERENCE = "torch"
COMPILED = "torch.compile"
#: State and detail of a library that takes no part.
OTHERS = ("left out", "--peer names others")
_NOT_COMPILED = "--compile-steps 0, which --quick chooses, too"


class NotHere(Exception):
    """An implementation does not take part in a case, for a reason that is no fault."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute a neuron."""

    name: str
    #: Whether it is a backend of spikecore, which must compute exactly what the reference computes.
    ours: bool
    #: The layer ``[T, *N] -> [T, *N]`` for a workload and a number of steps. Raises :class:`NotHere`.
    layer: Callable[[Workload, int], nn.Module]
    #: What stands for the neuron in a network; None if it takes no part there.
    in_network: Optional[Callable[[], nn.Module]] = None
    #: The neuron as a single step ``[*N] -> [*N]`` that continues, and what puts it at rest.
    single: Optional[Callable[[], Single]] = None
    #: The backend's name, for ours.
    backend: Optional[str] = None
    #: How what it computes in a network differs, in words.
    unlike: str = ""
    #: Whether it is a loop over time steps in Python.
    loops: bool = False


Found = Tuple[List[Implementation], List[Availability]]


def find(
    device: torch.device,
    backends: Sequence[str] = (),
    peers: bool = True,
    compile_steps: int = 4,
    peer_names: Sequence[str] = (),
) -> Found:
    """Those who can take part, and the list of all. ``backends`` and ``peer_names`` name the ones wanted; none means
    every one.
    """
    taking_part, listed = _backends(device, backends)
    availability = Availability(
        COMPILED,
        "yardstick",
        "ready",
        str(torch.__version__),
        f"the reference, compiled; neurons and small layers up to T={compile_steps}",
    )
    if compile_steps > 0:
        taking_part.append(_compiled(compile_steps))
        listed.append(availability)
    else:
        listed.append(Availability(COMPILED, "yardstick", "left out", availability.version, _NOT_COMPILED))
    for peer in PEERS:
        state, detail = "left out", "--no-peers"
        if peers:
            named = not peer_names or peer.name in peer_names
            about = partial(_about, peer, device)
            state, detail = state_of(peer.distribution, peer.module, about) if named else OTHERS
        listed.append(Availability(peer.name, "peer", state, version_of(peer.distribution) or "", detail))
        if state == "ready":
            taking_part.append(_peer(peer))
    return taking_part, listed


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
            raise NotHere(f"more time steps than --compile-steps {most}; each takes about a second to compile")
        # what was compiled for other cases counts against a limit of dynamo's
        import_module("torch._dynamo").reset()
        compiled: Any = torch.compile(workload.make(REFERENCE), fullgraph=True)
        return cast(nn.Module, compiled)

    return Implementation(COMPILED, False, layer)


def state_of(distribution: str, module: str, about: Callable[[], str]) -> Tuple[str, str]:
    """The state of a library, and what there is to say about it."""
    if version_of(distribution) is None:
        return "missing", f"not installed: pip install {distribution}"
    try:
        import_module(module)
        return "ready", about()
    except Exception as error:
        return "failed", failure(error).reason


def _about(peer: Peer, device: torch.device) -> str:
    chosen = peer.chooses(device)
    return f"{peer.about}; it chooses {chosen} here" if chosen else peer.about


def _peer(peer: Peer) -> Implementation:
    def layer(workload: Workload, steps: int) -> nn.Module:
        if workload.name not in peer.layers:
            raise NotHere("has no such neuron")
        return peer.layers[workload.name]()

    return Implementation(peer.name, False, layer, peer.in_network, peer.single, unlike=peer.unlike, loops=peer.loops)
