"""Batch normalisations that a neuron can take over, in the graph of a network, and the conditions for it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from torch import fx, nn

from spikecore.core.modules import calls_as
from spikecore.core.neuron import Neuron
from spikecore.graph import CONVOLUTIONS, Call, Graph, layers_in_turn, read_block, read_parts
from spikecore.layers._batch_norm_stats import DIMS, is_plain_norm, kind_of
from spikecore.layers._norm_neuron import NormPlace

#: Dimensions of what a normalisation gives: samples, channels and what a sample has. Of nn.BatchNorm1d that is seen.
_DIMS = {nn.BatchNorm1d: "SC*", nn.BatchNorm2d: "SCHW", nn.BatchNorm3d: "SCDHW"}


class Pair(NamedTuple):
    """A normalisation and the neuron behind it, with what a :class:`spikecore.layers.NormNeuron` is of them."""

    graph: Graph
    norm: Call
    neuron: Call
    channel_dim: int
    shortcut: Optional[str] = None
    shortcut_norm: Optional[Call] = None
    #: The sum with the shortcut, and whether the shortcut is its first operand.
    total: Optional[Call] = None
    is_swapped: bool = False

    @property
    def norms(self) -> Tuple[Call, ...]:
        """One or two."""
        return (self.norm,) if self.shortcut_norm is None else (self.norm, self.shortcut_norm)

    @property
    def biased(self) -> Tuple[Optional[Call], ...]:
        """Of each normalisation the layer before it, if the normalisation can take over its bias."""
        return tuple([_biased(self.graph, norm) for norm in self.norms])

    @property
    def path(self) -> str:
        """The path of the neuron itself, which may be a part of the module that is called."""
        return self.neuron.name if isinstance(self.neuron.module, Neuron) else f"{self.neuron.name}.neuron"

    @property
    def block(self) -> Any:
        """The module whose ``forward`` makes the sum; None without one."""
        return None if self.total is None else self.total.owners[-1]

    @property
    def chains(self) -> Tuple[nn.Module, ...]:
        """The modules between the block and the neuron, each of which calls the next one."""
        owners = self.neuron.owners
        return owners[owners.index(self.block) + 1 :] if self.block in owners else owners

    @property
    def kind(self) -> Tuple[Any, ...]:
        """Facts that are the same in all calls of one neuron."""
        return (*[norm.module for norm in self.norms], self.channel_dim, self.block, self.is_swapped)

    def is_unchanged_until(self, call: Call) -> bool:
        """Tell whether no value is changed in place from its normalisations to a call, except by its sum."""
        first = min([norm.position for norm in self.norms])
        between = self.graph.calls[first + 1 : call.position]
        return not any(other.is_in_place and other is not self.total for other in between)


class Fusable(NamedTuple):
    """The pairs of a network, and the new graph of each block whose ``forward`` adds what a kernel will."""

    pairs: Sequence[Pair]
    graphs: Mapping[nn.Module, fx.Graph]


def fusable(net: nn.Module) -> Fusable:
    """The normalisations of ``net`` with the neurons behind them, as far as :func:`spikecore.fuse` takes them."""
    places = Counter([module for _, module in net.named_modules(remove_duplicate=False)])
    pairs: List[Pair] = []
    rewritten: Dict[nn.Module, fx.Graph] = {}
    for graph in read_parts(net).graphs:
        reads = {call.name.rpartition(".")[0] for call in graph.calls if call.kind == "attribute"}
        # with one value, at one place, and with tensors that nothing else reads
        plain = {
            call
            for call in graph.calls
            if places[call.module] == 1 == len(call.args) and not call.kwargs and call.name not in reads
        }
        neurons = {call.module: [_pair(graph, other, plain) for other in graph.calls_of(call.module)] for call in plain}
        of_neuron = {pair.neuron: pair for pair in map(_agreed, neurons.values()) if pair is not None}
        adding = {call: pair for call, pair in of_neuron.items() if pair.total is not None}
        for total in graph.calls:
            behind = [_with_sum_behind(of_neuron.get(spikes), total) for spikes in total.summands]
            # of two neurons whose spikes are added the first one's kernel does
            adding.update({pair.neuron: pair for pair in [pair for pair in behind if pair is not None][:1]})
        for block in {pair.block: None for pair in adding.values()}:
            of_block = {call: pair for call, pair in adding.items() if pair.block is block}
            graph_of_block = _without_sums(block, [*of_block.values()])
            if graph_of_block is not None:
                of_neuron.update(of_block)
                rewritten[block] = graph_of_block
        pairs += [pair for pair in of_neuron.values() if pair.total is None or pair.block in rewritten]
    return Fusable(pairs, rewritten)


# -- conditions


def _pair(graph: Graph, call: Call, plain: Set[Call]) -> Optional[Pair]:
    """The normalisation that a neuron can take over where it is called, and the sum; None where there is none.

    That is so where all of this holds:

    - a neuron with one input and without hooks is called, or a module that calls it (:func:`_neuron_in`);
    - it gets what a plain batch normalisation gives, or a sum of that and another value, in the ``forward`` that calls
      the neuron;
    - between them are identities and changes of shape, behind which the channels have a known dimension;
    - nothing else reads these values or a parameter of the normalisation, and nothing is changed in place meanwhile.
    """
    neuron = _neuron_in(call.module) if call in plain and not call.is_hooked and not call.is_folded else None
    if neuron is None or len(neuron.inputs) != 1 or call.source is None:
        return None
    norm, dim = _norm_of(call.source, call, [], call, plain)
    pair = None if norm is None else Pair(graph, norm, call, dim)
    total, reader, shapes = _behind_shapes(call.source, call, identities=False)
    both, of_sum = total.summands, (*shapes, total)
    is_alone = total.readers == [reader] and all(len(change.node.users) == 1 for change in of_sum)
    if both and both[0] is not both[1] and is_alone and all(change.owners == call.owners for change in of_sum):
        norms = [_norm_of(value, total, shapes, call, plain) for value in both]
        is_swapped = norms[0][0] is None and not total.is_in_place  # x += norm(y) changes x
        (norm, dim), (other, its_dim) = norms[::-1] if is_swapped else norms
        if norm is not None:
            shortcut_norm = other if dim == its_dim else None
            pair = Pair(graph, norm, call, dim, "before", shortcut_norm, total, is_swapped)
    return pair if pair is not None and pair.is_unchanged_until(call) else None


def _neuron_in(module: Any) -> Optional[Neuron]:
    """The neuron that a module is, or the part ``neuron`` of a class with ``calls_neuron = True``, whose ``forward``
    gives what ``self.neuron.run`` gives of its inputs, and whose ``step`` says which steps a call takes.
    """
    neuron = module.neuron if getattr(type(module), "calls_neuron", False) else module
    return neuron if calls_as(neuron, Neuron) else None


def _agreed(pairs: Sequence[Optional[Pair]]) -> Optional[Pair]:
    """The pair of a neuron, if it is the same in all of its calls, and the normalisations are called nowhere else."""
    first = pairs[0]
    if first is None:
        return None
    same = all(pair is not None and pair.kind == first.kind for pair in pairs)
    return first if same and all(len(first.graph.calls_of(norm.module)) == len(pairs) for norm in first.norms) else None


def _with_sum_behind(pair: Optional[Pair], total: Call) -> Optional[Pair]:
    """A pair whose spikes a call adds to something, so that the neuron's kernel can; None where it cannot."""
    if pair is None or pair.shortcut or len(pair.graph.calls_of(pair.neuron.module)) > 1:
        return None
    if pair.neuron.readers != [total] or len(pair.neuron.node.users) > 1:
        return None
    both = total.summands
    changes_other = total.is_in_place and both[0] is not pair.neuron
    if both[0] is both[1] or changes_other or not pair.is_unchanged_until(total):
        return None
    behind = pair._replace(shortcut="after", total=total)
    return behind if None not in map(layers_in_turn, behind.chains) else None


