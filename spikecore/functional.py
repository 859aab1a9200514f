"""Functions that act on every neuron of a network: reset, detach, project, anneal, carry state, set step or backend.

Each function takes any module and reaches the neurons inside it, nested ones included, and no others. A module without
neurons is warned of: it is the wrong one, or its neurons are another library's. ``mask_of`` stands beside them: it says
which steps of padded sequences are real, for losses and metrics.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from typing import Any, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spikecore.calibration import calibrate
from spikecore.context import compile_time, is_plain
from spikecore.core import checks, parameters
from spikecore.core.dispatch import ask, request
from spikecore.core.modules import outside
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stateful, Stepped, carry, carry_no_more, cut_graph, keep, names_of_state
from spikecore.encode import Population
from spikecore.graph import layers_in_turn
from spikecore.layers import Delay
from spikecore.words import a_kind, shown

__all__ = [
    "after_update",
    "anneal",
    "at_rest",
    "calibrate",
    "carry_state",
    "detach",
    "expand_counts",
    "get_state",
    "mask_of",
    "parameter_groups",
    "project",
    "reset",
    "set_backend",
    "set_state",
    "set_step",
    "stateful_modules",
    "to_rest",
]
__dir__ = __all__.copy

#: Modules with a step mode.
Timed = Union[Stateful, Stepped]

#: Kinds of torch.nn that count dimensions, and where they have them; None counts from the front, too.
_COUNTING: Mapping[Any, Tuple[str, ...]] = {
    nn.Flatten: ("start_dim", "end_dim"),
    (nn.Unflatten, nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU): ("dim",),
}
#: Kinds of torch.nn whose meaning depends on whether there is a time dimension, and what to do.
_OF_TIME = {
    nn.RNNBase: "it is recurrent itself, and takes all steps in one call",
    nn.MultiheadAttention: "it attends over the dimension that time is in",
}
#: Normalisations of torch.nn whose weights may have several dimensions.
_NORMS = tuple(getattr(nn, name) for name in ("LayerNorm", "RMSNorm") if hasattr(nn, name))
_CONTINUES = "sc.set_step(net, 'single'), or call it within sc.carry_state(net), where multi-step calls continue"


def stateful_modules(net: nn.Module) -> List[Stateful]:
    """The modules of ``net`` that hold state, itself included."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net={shown(net)} is {a_kind(net)}; give the network or neuron itself (an nn.Module)")
    return [module for module in net.modules() if isinstance(module, Stateful)]


def check_places(net: nn.Module, carries: bool = False) -> List[Stateful]:
    """The modules of ``net`` that hold state. ValueError for one that carries it and that an ``nn.Sequential`` runs
    twice; ``carries``: all will.
    """
    modules = stateful_modules(net)
    if any(carries or module.continues for module in modules):
        _check_chains(net, carries)
    return modules


@compile_time  # a search of modules is not traced
def _check_chains(net: nn.Module, carries: bool) -> None:
    for layers in filter(None, map(layers_in_turn, net.modules())):
        counts = Counter(part for layer in layers for part in layer.modules() if isinstance(part, Stateful))
        for module, count in counts.items():
            if count > 1 and (carries or module.continues):
                names = [name for name, part in net.named_modules(remove_duplicate=False) if part is module]
                raise ValueError(
                    f"{type(module).__name__} carries its state and is in the network twice, as "
                    f"{' and '.join(map(repr, names))}: each would go on from the other's state; make a neuron for "
                    "each place"
                )


def _neurons(net: nn.Module, function: str, carries: bool = False) -> List[Stateful]:
    """The stateful modules of ``net``, for a function that its user calls."""
    modules = check_places(net, carries)
    if not modules:
        # the warning names the line of the user; carry_state is called through contextlib, one frame deeper
        level = 4 if function == "carry_state" else 3
        warnings.warn(
            f"sc.{function}: net={shown(net)} has no spikecore neuron, so nothing is done; give the network that holds "
            "them. Neurons of other libraries (snnTorch, SpikingJelly) are reset and detached with those libraries",
            UserWarning,
            stacklevel=level,
        )
    return modules


def reset(net: nn.Module) -> None:
    """Put every neuron of ``net`` back to rest: the next call starts from the initial state."""
    to_rest(_neurons(net, "reset"), carried=True)


def detach(net: nn.Module) -> None:
    """Cut the graph of the carried state of every neuron of ``net``; values stay. For truncated backpropagation."""
    for module in _neurons(net, "detach"):
        cut_graph(module)


