"""Transforms of a network: ``sc.fuse`` reads it (:mod:`spikecore.graph`) and replaces modules in what calls them;
``sc.unfuse`` puts them back.
"""

from __future__ import annotations

import functools
import warnings
from itertools import takewhile
from typing import Any, Dict, List, Sequence, Tuple, Type

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore.core.checks import check_network
from spikecore.core.modules import replace_modules
from spikecore.core.neuron import Neuron
from spikecore.graph import Rewritten
from spikecore.layers._fusable import fusable
from spikecore.layers._norm_neuron import BIASES, NormNeuron, NormPlace
from spikecore.layers._pooling import compact, plain


def fuse(net: nn.Module) -> nn.Module:
    """Put a :class:`spikecore.layers.NormNeuron` in the place of every neuron of ``net`` that follows a batch
    normalisation; gives ``net`` back.

    These pairs are taken, and an identity stands where the normalisation was. Chains of ``nn.Sequential``, nested ones
    included, and blocks with a ``forward`` of their own have them::

        TimeBatched(..., nn.BatchNorm2d(C)), neuron  # multi-step
        nn.BatchNorm2d(C), neuron  # neuron of step="single"
        neuron(norm(x).unflatten(0, (T, B)))  # or view(T, B, C, H, W): x has samples [T B, C, H, W]
        neuron(norm(x.transpose(1, 2)).transpose(1, 2))  # tokens, nn.BatchNorm1d; a reshape may follow
        neuron(norm(x) + y), neuron(norm(x) + norm2(y))  # the kernel adds y, or normalises it as well
        neuron(norm(x)) + y  # the kernel adds y to the spikes

    :func:`spikecore.graph.read` says who reads each value and what is called where. Where a ``forward`` adds, its graph
    takes its place: what it reads of ``self``, such as ``self.scale``, is what it was when ``fuse`` was called. One
    with default arguments keeps its sums. A module whose ``forward`` cannot be followed, or is another one in
    ``train()`` than in ``eval()``, stays as it is; chains and blocks in it are taken by themselves, as if nothing else
    called their layers.

    Pooling is replaced, wherever it stands, by layers that keep less for backward: ``nn.MaxPool2d`` a byte for each
    maximum, instead of its input and an index of 8 bytes, and ``nn.AvgPool2d`` of windows that do not overlap nothing,
    instead of its input. In a compiled graph that goes for maxima of windows that overlap, too, and for
    ``nn.MaxPool1d`` and ``nn.MaxPool3d``; a padded window of minus infinity alone has no gradient there. Not replaced
    is pooling with ``ceil_mode``, ``dilation``, ``return_indices``, ``divisor_override``, or a maximum of more than 256
    values.

    A bias of a linear layer or a convolution right before the normalisation goes to the ``NormNeuron``. Statistics of a
    batch undo it, so that nothing adds it in training, and its gradient is 0, as it was to rounding. An optimiser that
    divides by the size of gradients, as Adam does, moves the bias of the plain network by this rounding.

    The network computes what it computed before, to rounding; a backend that can compute normalisation and neuron in
    one kernel then does, in which nothing normalised is stored. Normalisations and neurons stay the same objects, so
    that an optimiser made before goes on. ``state_dict()`` has the names of the plain network, and checkpoints of both
    load into both; ``named_parameters()`` has those of the new modules, ``"1.norm.weight"`` and ``"1.neuron.tau"``.

    Behind :func:`spikecore.convert` it takes SpikingJelly's normalisations and nodes, which stay and hold the layer.

    Left as they are: ``nn.SyncBatchNorm`` and other classes, a normalisation or a neuron that is in the network twice
    or also called elsewhere, a normalised value that something else reads, and layers with hooks or a ``forward`` of
    their own. Hooks that they get afterwards are not called. :func:`unfuse` undoes it. Raises TypeError for what is no
    module. Warns where ``net`` has batch normalisations and neurons and none of them is a pair.
    """
    check_network("sc.fuse", net)
    matches = fusable(net)
    for pair in matches.pairs:
        norm, *others = [call.module for call in pair.norms]
        neuron: Any = pair.graph.net.get_submodule(pair.path)
        layer = NormNeuron(
            norm,
            neuron,
            shortcut=pair.shortcut,
            shortcut_norm=others[0] if others else None,
            channel_dim=pair.channel_dim,
        )
        layer.adds_for_block = pair.shortcut is not None
        layer.training = neuron.training
        parts = {part: call.name for part, call in zip(_NORMS, pair.norms)}
        for part, before in zip(BIASES, pair.biased):
            if before is not None:
                _move("bias", before.module, part, layer)
                parts[part] = f"{before.name}.bias"
        paths = [pair.path, *parts.values()]
        _put(pair.graph.net, paths[0], layer)
        for call in pair.norms:
            identity = NormPlace()
            identity.training = call.module.training
            _put(pair.graph.net, call.name, identity)
        owner = _innermost(paths)
        relative = {part: path[len(owner) :] for part, path in parts.items()}
        _names_of(pair.graph.net.get_submodule(owner[:-1]))[paths[0][len(owner) :]] = relative
    for block, graph in matches.graphs.items():
        block.forward = Rewritten(block, graph)
    replace_modules(net, {module: compact(module) for module in net.modules()})
    _warn_of_nothing(net)
    return net