def _norm_of(
    value: Call, reader: Call, shapes: Sequence[Call], neuron: Call, plain: Set[Call]
) -> Tuple[Optional[Call], int]:
    """The normalisation whose output a value is, if ``reader`` alone reads it and changes its shape so, and the
    dimension of its channels in a time step of the neuron.
    """
    norm, reader, before = _behind_shapes(value, reader)
    is_whole = norm in plain and is_plain_norm(norm.module) and norm.source is not None and norm.readers == [reader]
    dim = _channel_dim(norm, [*before, *shapes], neuron) if is_whole else 0
    return (norm, dim) if dim else (None, 0)


def _behind_shapes(value: Any, reader: Call, identities: bool = True) -> Tuple[Call, Call, List[Call]]:
    """Call in front of identities and reshapes that nothing else reads; its reader, and the reshapes in order."""
    shapes: List[Call] = []
    while value.readers == [reader] and value.source and (_is_shape(value) or (identities and _is_identity(value))):
        shapes = [value, *shapes] if _is_shape(value) else shapes
        reader, value = value, value.source
    return value, reader, shapes


def _is_identity(call: Call) -> bool:
    return call.layer in (nn.Identity, NormPlace) and not call.is_hooked


def _is_shape(call: Call) -> bool:
    return call.module is None and call.is_move and not call.kwargs


