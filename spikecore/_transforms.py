"""Transforms of a network: ``sc.fuse``, ``sc.unfuse`` and ``sc.hoist`` replace modules in what calls them.

``sc.fuse`` reads the network (:mod:`spikecore.graph`); ``sc.hoist`` knows chains alone, each an ``nn.Sequential``.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter, OrderedDict
from itertools import takewhile
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import type_before_parametrizations

from spikecore.core.checks import check_network
from spikecore.core.modules import calls_as, has_own_hooks, in_turn, replace_modules
from spikecore.core.neuron import Neuron
from spikecore.encode import Constant
from spikecore.graph._rewritten import Rewritten
from spikecore.layers import NormNeuron, PackedConv2d, PackedLinear, TimeBatched, Voting
from spikecore.layers._fusable import fusable
from spikecore.layers._norm_neuron import NormPlace, neuron_of
from spikecore.layers._pooling import CompactAvgPool2d, CompactMaxPool2d, compact, plain


class Place(NamedTuple):
    """A module where its parent has it."""

    module: nn.Module
    parent: nn.Module
    name: str

    def put(self, module: nn.Module) -> None:
        """Put another module in its place."""
        setattr(self.parent, self.name, module)


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
    instead of its input. Not replaced is pooling with ``ceil_mode``, ``dilation``, ``return_indices``,
    ``divisor_override``, or a maximum of more than 256 values.

    The network computes what it computed before, to rounding; a backend that can compute normalisation and neuron in
    one kernel then does, in which nothing normalised is stored. Normalisations and neurons stay the same objects, so
    that an optimiser made before goes on. ``state_dict()`` has the names of the plain network, and checkpoints of both
    load into both; ``named_parameters()`` has those of the new modules, ``"1.norm.weight"`` and ``"1.neuron.tau"``.

    Left as they are: ``nn.SyncBatchNorm`` and other classes, a normalisation or a neuron that is in the network twice
    or also called elsewhere, a normalised value that something else reads, and layers with hooks or a ``forward`` of
    their own. Hooks that they get afterwards are not called. :func:`unfuse` undoes it. Raises TypeError for what is no
    module. Warns where ``net`` has batch normalisations and neurons and none of them is a pair.
    """
    check_network("sc.fuse", net)
    matches = fusable(net)
    for pair in matches.pairs:
        norm, *others = [call.module for call in pair.norms]
        neuron = pair.neuron.module
        layer = NormNeuron(
            norm,
            neuron,
            shortcut=pair.shortcut,
            shortcut_norm=others[0] if others else None,
            channel_dim=pair.channel_dim,
        )
        layer.adds_for_block = pair.shortcut is not None
        layer.training = neuron.training
        paths = [call.name for call in (pair.neuron, *pair.norms)]
        _put(pair.graph.net, paths[0], layer)
        for call in pair.norms:
            identity = NormPlace()
            identity.training = call.module.training
            _put(pair.graph.net, call.name, identity)
        owner = _innermost(paths)
        neuron_path, *norm_paths = [path[len(owner) :] for path in paths]
        _names_of(pair.graph.net.get_submodule(owner[:-1]))[neuron_path] = tuple(norm_paths)
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
        for neuron, norms in names.items():
            there = dict(owner.named_modules())  # modules may have been replaced, inserted or removed
            layer = there.get(neuron)
            if isinstance(layer, NormNeuron) and all(isinstance(there.get(norm), NormPlace) for norm in norms):
                _put(owner, neuron, layer.neuron)
                for path, norm in zip(norms, layer.norms):
                    _put(owner, path, norm)
        names.clear()
        if isinstance(vars(owner).get("forward"), Rewritten):
            del owner.forward
    replace_modules(net, {module: plain(module) for module in net.modules()})
    return net


# -- names of a fused network in its state_dict

