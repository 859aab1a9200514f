"""Transforms of a network: ``sc.fuse``, ``sc.unfuse`` and ``sc.hoist`` replace modules in what calls them.

A chain is an ``nn.Sequential``, which calls its parts one after the other. A block has a ``forward`` of its own, which
``sc.fuse`` traces; ``sc.hoist`` does not.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections import Counter, OrderedDict
from itertools import takewhile
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import type_before_parametrizations

from spikecore._base.errors import a_kind
from spikecore._shell.checks import shown
from spikecore._shell.modules import calls_as, has_own_hooks, in_turn
from spikecore.encode import Constant
from spikecore.layers import NormNeuron, PackedConv2d, PackedLinear, TimeBatched, Voting
from spikecore.layers._batch_norm_stats import is_plain_norm
from spikecore.layers._norm_neuron import NormPlace, neuron_of
from spikecore.layers._packed import replace_modules
from spikecore.layers._pooling import CompactAvgPool2d, CompactMaxPool2d, compact, plain
from spikecore.layers._traced import (
    Rewritten,
    call_apart,
    channels_behind,
    ends_in,
    in_shapes,
    may_be_traced,
    summands,
    traced,
    without_shapes,
)
from spikecore.neuron import Neuron


class Place(NamedTuple):
    """A module where its parent has it."""

    module: nn.Module
    parent: nn.Module
    name: str
    #: The same, as a path from the chain.
    path: str
    #: Whether it sees time and batch as one dimension, within ``TimeBatched``.
    folded: bool = False

    def put(self, module: nn.Module) -> None:
        """Put another module in its place."""
        setattr(self.parent, self.name, module)


class Pair(NamedTuple):
    """A batch normalisation and the neuron behind it, in the module that has both: the innermost chain, or a block."""

    norm: Place
    neuron: Place
    owner: nn.Module
    #: Where the neuron's kernel adds a shortcut: as of :class:`spikecore.layers.NormNeuron`.
    shortcut: Optional[str] = None
    #: The normalisation of that shortcut.
    shortcut_norm: Optional[Place] = None
    #: The dimension of the channels in a time step.
    channel_dim: int = 1

    @property
    def norms(self) -> Tuple[Place, ...]:
        """One or two."""
        return (self.norm,) if self.shortcut_norm is None else (self.norm, self.shortcut_norm)


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

    A ``forward`` is traced by torch.fx. Where it adds, its graph takes its place: what it reads of ``self``, such as
    ``self.scale``, is what it was when ``fuse`` was called. One is traced only if its text says all that it does:
    assignments to local names and what is returned; conditions and loops over attributes of ``self`` alone, not
    ``self.training``; calls of modules, of torch, of methods of values and of such methods of its own. With default
    arguments, ``try``, ``with``, ``assert``, ``isinstance``, calls for an effect and changes of attributes it stays as
    it is, and so it does with changes of values in place other than ``+=``.

    Pooling is replaced, wherever it stands, by layers that keep less for backward: ``nn.MaxPool2d`` a byte for each
    maximum, instead of its input and an index of 8 bytes, and ``nn.AvgPool2d`` of windows that do not overlap nothing,
    instead of its input. Not replaced is pooling with ``ceil_mode``, ``dilation``, ``return_indices``,
    ``divisor_override``, or a maximum of more than 256 values.

    The network computes what it computed before, to rounding; a backend that can compute normalisation and neuron in
    one kernel then does, in which nothing normalised is stored. Normalisations and neurons stay the same objects, so
    that an optimiser made before goes on. ``state_dict()`` has the names of the plain network, and checkpoints of both
    load into both; ``named_parameters()`` has those of the new modules, ``"1.norm.weight"`` and ``"1.neuron.tau"``.

    Left as they are: ``nn.SyncBatchNorm`` and other classes, a normalisation or a neuron that is in the network twice,
    and those with hooks or a ``forward`` of their own. Hooks that they get afterwards are not called. :func:`unfuse`
    undoes it. Raises TypeError for what is no module. Warns where ``net`` has batch normalisations and neurons and none
    of them is a pair.
    """
    _check("fuse", net)
    matches = pairs(net)
    for pair in matches.pairs:
        norm, *others = [place.module for place in pair.norms]
        neuron: Any = pair.neuron.module
        layer = NormNeuron(
            norm,
            neuron,
            shortcut=pair.shortcut,
            shortcut_norm=others[0] if others else None,
            channel_dim=pair.channel_dim,
        )
        layer.adds_for_block = pair.shortcut is not None
        layer.training = neuron.training
        pair.neuron.put(layer)
        for place in pair.norms:
            identity = NormPlace()
            identity.training = place.module.training
            place.put(identity)
        _names_of(pair.owner)[pair.neuron.path] = tuple([place.path for place in pair.norms])
    for block, graph in matches.graphs.items():
        block.forward = Rewritten(block, graph)
    replace_modules(net, {module: compact(module) for module in net.modules()})
    _warn_of_nothing(net)
    return net


