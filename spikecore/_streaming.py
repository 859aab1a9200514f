"""``sc.set_step``: a network that takes all time steps at once, or one step after the other."""

from __future__ import annotations

from typing import Iterator, List, Optional, Tuple, Union

from torch import nn

from spikecore._base.words import a_kind
from spikecore._shell import checks
from spikecore._shell.checks import shown
from spikecore._shell.state import Stateful, Stepped, keep

#: What has a step mode.
Timed = Union[Stateful, Stepped]

#: Kinds of torch.nn that compute along one dimension; None counts from the front, too.
_ALONG = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)
#: Kinds of torch.nn whose meaning depends on whether there is a time dimension, and what to do.
_OF_TIME = {
    nn.RNNBase: "it is recurrent itself, and takes all steps in one call",
    nn.MultiheadAttention: "it attends over the dimension that time is in",
}


def set_step(net: nn.Module, step: str) -> nn.Module:
    """Have ``net`` take one time step a call (``"single"``) or all of them (``"multi"``); gives ``net`` back.

    ::

        sc.set_step(net, "single")
        net.eval()
        for x_t in stream:  # [B, ...] each
            y_t = net(x_t)
        sc.reset(net)  # before the next stream

    It sets ``step`` of every neuron, of :class:`spikecore.Delay`, :class:`spikecore.Recurrent` and the layers of
    :mod:`spikecore.layers` that know of time, of encoders, and of :class:`spikecore.layers.TimeBatched`, whose modules
    then get ``[B, ...]`` as they are. Parameters, buffers, backends and names stay. All states are dropped: the next
    call begins at rest, and in single steps the state is carried from then on, as :func:`spikecore.reset` says.

    T calls of one step compute what a call of T steps does. Neurons give the same bits; torch's convolutions and matrix
    products may round otherwise for another number of samples. What sees all steps at once in training sees one of them
    then: batch normalisation takes the statistics of a single step, a dropout within ``TimeBatched`` draws in other
    order. So train with ``"multi"``, and stream in ``eval()``.

    Nothing is changed if something in ``net`` cannot follow. ValueError, with its name, for an encoder that makes all
    steps together (``Latency``, ``Delta``), for ``nn.Flatten``, ``nn.Unflatten``, ``nn.GLU`` and softmaxes outside
    ``TimeBatched`` that count dimensions from the front, for torch's recurrent layers and attention, and for another
    ``step``; RuntimeError within
    :func:`spikecore.carry_state`; TypeError for what is no module. What a module's own ``forward`` does with time, such
    as a mean over it, is not seen.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.set_step: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")
    checks.step("sc.set_step", "step", step)
    every = list(_outermost(net))
    timed: List[Tuple[str, Timed]] = [
        (name, module) for name, module in every if isinstance(module, (Stateful, Stepped))
    ]
    turned = [(name, module) for name, module in timed if module.step != step]
    for name, module in timed:
        _check(repr(name) if name else "net", module, step)
    for name, other in every if turned else ():
        reason = _reason(other)
        if reason:
            raise ValueError(
                f"sc.set_step: {name!r} is {other}, which would mean something else for step={step!r}: {reason}"
            )
    for _, module in turned:
        module.step = step
    for _, module in timed:
        if isinstance(module, Stateful):
            keep(module, None)
    return net


def _check(where: str, module: Timed, step: str) -> None:
    if isinstance(module, Stateful) and module.carrying:
        raise RuntimeError(
            f"sc.set_step: {where} is within sc.carry_state(net); leave the block first, it drops the state that it "
            "carries"
        )
    if isinstance(module, Stepped) and step == "single" and module.only_multi:
        raise ValueError(
            f"sc.set_step: {where} is {type(module).__name__}, which takes no single steps: {module.only_multi}"
        )


def _reason(module: nn.Module) -> Optional[str]:
    if isinstance(module, nn.Flatten) and (module.start_dim >= 0 or module.end_dim >= 0):
        return "it counts dimensions from the front; put it into sc.layers.TimeBatched(nn.Flatten()), or count from -1"
    if isinstance(module, nn.Unflatten) and isinstance(module.dim, int) and module.dim >= 0:
        return "it counts dimensions from the front; put it into sc.layers.TimeBatched, or count from -1"
    if isinstance(module, _ALONG) and (module.dim is None or module.dim >= 0):
        return "it counts dimensions from the front; put it into sc.layers.TimeBatched, or count from -1"
    return next((why for kind, why in _OF_TIME.items() if isinstance(module, kind)), None)


def _outermost(net: nn.Module, name: str = "") -> Iterator[Tuple[str, nn.Module]]:
    """Modules with their names, without what lies within one that knows of time: it is called by that one alone."""
    yield name, net
    if isinstance(net, (Stateful, Stepped)):
        return
    for key, part in net.named_children():
        yield from _outermost(part, f"{name}.{key}" if name else key)