def _biased(graph: Graph, norm: Call) -> Optional[Call]:
    """The layer whose output alone a normalisation gets, if that adds a bias that nothing else uses."""
    layer: Optional[Call] = norm.source
    reader = norm
    while layer is not None and layer.function in ("folded", "unfolded_as") and layer.readers == [reader]:
        reader, layer = layer, layer.source
    if layer is None or layer.layer not in (nn.Linear, *CONVOLUTIONS) or layer.readers != [reader] or layer.is_hooked:
        return None
    module, bias = layer.module, layer.module._parameters.get("bias")
    called = len(graph.calls_of(module)) == len(graph.calls_of(norm.module))
    alone = bias is not None and {call.module for call in graph.uses(bias)} == {module}
    is_place = [other for other in graph.net.modules() if module in other._modules.values()]
    return layer if called and alone and len(is_place) == 1 and len(layer.node.users) == 1 else None


# -- where the channels are


def _channel_dim(norm: Call, shapes: Sequence[Call], neuron: Call) -> int:
    """The dimension of a time step that has the channels of a normalisation behind changes of shape: 1, or -1 for the
    last one; 0 where that is not known, or time is not in front.

    Sizes are not known, but the number of dimensions is: each has a letter, S for samples, T and B for time and batch.
    """
    kind = kind_of(norm.module)
    changes = [shape for shape in shapes if shape.function != "unfolded_as"]
    if getattr(norm.module, "step", "single") == "multi":
        dims = f"TB{_DIMS[kind][1:]}"
    else:
        dims = _dims_of_tokens(norm) if kind is nn.BatchNorm1d and changes else _DIMS[kind]
    for shape in shapes:
        dims = _reshaped(dims, shape)
    if not dims.startswith("S" if neuron.module.step == "single" else "T"):
        return 0
    step = dims.lstrip("T")
    if step[1] == "C" and (step.endswith("*") or len(step) + 1 in DIMS[kind]):
        return 1
    return -1 if step.endswith("C") and kind is nn.BatchNorm1d else 0


def _dims_of_tokens(norm: Call) -> str:
    """The dimensions of what nn.BatchNorm1d gives: tokens ``SCN`` or a matrix ``SC``, where its input says so."""
    source: Any = norm.source
    is_folded = source.function == "folded"
    source = source.source if is_folded else source
    before = "TBNC" if is_folded else "SNC"
    exchanged = f"{before[:-2]}CN"  # the last two, of as many as the normalisation has
    if (
        _has_sizes(source, 3)
        or isinstance(source.module, nn.Conv1d)
        or (_is_shape(source) and _reshaped(before, source) == exchanged)
    ):
        return "SCN"
    flat = source.source if source.kind == "module" and len(source.args) == 1 else source
    if flat is None:
        return "SC*"
    of_tokens = flat.function == "flatten" and _numbers(flat) in ((0, 2), (0, -2))
    return "SC" if of_tokens or _has_sizes(flat, 2) else "SC*"