def _warn_of_nothing(net: nn.Module) -> None:
    """Say so where a user expects normalisations within neurons and there are none."""
    norms = [name for name, module in net.named_modules() if isinstance(module, _BatchNorm)]
    if norms and any(isinstance(part, Neuron) for part in net.modules()) and not _has(net, NormNeuron):
        warnings.warn(
            f"sc.fuse(net) found no batch normalisation that a neuron can take over (net.{norms[0]}, for one, stays as "
            "it is): it takes those right before a neuron, without hooks, and within TimeBatched unless the neuron has "
            "step='single', in an nn.Sequential, and in a forward of your own that is assignments, calls and what it "
            "returns (see help(sc.fuse)). Elsewhere, write sc.layers.NormNeuron(norm, neuron); sc.explain(net, x) "
            "says where that helps. Pooling keeps less for backward all the same",
            stacklevel=3,
        )


def unfuse(net: nn.Module) -> nn.Module:
    """Undo :func:`fuse` in ``net``, which is given back; a :class:`spikecore.layers.NormNeuron` that was written by
    hand stays. Raises TypeError for what is no module.
    """
    _check("unfuse", net)
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


class Matches(NamedTuple):
    """What :func:`fuse` takes: pairs, and the new graph of each block whose ``forward`` changes."""

    pairs: Sequence[Pair]
    graphs: Mapping[nn.Module, fx.Graph]


def pairs(net: nn.Module) -> Matches:
    """The normalisations of ``net`` with the neurons behind them, as far as :func:`fuse` takes them."""
    # a module at two places is called from both, and only one of them may have the neuron behind it
    places = Counter(module for _, module in net.named_modules(remove_duplicate=False))
    by_neuron: Dict[nn.Module, Pair] = {}
    for chain in reversed([*net.modules()]):  # innermost chains first
        if not _is_chain(chain):
            continue
        parts = [*_parts(chain, places)]
        for norm, neuron in zip(parts, parts[1:]):
            if neuron.module not in by_neuron and _fits(norm, neuron, places):
                by_neuron[neuron.module] = Pair(norm, neuron, chain)
    blocks = [module for module in net.modules() if _is_block(module)]
    graphs = {block: _Block(block, places, by_neuron).changed() for block in blocks}
    changed = {block: graph for block, graph in graphs.items() if graph is not None}
    return Matches([*by_neuron.values()], changed)


def _fits(norm: Place, neuron: Place, places: Mapping[nn.Module, int]) -> bool:
    """Whether the neuron can take over the normalisation whose output it gets."""
    alone = is_plain_norm(norm.module) and places[norm.module] == 1
    return alone and _takes(neuron, places) and norm.folded == (neuron.module.step == "multi")


def _takes(neuron: Place, places: Mapping[nn.Module, int]) -> bool:
    """Whether a module is a neuron that can take over a normalisation."""
    layer: Any = neuron.module
    # a forward or a hook of its own would see the wrong input
    return calls_as(layer, Neuron) and len(layer.inputs) == 1 and not has_own_hooks(layer) and places[layer] == 1


def _is_chain(module: nn.Module) -> bool:
    """Whether a module calls its parts one after the other, and nothing sees what is between them."""
    return in_turn(module) and not has_own_hooks(module)


def _parts(chain: nn.Module, places: Mapping[nn.Module, int], path: str = "", folded: bool = False) -> Iterator[Place]:
    """What a chain calls, in order; parts of parts in their place where they can be seen through."""
    # not children(), which leaves out a module that comes a second time
    for name, part in chain._modules.items():
        if part is not None:
            yield from _seen(Place(part, chain, name, path + name, folded), places)


def _seen(place: Place, places: Mapping[nn.Module, int]) -> Iterator[Place]:
    """The parts of what stands at a place, or itself, without what gives its input back."""
    part: Any = place.module
    if not place.folded and type(part) is TimeBatched and places[part] == 1 and not has_own_hooks(part):
        place = Place(part.module, part, "module", f"{place.path}.module", part.step == "multi")
    if _is_chain(place.module) and places[part] == 1 == places[place.module]:
        yield from _parts(place.module, places, f"{place.path}.", place.folded)
    elif type(place.module) not in (nn.Identity, NormPlace) or has_own_hooks(place.module):
        yield place


# -- blocks with a forward of their own


def _is_block(module: nn.Module) -> bool:
    """Whether a module has a ``forward`` that may call a normalisation and a neuron: not torch's own, nor a layer."""
    return may_be_traced(module) and not isinstance(module, (Neuron, NormNeuron, TimeBatched))


