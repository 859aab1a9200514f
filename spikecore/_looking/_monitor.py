"""``sc.monitor``: a block within which the neurons of a network are watched."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import Any, ContextManager, Dict, Iterator, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from spikecore._looking._seen import Layer, Seen
from spikecore._shell.checks import shown
from spikecore._shell.modules import unwrapped
from spikecore._shell.observe import unwatch, watch
from spikecore._shell.state import Stateful
from spikecore.functional import stateful_modules
from spikecore.neuron import Neuron
from spikecore.neurons import Recurrent

#: What is watched.
FIRING = (Neuron, Recurrent)


@contextmanager
def monitor(
    net: nn.Module,
    record: Sequence[str] = (),
    *,
    spikes: bool = False,
    layers: Optional[Sequence[str]] = None,
    grad: bool = False,
) -> Iterator[Seen]:
    """Within the block, watch every neuron of ``net``: how often it fires, and its states where asked.

    ::

        with sc.monitor(net, record=("v",)) as seen:
            net(x)  # x [T, B, ...]
        print(seen)  # a table: rates, silent and saturated neurons of each layer
        seen.rates  # {"1": 0.12, "3": 0.04}, spikes per time step, mean over the layer
        seen["1"].rates  # the same of each neuron, [...]
        seen["1"].v  # its potential after every step, [T, B, ...]

    The rate of a layer is ``r = sum over t, b, i of |y[t, b, i]| / (T * B * N)`` of the outputs ``y``: spikes per time
    step and neuron, where a graded spike counts as much as it is. A neuron whose output is no spike (``sc.LI``) has no
    rate. Rates are those of all calls within the block, each time step counting the same; ``seen["1"].calls`` has each.
    A block costs a sum over inputs and outputs for each call, and holds one number for each neuron and some for each
    time step; nothing waits for the device before a rate is read. It adds no hooks: a fused, hoisted or wrapped network
    computes as without the block.

    ``seen["1"].not_finite`` says whether a layer's input has NaN or infinities, and since when.

    net: a network or a neuron. What wraps it (``torch.compile``, ``DistributedDataParallel``, ``nn.DataParallel``) is
        no part of the names; each replica's call counts as a call.
    record: names of states to keep, ``[T, B, ...]`` of each call, on the device; a neuron without such a state is left
        out. ``Recurrent`` has those of its neuron. The backend must declare ``record``.
    spikes: keep the outputs, too, ``seen["1"].spikes``.
    layers: names of the layers to watch, as in ``net.named_modules()``; None for all.
    grad: keep the graphs of rates, spikes and states, so that a loss can be made of them; else all are detached. They
        are those of all calls so far: after a backward through them call ``seen.clear()``.

    After the block nothing of the network refers to ``seen``, and ``del seen`` frees what it holds; ``seen.clear()``
    forgets the calls so far. Blocks may be nested, and each sees all calls within it. A network compiled by
    ``torch.compile`` runs eagerly within the block (torch 2.6 or newer; older: refused). A call that activation
    checkpointing repeats in backward is seen once.

    Raises TypeError or ValueError, naming the argument, for a ``net`` that is no module or has no neuron, and for a
    state or layer that is not there; :class:`spikecore.Unsupported` in a call whose backend does not record;
    RuntimeError in a call that torch traces, transforms or captures in a CUDA graph, or PopTorch compiles, in a step
    with ``CudaOptions(graph=True)``, and for a record within activation checkpointing.
    """
    states = _names("record", record)
    found = _watchable(net)
    if layers is not None:
        chosen = _names("layers", layers)
        unknown = [name for name in chosen if name not in found]
        if unknown:
            raise ValueError(
                f"layers={list(chosen)!r}: {unknown[0]!r} is no layer of neurons; there are {_listed(found)}"
            )
        found = {name: found[name] for name in chosen}
    there = {state for module in found.values() for state in _states(module)}
    for name in states:
        if name not in there:
            raise ValueError(
                f"record={list(states)!r}: no watched neuron has a state {name!r}; there are {_listed(there)}"
            )
    seen = Seen(tuple([Layer(name, type(module).__name__, states, spikes, grad) for name, module in found.items()]))
    with ExitStack() as stack:
        stack.enter_context(_eager(net))
        for layer, module in zip(seen.layers, found.values()):
            watch(module, layer)
            stack.callback(unwatch, module, layer)
        yield seen


def _watchable(net: nn.Module) -> Dict[str, Stateful]:
    """The neurons of a network by name; what one of them holds, as Recurrent does, is part of it."""
    stateful_modules(net)
    found: Dict[str, Stateful] = {}
    within: Set[nn.Module] = set()
    for name, module in unwrapped(net).named_modules():
        if isinstance(module, FIRING) and module not in within:
            found[name] = module
            within.update(module.modules())
    if not found:
        raise ValueError(f"net={shown(net)} has no spikecore neuron to watch; give the network that holds them")
    return found


def _states(module: Stateful) -> Tuple[str, ...]:
    neuron = module.neuron if isinstance(module, Recurrent) else module
    return tuple(neuron.states) if isinstance(neuron, Neuron) else ()


def _names(argument: str, value: Any) -> Tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (tuple, list)) or not all(isinstance(n, str) for n in value):
        raise TypeError(f"{argument}={shown(value)} must be a tuple of names, such as {argument}=('v',)")
    return tuple(dict.fromkeys(value))


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _eager(net: nn.Module) -> ContextManager[Any]:
    """A block within which compiled functions run eagerly: their graphs call no module of the network."""
    # without the compiler nothing is compiled, and to import it takes seconds
    if "torch._dynamo.eval_frame" not in sys.modules:
        return ExitStack()
    set_stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
    if set_stance is not None:
        return set_stance("force_eager")  # type: ignore[no-any-return]  # a context manager
    if any("_orig_mod" in module._modules for module in net.modules()):
        raise RuntimeError(
            f"torch {torch.__version__} cannot run a compiled network eagerly, and its graph calls no module; give and "
            "call the network itself, compiled._orig_mod"
        )
    return ExitStack()