def project(net: nn.Module) -> None:
    """Put every learnt parameter of ``net``, and learnt delay, that left its range back to the nearest value inside, in
    place.

    A call computes with the value inside, and leaves the parameter where it is. A step of ``training_model`` does this
    after its update, and ``state_dict()`` before it saves. In a loop of your own call it after ``optimizer.step()``, so
    that a parameter need not come back from afar.
    """
    _project(_neurons(net, "project"))


def anneal(net: nn.Module) -> None:
    """One training step of all delays of ``net`` that anneal (``sc.Delay(anneal=)``): ``sigma`` becomes narrower.

    A step of ``training_model`` does this after its update. In a loop of your own call it once after each
    ``optimizer.step()``.
    """
    _narrow(_neurons(net, "anneal"))


def after_update(modules: Sequence[Stateful]) -> None:
    """:func:`project` and :func:`anneal` for these modules, after an update of a training step."""
    _project(modules)
    _narrow(modules)


def _project(modules: Sequence[Stateful]) -> None:
    for module in modules:
        if isinstance(module, Neuron):
            parameters.project(module)
        elif isinstance(module, Delay):
            module.project()


def _narrow(modules: Sequence[Stateful]) -> None:
    for module in modules:
        if isinstance(module, Delay):
            module.narrow()


@contextmanager
def carry_state(net: nn.Module) -> Iterator[None]:
    """Within the block, multi-step calls of ``net`` continue from the last state instead of starting at rest.

    ::

        with sc.carry_state(net):
            for chunk in stream:  # [T, B, ...] each
                loss = criterion(net(chunk), target)
                loss.backward()
                sc.detach(net)  # truncate the gradient here

    The first call starts at rest and leaving the block drops the state; blocks nest, and the outermost one counts.
    Single-step neurons keep their state, before and after; within the block the steps of
    :func:`spikecore.training_model` and :func:`spikecore.inference_model` continue from it, too.
    """
    modules = _neurons(net, "carry_state", carries=True)
    for module in modules:
        carry(module)
    try:
        yield
    finally:
        for module in modules:
            carry_no_more(module)


@contextmanager
def own_state(modules: Sequence[Stateful]) -> Iterator[None]:
    """One step of training or inference: neurons begin at rest, unless ``carry_state`` is active, and keep no graph."""
    to_rest(modules)
    try:
        yield
    finally:
        for module in modules:
            cut_graph(module)
        to_rest(modules)


def to_rest(modules: Sequence[Stateful], carried: bool = False) -> None:
    """Drop the state of neurons; ``carried``: also of those within :func:`carry_state`, which have it on purpose."""
    for module in modules:
        if carried or not module.carrying:
            keep(module, None)


@contextmanager
def at_rest(modules: Sequence[Stateful]) -> Iterator[None]:
    """Within the block neurons begin at rest; after it they have the state that they had before."""
    states = [module.state for module in modules]
    to_rest(modules, carried=True)
    try:
        yield
    finally:
        for module, state in zip(modules, states):
            keep(module, state)


def parameter_groups(net: nn.Module, weight_decay: float = 0.01, **options: Any) -> List[Dict[str, Any]]:
    """Two groups of the parameters of ``net`` for an optimiser: weights, which decay, and all others, which do not.

    ::

        optimizer = torch.optim.AdamW(sc.functional.parameter_groups(net, weight_decay=0.01, lr=1e-3))

    Weights have two dimensions or more, such as those of ``nn.Linear`` and of convolutions. Without decay are the
    parameters of neurons, delays and their ``sigma``, those of normalisations and of receptive fields, biases, and all
    others with fewer dimensions: a decay would pull time constants and thresholds towards 0, most of all in layers
    that are silent and have no gradient. Each parameter is in one group; a shared one without decay, if it is so at one
    of its places. ``options``, such as ``lr``, are of both groups.

    Raises TypeError for what is no module or number, ValueError for a ``weight_decay`` below 0 or not finite, and for
    parameters of lazy modules, which have no shape before the first call.
    """
    checks.check_network("sc.functional.parameter_groups", net)
    decay = checks.number_or_none("sc.functional.parameter_groups", "weight_decay", weight_decay)
    if decay is None or decay < 0:
        raise ValueError(f"sc.functional.parameter_groups: weight_decay={weight_decay} must be 0 or above, as in 0.01")
    every = list(net.parameters())
    if any(map(is_lazy, every)):
        names = ", ".join(name for name, parameter in net.named_parameters() if is_lazy(parameter))
        raise ValueError(
            f"sc.functional.parameter_groups: {names} of net has no shape before the first call; call net(x) first"
        )
    without = {id(parameter) for module in net.modules() for parameter in _without_decay(module)}
    return [
        {**options, "params": [each for each in every if id(each) not in without], "weight_decay": decay},
        {**options, "params": [each for each in every if id(each) in without], "weight_decay": 0.0},
    ]