#: The attribute of a chain or block: paths of its NormNeurons and of what they normalise, ``{"1": ("0.module.1",)}``.
_NAMES = "_fused_names"
#: The parts of a NormNeuron that are normalisations, in the order of these paths.
_NORMS = ("norm", "shortcut_norm")
_Names = Dict[str, Tuple[str, ...]]


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
    of_norms = [
        (f"{prefix}{neuron}.{part}.", f"{prefix}{norm}.")
        for neuron, norms in names.items()
        for part, norm in zip(_NORMS, norms)
    ]
    return of_norms + [(f"{prefix}{neuron}.neuron.", f"{prefix}{neuron}.") for neuron in names]


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


# -- hoist


def _of(*names: str) -> FrozenSet[Type[nn.Module]]:
    """The types of torch.nn of these names that this version of torch has."""
    return frozenset(getattr(nn, name) for name in names if hasattr(nn, name))


#: Layers to which ``[T, B, ...]`` is as ``[B, ...]``: of each number, and of the last dimensions.
_OF_ANY = _of(
    *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU"),
    *("LogSigmoid", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign"),
    *("Tanh", "Tanhshrink", "Threshold", "Linear", "LayerNorm", "RMSNorm"),
) | {NormPlace, Voting, PackedLinear}
#: Layers of samples ``[B, ...]``, which stand within ``TimeBatched``; flattening, where it keeps the batch.
_OF_SAMPLES = (
    _of(
        *(f"{name}{n}d" for n in (1, 2, 3) for name in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")),
        *(f"{name}{n}d" for n in (1, 2, 3) for name in ("AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "MaxPool")),
        *(f"{how}Pad{n}d" for n in (1, 2, 3) for how in ("Circular", "Constant", "Reflection", "Replication", "Zero")),
        *("LPPool1d", "LPPool2d", "GroupNorm", "LocalResponseNorm", "PReLU", "PixelShuffle", "PixelUnshuffle"),
        *("ChannelShuffle", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "Flatten", "Unflatten"),
    )
    | _OF_ANY
    | {PackedConv2d, CompactAvgPool2d, CompactMaxPool2d}
)


def hoist(net: nn.Module) -> nn.Module:
    """Move each :class:`spikecore.encode.Constant` of ``net`` behind the layers that see no time, which then compute
    once and not at every step; gives ``net`` back.

    In an ``nn.Sequential``, nested ones included::

        encode.Constant(8), TimeBatched(conv, norm), LIF(), ...
        nn.Identity(), nn.Sequential(conv, norm), LIF(repeat=8), ...  # after sc.hoist

    Layers that see no time are linear layers, activations and ``nn.LayerNorm``, as they are; ``TimeBatched`` of these,
    of convolutions, normalisation, pooling, padding and flattening; and ``nn.Flatten(2)``, which becomes
    ``nn.Flatten(1)``. Dropout is none, nor are subclasses, layers with ``inplace=True`` and modules of your own: the
    encoder stops before them, and before what has hooks. A neuron behind gets ``repeat=``, in a ``NormNeuron`` as well.
    Before another module the encoder stands on, under a name of its own: names in ``state_dict`` stay, and so do the
    values that the network computes, but for one: batch normalisation in training takes its unbiased running variance
    from B samples instead of T * B equal ones.
    ``TimeBatched`` is replaced by an ``nn.Sequential``, so hooks that it has are lost. A second call changes nothing.

    In a ``forward`` of your own, give the layers ``x`` without time, and the neuron behind them ``repeat=T``.

    Raises TypeError for what is no module. Warns where there is no encoder that can be moved.
    """
    check_network("sc.hoist", net)
    if not move_encoders(net) and not any(isinstance(part, Neuron) and part.makes_time for part in net.modules()):
        warnings.warn(
            "sc.hoist(net) found no encode.Constant with a layer behind it that sees no time: it takes those that an "
            "nn.Sequential calls. In a forward of your own, give the layers x without time, and the neuron behind them "
            "repeat=T",
            stacklevel=2,
        )
    return net


def move_encoders(net: nn.Module) -> bool:
    """What :func:`hoist` does, without a warning; whether an encoder moved, or had moved before."""
    # a neuron that other places call, too, has inputs with time there
    places = Counter(module for _, module in net.named_modules(remove_duplicate=False))
    within = {part for module in net.modules() if in_turn(module) for part in module.children()}
    chains = [module for module in net.modules() if in_turn(module) and module not in within]
    moved = [_hoist_in([*_called(chain)], places) for chain in chains]
    return any(moved)


def _called(chain: nn.Module) -> Iterator[Place]:
    """What a chain calls one after the other, chains within it followed."""
    for name, module in chain._modules.items():
        if module is not None and in_turn(module):
            yield from _called(module)
        elif module is not None:
            yield Place(module, chain, name)


def _hoist_in(parts: List[Place], places: Mapping[nn.Module, int]) -> bool:
    """Move the encoder of one chain; whether it moved, or stands behind such layers already."""
    at = next((k for k, place in enumerate(parts) if type(place.module) is Constant), None)
    if at is None:
        return False
    encoder: Any = parts[at].module
    behind = parts[at + 1 :]
    layers = [*takewhile(_sees_no_time, behind)]
    following = behind[len(layers)] if len(behind) > len(layers) else None
    neuron = None if following is None or places[following.module] > 1 else _repeating(following.module)
    if not (layers or neuron):
        return at > 0 and _without_time(parts[at - 1].module) is not None
    parts[at].put(nn.Identity())
    for place in layers:
        place.put(_without_time(place.module))  # type: ignore[arg-type]  # they have one
    if neuron is not None:
        neuron.repeat = encoder.steps
    elif following is not None:
        _insert(following.parent, following.name, encoder)
    else:
        _insert(layers[-1].parent, None, encoder)
    return True


def _repeating(module: nn.Module) -> Optional[Neuron]:
    """The neuron of one input that can make the time steps of an encoder, None if there is none."""
    neuron = neuron_of(module)
    plain_call = calls_as(module, NormNeuron) or calls_as(module, Neuron)
    takes = plain_call and neuron is not None and len(neuron.inputs) == 1 and neuron.repeat is None
    return neuron if takes and not _has_hooks(module) else None


def _sees_no_time(place: Place) -> bool:
    """Whether the layer at a place computes the same for one step as for each of many."""
    return not _has_hooks(place.module) and _without_time(place.module) is not None


def _has_hooks(module: nn.Module) -> bool:
    """Whether a hook would see one step where it saw all, or the other way round."""
    return any(map(has_own_hooks, module.modules()))


def _without_time(module: nn.Module) -> Optional[nn.Module]:
    """The layer that does to ``[B, ...]`` what this one does to every step of ``[T, B, ...]``, None if unknown."""
    kind = type_before_parametrizations(module)
    if kind is TimeBatched:
        inner: Any = module.module
        return nn.Sequential(OrderedDict(module=inner)) if _is_of_samples(inner) else None
    if kind is nn.Flatten:
        start, end = int(module.start_dim), int(module.end_dim)  # type: ignore[arg-type]  # numbers
        return nn.Flatten(start - 1, end if end < 0 else end - 1) if start > 0 else None
    return module if kind in _OF_ANY and not getattr(module, "inplace", False) else None


def _is_of_samples(module: nn.Module) -> bool:
    """Whether a layer treats the samples of ``[B, ...]`` alike, whatever their number."""
    if in_turn(module):
        return all(map(_is_of_samples, module.children()))
    first = getattr(module, "start_dim", getattr(module, "dim", 0)) if isinstance(module, _FLATTENING) else 1
    known = type_before_parametrizations(module) in _OF_SAMPLES and not getattr(module, "inplace", False)
    return known and isinstance(first, int) and first > 0  # nn.Unflatten may have the name of a dimension


_FLATTENING = (nn.Flatten, nn.Unflatten)


def _insert(chain: nn.Module, before: Optional[str], encoder: nn.Module) -> None:
    """Put an encoder in front of the part ``before`` of a chain, or at its end; the names of other parts stay."""
    name = "constant"
    while name in chain._modules:
        name += "_"
    parts = [*chain._modules.items()]
    chain._modules.clear()
    for key, part in parts:
        if key == before:
            chain.add_module(name, encoder)
        chain._modules[key] = part
    if before is None:
        chain.add_module(name, encoder)


def _has(net: nn.Module, kind: Type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in net.modules())
