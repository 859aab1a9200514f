"""``sc.record``: a state, or a named value of a step, of every neuron that has it, for a loss."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import Any, ContextManager, Dict, Iterator, List, Tuple, TypeVar

import torch
from torch import Tensor, nn

from spikecore.functional import stateful_modules
from spikecore.inspect import record as recorder
from spikecore.inspect.record import neuron_of, neurons_of

Made = TypeVar("Made")


class Block(ContextManager[Made]):
    """A context manager of ``owner``, such as ``sc.monitor``, which says of every other use how it is written."""

    def __init__(self, owner: str, manager: ContextManager[Made]) -> None:
        self._manager = manager
        self._text = f"{owner} records within a block; write `with {owner}(...) as seen: net(x)`, and read seen"

    def __enter__(self) -> Made:
        return self._manager.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._manager.__exit__(*error)

    def __repr__(self) -> str:
        return f"<{self._text}>"

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(self._text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(self._text)


class Recorded:
    """Values of calls within a block of :func:`record`, by the name of the layer."""

    def __init__(self, layers: Tuple[str, ...]) -> None:
        self.layers = layers
        self._calls: Dict[str, List[Tensor]] = defaultdict(list)

    def take(self) -> Dict[str, Tensor]:
        """Values of each layer ``[T, B, ...]`` since the last ``take``, one call after the other; they are forgotten
        here, and so are their graphs.

        Raises ValueError for calls of different shapes, such as batches of two sizes.
        """
        calls, self._calls = self._calls, defaultdict(list)
        for layer, values in calls.items():
            shapes = [str([*shape]) for shape in dict.fromkeys(value.shape for value in values)]
            if len({value.shape[1:] for value in values}) > 1:
                raise ValueError(
                    f"record: calls of layer {layer!r} recorded shapes {' and '.join(shapes)}, which do not continue "
                    "one another in time; call take() after each of them"
                )
        return {layer: values[0] if len(values) == 1 else torch.cat(values) for layer, values in calls.items()}


def record(net: nn.Module, name: str) -> ContextManager[Recorded]:
    """Within the block, keep a state or a named value of every neuron of ``net`` that has it, with its graph.

    ::

        def loss(outputs, targets):
            penalty = sum(h.square().mean() for h in seen.take().values())
            return sc.losses.ce_count(outputs, targets) + 1e-3 * penalty


        with sc.record(net, "h") as seen:
            step = sc.training_model(net, loss, optimizer)
            for x, targets in batches:
                step(x, targets)

    It gives a :class:`spikecore.inspect.Recorded`, whose ``take()`` is ``{layer: [T, B, ...]}``, differentiable. Calls
    add up until they are taken; those without gradients, such as an evaluation, are left out. ``h``, the potential
    before it fires, is a named value of the neurons of ``sc`` whose equations have it; ``sc.ops.named`` names those of
    your own.

    net: a network or a neuron. name: a state, or a name of ``sc.ops.named``.

    Raises ValueError for a name that no neuron has; otherwise as :func:`spikecore.monitor` with ``record``, of which
    this is the values alone.
    """
    return Block("sc.record", _kept(net, name))


@contextmanager
def _kept(net: nn.Module, name: str) -> Iterator[Recorded]:
    stateful_modules(net)  # raises for what is no network
    neurons = neurons_of(net)
    layers = {layer: module for layer, module in neurons.items() if name in neuron_of(module).recordable}
    if not layers:
        there = sorted({each for module in neurons.values() for each in neuron_of(module).recordable})
        raise ValueError(f"name={name!r} is no state and no named value of a neuron; there are {there}")
    recorded = Recorded(tuple(layers))

    def take(call: recorder.Call) -> None:
        if torch.is_grad_enabled():  # an evaluation in between adds nothing to a loss
            recorded._calls[call.name].append(call.states[name])

    with recorder.record(net, layers=(), neurons=layers.items(), states=(name,), ends=take, graph=True):
        yield recorded