def _without_decay(module: nn.Module) -> List[nn.Parameter]:
    if isinstance(module, Neuron):
        return list(module.parameters())
    own = dict(module.named_parameters(recurse=False))
    is_all = isinstance(module, (Stateful, Population, *_NORMS))
    return [each for name, each in own.items() if is_all or each.ndim < 2 or name.endswith("bias")]


def set_backend(net: nn.Module, backend: Optional[str]) -> None:
    """Ask for ``backend`` in every neuron of ``net``; ``None`` goes back to context, environment and auto.

    The name is resolved on the next call; an unknown name raises :class:`~spikecore.backend.UnknownBackend` now.
    """
    choice = request(backend, "set_backend()")
    ask(_neurons(net, "set_backend"), choice)


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
    checks.check_network("sc.set_step", net)
    checks.step("sc.set_step", "step", step)
    every = list(outside(net, (Stateful, Stepped)))
    timed: List[Tuple[str, Timed]] = [
        (name, module) for name, module in every if isinstance(module, (Stateful, Stepped))
    ]
    turned = [(name, module) for name, module in timed if module.step != step]
    for name, module in timed:
        _check_step(repr(name) if name else "net", module, step)
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


def _check_step(where: str, module: Timed, step: str) -> None:
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
    """Reason why a module means something else with a dimension more or less; None if it does not."""
    dims = [getattr(module, name) for kind, names in _COUNTING.items() if isinstance(module, kind) for name in names]
    if any(dim is None or (isinstance(dim, int) and dim >= 0) for dim in dims):
        return "it counts dimensions from the front; put it into sc.layers.TimeBatched, or count from -1"
    return next((why for kind, why in _OF_TIME.items() if isinstance(module, kind)), None)


def get_state(net: nn.Module) -> Dict[str, Tensor]:
    """The state that the next call of ``net`` continues from, by name, as a flat dict of tensors for ``torch.save``.

    The keys are ``"<name of the module>.<name of the state>"``, such as ``"1.v"``, with names of
    ``net.named_modules()``; of a network that :func:`spikecore.fuse` changed they are those of its fused form. The
    values are copies without a graph, on the device of the state. A neuron at rest has no entry, so that a
    network after ``sc.reset(net)`` gives ``{}``. Parameters are not among them: ``net.state_dict()`` has those.
    :func:`set_state` puts them back.

    Raises RuntimeError if nothing in ``net`` would continue from its state, ValueError for a neuron at two places of
    an ``nn.Sequential``, TypeError for what is no module.
    """
    entries: Dict[str, Tensor] = {}
    for prefix, module in _carriers("get_state", net).items():
        for name, value in (module.state or {}).items():
            entries[prefix + name] = value.detach().clone()
    return entries