def _reshaped(dims: str, shape: Call) -> str:
    """The dimensions behind a change of shape; "" where they are not known."""
    name, numbers = shape.function, _numbers(shape)
    if name == "contiguous":
        return dims
    if name == "unfolded_as":
        return f"TB{dims[1:]}" if dims.startswith("S") else ""
    if name == "folded":
        return f"S{dims[2:]}" if dims.startswith("TB") else ""
    if name == "unflatten" and dims.startswith("S") and numbers[0] == 0:
        # of a matrix the rows become tokens as well
        return "TBN"[: len(numbers) - 1] + dims[1:] if len(numbers) == 3 or dims == "SC" else ""
    if dims.endswith("*") or not dims:
        return ""
    if name in ("reshape", "view") and dims.startswith("S"):
        added = len(numbers) - len(dims)
        return "TBN"[: added + 1] + dims[1:] if added == 1 or (added == 2 and dims == "SC") else ""
    order = [*range(len(dims))]
    if any(not isinstance(n, int) or n not in (*order, *(-1 - k for k in order)) for n in numbers):
        return ""
    if name == "transpose":
        first, last = numbers
        order[first], order[last] = order[last], order[first]
        return "".join([dims[n] for n in order])
    return "".join([dims[n] for n in numbers]) if name == "permute" and len(numbers) == len(dims) else ""


def _numbers(shape: Call) -> Tuple[Any, ...]:
    """The arguments of a change of shape, sizes given one by one or together."""
    numbers: List[Any] = []
    for argument in shape.args[1:]:
        numbers += argument if isinstance(argument, (tuple, list)) else [argument]
    return tuple(numbers)


def _has_sizes(value: Call, count: int) -> bool:
    """Tell whether a value was given so many sizes."""
    return _is_shape(value) and value.function in ("reshape", "view") and len(_numbers(value)) == count


# -- the graph of a block that adds no more


def _without_sums(block: nn.Module, pairs: Sequence[Pair]) -> Optional[fx.Graph]:
    """The graph of a block whose neurons are called with the two values of a sum; None where there can be none."""
    apart = {chain for pair in pairs for chain in pair.chains}
    # the arguments of a graph of the block alone are values
    graph = read_block(block, apart) if pairs[0].graph.followed[block] else None
    if graph is None or any(len(graph.calls_of(pair.neuron.module)) != 1 for pair in pairs):
        return None
    for pair in pairs:  # those in front of a neuron first: they are gone then
        call = graph.calls_of(pair.neuron.module)[0]
        if pair.shortcut == "before":
            _take_before(graph, call, pair)
        else:
            _take_behind(graph, call)
    return graph.fx


def _take_before(graph: Graph, call: Call, pair: Pair) -> None:
    total, _, shapes = _behind_shapes(call.source, call, identities=False)
    x, skip = total.node.args[::-1] if pair.is_swapped else total.node.args
    with graph.fx.inserting_before(call.node):
        if shapes and pair.shortcut_norm is None:
            skip = graph.fx.call_method("expand_as", (skip, x))  # it may have been of another shape
        for shape in shapes:
            kind, target, (_, *sizes) = shape.node.op, shape.node.target, shape.node.args
            x, skip = [graph.fx.create_node(kind, target, (value, *sizes)) for value in (x, skip)]
    call.node.args = (x, skip)
    for change in (*shapes[::-1], total):
        graph.fx.erase_node(change.node)


def _take_behind(graph: Graph, call: Call) -> None:
    total = call.readers[0].node
    (shortcut,) = [value for value in total.args if value is not call.node]
    with graph.fx.inserting_before(total):
        total.replace_all_uses_with(graph.fx.call_module(call.name, (call.node.args[0], shortcut)))
    graph.fx.erase_node(total)
    graph.fx.erase_node(call.node)