def _innermost(paths: Sequence[str]) -> str:
    """The path, with a dot behind it, of the innermost module that has all of these modules; "" for the network."""
    same = takewhile(lambda names: len({*names}) == 1, zip(*[path.split(".")[:-1] for path in paths]))
    return "".join([f"{names[0]}." for names in same])


def _warn_of_nothing(net: nn.Module) -> None:
    """Say so where a user expects normalisations within neurons and there are none."""
    norms = [name for name, module in net.named_modules() if isinstance(module, _BatchNorm)]
    if norms and any(isinstance(part, Neuron) for part in net.modules()) and not _has(net, NormNeuron):
        warnings.warn(
            f"sc.fuse(net) found no batch normalisation that a neuron can take over (net.{norms[0]}, for one, stays as "
            "it is): it takes those right before a neuron, without hooks, and within TimeBatched unless the neuron has "
            "step='single', in an nn.Sequential, and in a forward of your own that spikecore.graph.read can follow "
            "(see help(sc.fuse)). Elsewhere, write sc.layers.NormNeuron(norm, neuron); sc.explain(net, x) "
            "says where that helps. Pooling keeps less for backward all the same",
            stacklevel=3,
        )


def unfuse(net: nn.Module) -> nn.Module:
    """Undo :func:`fuse` in ``net``, which is given back; a :class:`spikecore.layers.NormNeuron` that was written by
    hand stays. Raises TypeError for what is no module.
    """
    check_network("sc.unfuse", net)
    for owner in [*net.modules()]:
        names = vars(owner).get(_NAMES, {})
        for neuron, parts in names.items():
            there = dict(owner.named_modules())  # modules may have been replaced, inserted or removed
            layer = there.get(neuron)
            norms = [path for part, path in parts.items() if part in _NORMS]
            biased = {part: there.get(path[: -len(".bias")]) for part, path in parts.items() if part in BIASES}
            places = all(isinstance(there.get(norm), NormPlace) for norm in norms) and None not in biased.values()
            if isinstance(layer, NormNeuron) and places:
                _put(owner, neuron, layer.neuron)
                for path, norm in zip(norms, layer.norms):
                    _put(owner, path, norm)
                for part, before in biased.items():
                    _move(part, layer, "bias", before)
        names.clear()
        if isinstance(vars(owner).get("forward"), Rewritten):
            del owner.forward
    replace_modules(net, {module: plain(module) for module in net.modules()})
    return net


# -- names of a fused network in its state_dict

#: The attribute of a chain or block: paths of its NormNeurons and of what these took over, ``{"1": {"norm":
#: "0.module.1"}}``.
_NAMES = "_fused_names"
#: The parts of a NormNeuron that are normalisations, in the order of these paths.
_NORMS = ("norm", "shortcut_norm")
_Names = Dict[str, Dict[str, str]]


def _names_of(owner: nn.Module) -> _Names:
    """The names of a module, which saves and loads its pairs under the names of the plain form from now on."""
    if _NAMES not in vars(owner):
        names: _Names = {}
        vars(owner)[_NAMES] = names
        owner._register_state_dict_hook(functools.partial(_save_plain, names))
        owner._register_load_state_dict_pre_hook(functools.partial(_load_plain, names))
    return vars(owner)[_NAMES]  # type: ignore[no-any-return]  # as made above


def _both_names(names: _Names, prefix: str) -> List[Tuple[str, str]]:
    """The beginnings of keys in a fused network, and in the plain one."""
    of_parts = [
        (f"{prefix}{neuron}.{part}{end}", f"{prefix}{path}{end}")
        for neuron, parts in names.items()
        for part, path in parts.items()
        for end in ("." if part in _NORMS else "",)
    ]
    return of_parts + [(f"{prefix}{neuron}.neuron.", f"{prefix}{neuron}.") for neuron in names]


def _save_plain(names: _Names, module: nn.Module, state: Dict[str, Any], prefix: str, *_: Any) -> None:
    """The hook that saves under the names of the plain form."""
    _rename(state, _both_names(names, prefix))


def _load_plain(names: _Names, state: Dict[str, Any], prefix: str, *_: Any) -> None:
    """The hook that loads what has the names of the plain form, or those of the modules."""
    both = _both_names(names, prefix)
    _rename(state, [*((fused, fused) for fused, _ in both), *((plain, fused) for fused, plain in both)])


def _rename(state: Dict[str, Any], renamed: List[Tuple[str, str]]) -> None:
    """Give the keys of a state dict other beginnings, the first that fits; their order stays."""
    items = [*state.items()]
    state.clear()
    for key, value in items:
        old, new = next((both for both in renamed if key.startswith(both[0])), ("", ""))
        state[new + key[len(old) :]] = value


def _put(chain: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module at a path."""
    parent, _, name = path.rpartition(".")
    setattr(chain.get_submodule(parent), name, module)


def _move(name: str, owner: Any, other_name: str, other: Any) -> None:
    """Make a parameter one of another module."""
    other._parameters[other_name] = owner._parameters[name]
    owner._parameters[name] = None


def _has(net: nn.Module, kind: Type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in net.modules())