def set_state(net: nn.Module, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Have the next call of ``net`` continue from ``state``, as :func:`get_state` gave it.

    Tensors are copied, and stay on their device (``torch.load(file, map_location=...)``); the next call says if it is
    another one than that of its input, or if the shapes do not fit it. ``{}`` puts every neuron to rest. With
    ``strict=False`` neurons without any entry begin at rest.

    Nothing is changed if something does not fit. KeyError names the keys that are missing, and those that ``net`` has
    no state for; TypeError names what is no floating-point tensor, or no dict. Otherwise raises as :func:`get_state`.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state={shown(state)} is {a_kind(state)}; give what sc.get_state(net) gave")
    carriers = _carriers("set_state", net)
    missing: List[str] = []
    states: Dict[str, Dict[str, Tensor]] = {}
    for prefix, module in carriers.items():
        known = _known(module, prefix, state)
        entries = {name: state[prefix + name] for name in known if prefix + name in state}
        if entries or (strict and state and not module.may_rest):
            missing += [prefix + name for name in known if name not in entries]
        states[prefix] = entries
    used = {prefix + name for prefix, entries in states.items() for name in entries}
    unexpected = [key for key in state if key not in used]
    if missing or unexpected:
        lacks = f"missing: {', '.join(missing)}" if missing else ""
        more = f"unexpected: {', '.join(map(str, unexpected))}" if unexpected else ""
        raise KeyError(
            f"the state does not fit the network, {'; '.join(filter(None, (lacks, more)))}. Give the state of a "
            "network with these modules, or strict=False if those without any entry are to begin at rest"
        )
    for prefix, entries in states.items():
        for name, value in entries.items():
            if not isinstance(value, Tensor) or not value.is_floating_point():
                what = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(f"{prefix}{name} must be a floating-point tensor, got {what}")
    for prefix, module in carriers.items():
        keep(module, {name: value.detach().clone() for name, value in states[prefix].items()} or None)


def _carriers(function: str, net: nn.Module) -> Dict[str, Stateful]:
    """The modules that carry a state of their own, by the prefix of their keys."""
    check_places(net)
    every = outside(net, Stateful)
    carriers = {f"{name}." if name else "": module for name, module in every if isinstance(module, Stateful)}
    if not any(module.continues for module in carriers.values()):
        raise RuntimeError(
            f"sc.{function}: no neuron of net={shown(net)} continues from its last state: each call begins at rest. "
            f"Use {_CONTINUES}"
        )
    return {prefix: module for prefix, module in carriers.items() if module.continues}


def _known(module: Stateful, prefix: str, state: Mapping[str, Any]) -> Collection[str]:
    """The names of the states of a module; of a class that does not declare them, those that are given."""
    names = names_of_state(module)
    if names is not None:
        return names
    keys = [str(key) for key in state]
    return [key[len(prefix) :] for key in keys if key.startswith(prefix) and "." not in key[len(prefix) :]]


def mask_of(lengths: Union[Tensor, Sequence[int]], T: int) -> Tensor:
    """Mask of the real steps of padded sequences: ``mask[t, b] = t < lengths[b]``, bool ``[T, B]``.

    The ``mask`` of losses and metrics, for sequences that were padded behind their end to T steps, as
    ``torch.nn.utils.rnn.pad_sequence`` does. ``lengths`` are B whole numbers from 1 to T, and the mask is on their
    device. Raises TypeError for what are no whole numbers, ValueError for other shapes and for lengths outside 1 to T;
    those on a GPU are not read, and a mask of such is True nowhere or everywhere.
    """
    if isinstance(T, bool) or not isinstance(T, int):
        raise TypeError(f"T must be an int, the number of steps of the padded batch, got {T!r}")
    try:
        lengths = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"lengths={shown(lengths)} must be whole numbers of steps; give a list or a tensor [B]"
        raise TypeError(what) from error
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise TypeError(f"lengths must be of an integer dtype such as torch.int64, got {lengths.dtype}")
    # T may be more than narrow integers hold, and unsigned ones of more than 8 bits are not compared by torch
    lengths = lengths.long()
    if lengths.ndim != 1:
        raise ValueError(f"lengths must be [B], one for each sequence, got shape {tuple(lengths.shape)}")
    if lengths.is_cpu and is_plain(lengths):
        outside = ((lengths < 1) | (lengths > T)).nonzero().flatten()
        if len(outside):
            first = int(outside[0])
            raise ValueError(
                f"lengths must be from 1 to T={T}, got {int(lengths[first])} at {first} ({len(outside)} are outside); "
                "leave out sequences without a step, and give the T of the padded batch"
            )
    return torch.arange(T, device=lengths.device).unsqueeze(-1) < lengths


def expand_counts(counts: Tensor, levels: int) -> Tensor:
    """Spikes of 0 and 1 that stand for counts from 0 to ``levels``: ``[T, ...]`` to ``[T * levels, ...]``.

    Step t becomes ``levels`` steps, of which the first ``counts[t]`` have a spike. A linear layer or a convolution
    without bias gives the same sums: ``layer(expand_counts(z, D)).unflatten(0, (T, D)).sum(1)`` is ``layer(z)``, to
    rounding. It is for inference, in place of the products of an :class:`spikecore.ILIF`, and carries no gradient.

    Raises TypeError for what is no tensor of floating-point numbers, ValueError for a tensor without time, for
    ``levels`` below 1, and for numbers that are no such counts; those on a GPU are not read.
    """
    checks.tensor("expand_counts", "counts", counts)
    if counts.ndim < 1 or checks.whole("expand_counts", "levels", levels) < 1:
        raise ValueError(f"expand_counts takes counts [T, ...] and levels of 1 or more, got {shown(counts)}, {levels}")
    if counts.is_cpu and is_plain(counts):
        wrong = counts[(counts < 0) | (counts > levels) | (counts != counts.round())]
        if len(wrong):
            raise ValueError(
                f"counts must be whole numbers from 0 to levels={levels}, got {float(wrong[0])} ({len(wrong)} are "
                "not); give the levels of the neuron that counts"
            )
    slots = torch.arange(levels, device=counts.device).view(-1, *[1] * (counts.ndim - 1))
    return (counts.detach().unsqueeze(1) > slots).to(counts.dtype).flatten(0, 1)
