"""Observers of the calls of a neuron, which :func:`spikecore.inspect.record.record` makes: what they are told.

Rules of this module:

- A neuron without a watcher reads one attribute more than it would otherwise, and nothing else changes.
- A watched call is computed as any other: a watcher asks for a record of states, and is told what came out.
- A call that a region of ``sc.checkpoint`` makes when it runs again is told to nobody: it was told the first time.
- A CUDA graph of watched neurons is refused, both its capture and its replays, which call no module.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Collection, Iterator, Mapping, Optional, Sequence, Tuple

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
    #: True if it wants the spikes of a neuron without the shortcut that is added behind them.
    wants_spikes = False
    #: True if it keeps the graphs of what it is told, for a loss.
    keeps_graph = False

    def begin(self, inputs: Sequence[Tensor]) -> Optional[Sequence[Tensor]]:
        """A call begins, with inputs as they were given; the inputs in the place of these, None for the same."""

    def take(
        self, inputs: Tensors, outputs: Tensors, trace: Mapping[str, Tensor], single: bool
    ) -> Optional[Sequence[Tensor]]:
        """A call ended: inputs, outputs and recorded states, ``[T, *N]`` each; the outputs in the place of these.

        ``single``: the call was one of a single-step neuron, T is 1, and its outputs stay.
        """
        raise NotImplementedError(f"{type(self).__name__} must define take")


def keeps_graph(module: Any) -> bool:
    """True if a watcher keeps the graphs of a neuron's calls, for a loss."""
    return any(watcher.keeps_graph for watcher in module._watchers)


def begin(
    owner: str,
    watchers: Tuple[Watcher, ...],
    inputs: Sequence[Tensor],
    states: Collection[str],
    record: Tuple[str, ...],
) -> Tuple[Tuple[str, ...], Sequence[Tensor]]:
    """Tell the watchers that a call begins. The states that it has to record, those in ``record`` and what the watchers
    want beside these; and its inputs, or those in their place.

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
    if context.region() != context.AGAIN:
        for watcher in watchers:
            others = watcher.begin(inputs)
            inputs = inputs if others is None else others
    return (*record, *dict.fromkeys(names)), inputs


def tell(
    module: nn.Module,
    watchers: Tuple[Watcher, ...],
    inputs: Tensors,
    outputs: Tensors,
    trace: Mapping[str, Tensor],
    single: bool,
) -> Tensors:
    """Tell the watchers of a call. Its outputs, or those in their place.

    Raises RuntimeError on an IPU, for which PopTorch compiles the network: its tensors hold no values.
    """
    if any(value.device.type == "ipu" for value in outputs):
        raise RuntimeError(
            f"{type(module).__name__} is watched by sc.monitor, and PopTorch compiles the call for an IPU: there "
            "are no values to look at; call the network itself within the block, net(x), which runs on the host"
        )
    if context.region() == context.AGAIN:
        return outputs
    for watcher in watchers:
        states = {name: trace[name] for name in watcher.record if name in trace}
        others = watcher.take(inputs, outputs, states, single)
        outputs = outputs if others is None else tuple(others)
    return outputs


def refuse_graph(owner: str) -> None:
    """Raise the RuntimeError of a CUDA graph whose neuron is watched."""
    raise RuntimeError(
        f"{owner} is watched by sc.monitor and is part of a CUDA graph, which computes without calling modules: "
        "nothing would be seen; watch the network itself, net(x), or a step without CudaOptions(graph=True)"
    )


@contextmanager
def watched(module: Stateful, watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` of every call of ``module`` within the block."""
    module.__dict__["_watchers"] = (*module._watchers, watcher)
    try:
        yield
    finally:
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
    names, inputs = begin(type(neuron).__name__, watchers, inputs, neuron.recordable, record)
    outputs, end, trace = execute(inputs, state, names, final, single)
    timed_inputs, timed_outputs = tuple(inputs), outputs
    if single:
        timed_inputs, timed_outputs = (tuple([value.unsqueeze(0) for value in values]) for values in (inputs, outputs))
    told = tell(neuron, watchers, timed_inputs, timed_outputs, dict(zip(names, trace)), single)
    return outputs if single else told, end, trace[: len(record)]
