"""Observers of the calls of a neuron, such as :func:`spikecore.monitor`: what they are told.

Rules of this module:

- A neuron without a watcher reads one attribute more than it would otherwise, and nothing else changes.
- A watched call is computed as any other: a watcher asks for a record of states, and is told what came out.
- A call that a region of ``sc.checkpoint`` makes when it runs again is told to nobody: it was told the first time.
- A CUDA graph of watched neurons is refused, both its capture and its replays, which call no module.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore import context
from spikecore.backend import Tensors
from spikecore.core.state import State, Stateful

#: Outputs of a call, state after it, recorded states.
Results = Tuple[Tensors, Optional[State], Tensors]


class Watcher:
    """Observer of the calls of one neuron."""

    #: Names of the states it wants; those that the neuron lacks are left out.
    record: Tuple[str, ...] = ()

    def take(
        self, module: nn.Module, inputs: Tensors, outputs: Tensors, trace: Mapping[str, Tensor], single: bool
    ) -> None:
        """A call of ``module``, which may be a replica: inputs, outputs and recorded states, ``[T, *N]`` each.

        ``single``: the call was one of a single-step neuron, and T is 1.
        """
        raise NotImplementedError(f"{type(self).__name__} must define take")


def states_to_record(
    owner: str, watchers: Tuple[Watcher, ...], states: Collection[str], record: Tuple[str, ...]
) -> Tuple[str, ...]:
    """The states that a call has to record: those in ``record``, and what the watchers want beside these.

    Raises RuntimeError for a call that is captured, and for a record within activation checkpointing.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        refuse_graph(owner)
    names = [name for watcher in watchers for name in watcher.record if name in states and name not in record]
    if names and context.region():
        raise RuntimeError(
            f"{owner}: sc.monitor is to record {', '.join(dict.fromkeys(names))} of a call within activation "
            "checkpointing, which computes the call again in backward, where the record would be lacking; record "
            "without checkpointing, or watch the rates alone"
        )
    return (*record, *dict.fromkeys(names))


def tell(
    module: nn.Module,
    watchers: Tuple[Watcher, ...],
    inputs: Tensors,
    outputs: Tensors,
    trace: Mapping[str, Tensor],
    single: bool,
) -> None:
    """Tell the watchers of a call.

    Raises RuntimeError on an IPU, for which PopTorch compiles the network: its tensors hold no values.
    """
    if any(value.device.type == "ipu" for value in outputs):
        raise RuntimeError(
            f"{type(module).__name__} is watched by sc.monitor, and PopTorch compiles the call for an IPU: there "
            "are no values to look at; call the network itself within the block, net(x), which runs on the host"
        )
    if context.region() == context.AGAIN:
        return
    for watcher in watchers:
        states = {name: trace[name] for name in watcher.record if name in trace}
        watcher.take(module, inputs, outputs, states, single)


def refuse_graph(owner: str) -> None:
    """Raise the RuntimeError of a CUDA graph whose neuron is watched."""
    raise RuntimeError(
        f"{owner} is watched by sc.monitor and is part of a CUDA graph, which computes without calling modules: "
        "nothing would be seen; watch the network itself, net(x), or a step without CudaOptions(graph=True)"
    )


def watch(module: Stateful, watcher: Watcher) -> None:
    """Tell ``watcher`` of every call of ``module`` until :func:`unwatch`."""
    module.__dict__["_watchers"] = (*module._watchers, watcher)


def unwatch(module: Stateful, watcher: Watcher) -> None:
    """End one :func:`watch`."""
    module.__dict__["_watchers"] = tuple([other for other in module._watchers if other is not watcher])
    if not module._watchers:
        del module.__dict__["_watchers"]


def check_replay(modules: Sequence[Stateful]) -> None:
    """Raise RuntimeError if one of ``modules`` is watched: a CUDA graph that is replayed calls none of them."""
    for module in modules:
        if module._watchers:
            refuse_graph(type(module).__name__)


def recorded(
    neuron: Any,
    execute: Callable[..., Any],
    inputs: Sequence[Tensor],
    state: Optional[Mapping[str, Tensor]],
    record: Tuple[str, ...],
    final: bool,
    single: bool,
) -> Any:
    """A call ``execute`` of a neuron that is watched; its watchers are told of it."""
    watchers = neuron._watchers
    names = states_to_record(type(neuron).__name__, watchers, neuron.states, record)
    outputs, end, trace = execute(inputs, state, names, final, single)
    timed_inputs, timed_outputs = tuple(inputs), outputs
    if single:
        timed_inputs, timed_outputs = (tuple([value.unsqueeze(0) for value in values]) for values in (inputs, outputs))
    tell(neuron, watchers, timed_inputs, timed_outputs, dict(zip(names, trace)), single)
    return outputs, end, trace[: len(record)]