class _Block:
    """What the graph of a block's ``forward`` has of normalisations, neurons and sums."""

    def __init__(self, block: nn.Module, places: Mapping[nn.Module, int], pairs: Dict[nn.Module, Pair]) -> None:
        self._block, self._places, self._pairs = block, places, pairs

    def changed(self) -> Optional[fx.Graph]:
        """Add the block's pairs to those that are known; its graph if it must change."""
        parts = [part for child in self._block.children() for part in child.modules()]
        if not any(isinstance(part, Neuron) for part in parts) or not any(map(is_plain_norm, parts)):
            return None
        graph = traced(self._block)
        if graph is None:
            return None
        self._calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
        self._read = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
        # sums in front of a neuron first: they are gone then
        before = [self._normalises(graph, node) for node in graph.nodes if node.op == "call_module"]
        after = [self._adds(graph, node) for node in graph.nodes if summands(node)]
        return graph if any(before) or any(after) else None

    def _normalises(self, graph: fx.Graph, call: fx.Node) -> bool:
        """Note the normalisation before the neuron of a call; whether the graph changed."""
        called = self._called(call)
        if not called or called[0].module in self._pairs:
            return False
        neuron: Place = called[0]
        source: Any = call.args[0]
        total, shapes = without_shapes(source)
        both = summands(total)
        if not both:
            norm, dim = self._norm_of(source, neuron)
            if norm is not None:
                self._pairs[neuron.module] = Pair(norm, neuron, self._block, channel_dim=dim)
            return False
        norms = [self._norm_of(value, neuron, shapes) for value in both]
        # a chain cannot be given two inputs, and x += norm(y) changes x
        if neuron.path != call.target or len(total.users) > 1 or both[0] is both[1]:
            return False
        if not norms[0][0] and total.target is not operator.iadd:
            norms, both = norms[::-1], both[::-1]
        (norm, dim), (shortcut_norm, its_dim) = norms
        if norm is None:
            return False
        if shortcut_norm is not None and dim != its_dim:
            shortcut_norm = None
        self._pairs[neuron.module] = Pair(norm, neuron, self._block, "before", shortcut_norm, dim)
        with graph.inserting_before(call):
            call.args = tuple([in_shapes(graph, value, shapes) for value in both])
        for node in [*shapes[::-1], total]:
            graph.erase_node(node)
        return True

    def _adds(self, graph: fx.Graph, total: fx.Node) -> bool:
        """Have the neuron's kernel add what a node adds to its spikes; whether the graph changed."""
        both = summands(total)
        for spikes, shortcut in (both, both[::-1]):
            called = self._called(spikes)
            pair = self._pairs.get(called[-1].module) if called else None
            in_place = total.target is operator.iadd and spikes is not both[0]
            if pair is None or pair.shortcut or len(spikes.users) > 1 or both[0] is both[1] or in_place:
                continue
            if ends_in(self._block, spikes) is pair.neuron.module:
                total.replace_all_uses_with(call_apart(graph, self._block, spikes, total, shortcut))
                graph.erase_node(total)
                graph.erase_node(spikes)
                self._pairs[pair.neuron.module] = pair._replace(shortcut="after")
                return True
        return False

    def _norm_of(self, value: Any, neuron: Place, more: Sequence[fx.Node] = ()) -> Tuple[Optional[Place], int]:
        """The normalisation whose output a value is, if nothing but this neuron gets it, after ``more`` changes of
        shape; and the dimension of its channels then.
        """
        source, shapes = without_shapes(value)
        called = self._called(source)
        if not called or len(source.users) > 1:
            return None, 0
        norm, shapes = called[-1], [*shapes, *more]
        if not shapes:
            return (norm, 1) if _fits(norm, neuron, self._places) else (None, 0)
        if not _takes(neuron, self._places) or not (is_plain_norm(norm.module) and self._places[norm.module] == 1):
            return None, 0
        before = called[-2].module if len(called) > 1 else self._from(source.args[0])
        dim = channels_behind(norm.module, norm.folded, source, shapes, before)
        # in the middle there are samples, of a neuron that sees time
        unfolds = dim == -1 or (dim == 1 and not norm.folded and neuron.module.step == "multi")
        return (norm, dim) if unfolds and (dim == 1 or len(called) == 1) else (None, 0)

    def _from(self, node: Any) -> Optional[nn.Module]:
        """The module that computes a value, if one does."""
        return ends_in(self._block, node) if isinstance(node, fx.Node) and node.op == "call_module" else None

    def _called(self, node: Any) -> Sequence[Place]:
        """The parts of the module that a node calls with one value, in order; none where others call it, too, or where
        the block reads a parameter of it.
        """
        calls = isinstance(node, fx.Node) and node.op == "call_module" and self._calls[node.target] == 1
        if not calls or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            return ()
        path = str(node.target)
        if any(read.startswith(f"{path}.") for read in self._read):
            return ()
        parent, _, name = path.rpartition(".")
        module = self._block.get_submodule(path)
        place = Place(module, self._block.get_submodule(parent), name, path)
        return [*_seen(place, self._places)] if self._places[module] == 1 else ()


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
    _check("hoist", net)
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
            yield Place(module, chain, name, name)


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


def _check(function: str, net: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"sc.{function}: net={shown(net)} is {a_kind(net)}; give the network itself (an nn.Module)")
