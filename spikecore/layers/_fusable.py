"""Batch normalisations that a neuron can take over, in the graph of a network, and the conditions for it."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from torch import fx, nn

from spikecore._shell.modules import calls_as, has_own_hooks, in_turn
from spikecore.graph import Call, Graph
from spikecore.graph._parts import read_parts
from spikecore.graph._rewritten import read_block
from spikecore.layers._batch_norm_stats import is_plain_norm
from spikecore.layers._norm_neuron import NormPlace
from spikecore.neuron import Neuron

#: Sums that change their first operand.
_IN_PLACE = (operator.iadd, "add_")
#: Functions and methods that change the shape of a value, and are followed from a normalisation to a neuron.
_SHAPES = ("contiguous", "flatten", "permute", "reshape", "transpose", "unflatten", "view")
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


class Fusable(NamedTuple):
    """The pairs of a network, and the new graph of each block whose ``forward`` adds what a kernel will."""

    pairs: Sequence[Pair]
    graphs: Mapping[nn.Module, fx.Graph]


def fusable(net: nn.Module) -> Fusable:
    """The normalisations of ``net`` with the neurons behind them, as far as :func:`spikecore.fuse` takes them."""
    places = Counter([module for _, module in net.named_modules(remove_duplicate=False)])
    pairs: List[Pair] = []
    blocks = _Blocks()
    for graph in read_parts(net).graphs:
        matches = [_pair(graph, call, places) for call in graph.calls]
        # sums in front of a neuron first: they are gone then
        of_graph = {
            pair.neuron: pair for pair in matches if pair is not None and (pair.total is None or blocks.take_sum(pair))
        }
        for total in graph.calls:
            for spikes in total.summands:
                behind = _with_sum_behind(of_graph.get(spikes), total)
                if behind is not None and blocks.take_sum(behind):
                    of_graph[spikes] = behind
                    break
        pairs += of_graph.values()
    return Fusable(pairs, blocks.changed)


# -- conditions


def _pair(graph: Graph, call: Call, places: Mapping[nn.Module, int]) -> Optional[Pair]:
    """The normalisation that a neuron can take over from where it is called; None where there is none.

    That is so where all of this holds:

    - the call is of a neuron with one input, without hooks, that is called once;
    - its input is what a plain batch normalisation gives, which is called once, or a sum of that and another value, in
      the ``forward`` that calls the neuron;
    - between them are identities and changes of shape that keep the channels in a known dimension of ``[T, B, ...]``;
    - nothing else reads these values, nor a parameter of the normalisation.
    """
    neuron: Any = call.module
    # a forward or a hook of its own would see the wrong input
    takes = call.kind == "module" and calls_as(neuron, Neuron) and not has_own_hooks(neuron) and not call.is_folded
    if not takes or len(neuron.inputs) != 1 or call.source is None or not _is_alone(graph, call, places):
        return None
    norm, dim = _norm_of(graph, call.source, call, [], call, places)
    if norm is not None:
        return Pair(graph, norm, call, dim)
    total, reader, shapes = _behind_shapes(call.source, call, identities=False)
    both = total.summands
    apart = [change for change in (*shapes, total) if change.owner is not call.owner or len(change.node.users) > 1]
    if not both or both[0] is both[1] or apart or total.readers != [reader]:
        return None
    norms = [_norm_of(graph, value, total, shapes, call, places) for value in both]
    is_swapped = norms[0][0] is None and total.target not in _IN_PLACE  # x += norm(y) changes x
    (norm, dim), (other, its_dim) = norms[::-1] if is_swapped else norms
    if norm is None:
        return None
    return Pair(graph, norm, call, dim, "before", other if dim == its_dim else None, total, is_swapped)


def _with_sum_behind(pair: Optional[Pair], total: Call) -> Optional[Pair]:
    """A pair whose spikes a call adds to something, so that the neuron's kernel can; None where it cannot."""
    if pair is None or pair.shortcut or pair.neuron.readers != [total] or len(pair.neuron.node.users) > 1:
        return None
    both = total.summands
    changes_other = total.target in _IN_PLACE and both[0] is not pair.neuron
    return None if both[0] is both[1] or changes_other else pair._replace(shortcut="after", total=total)


def _norm_of(
    graph: Graph,
    value: Call,
    reader: Call,
    shapes: Sequence[Call],
    neuron: Call,
    places: Mapping[nn.Module, int],
) -> Tuple[Optional[Call], int]:
    """The normalisation whose output a value is, if ``reader`` alone reads it and changes its shape so, and the
    dimension of its channels in a time step of the neuron.
    """
    norm, reader, before = _behind_shapes(value, reader)
    plain = norm.kind == "module" and is_plain_norm(norm.module) and norm.source is not None
    if not plain or norm.readers != [reader] or not _is_alone(graph, norm, places):
        return None, 0
    dim = _channel_dim(norm, [*before, *shapes], neuron)
    return (norm, dim) if dim else (None, 0)


def _behind_shapes(value: Any, reader: Call, identities: bool = True) -> Tuple[Call, Call, List[Call]]:
    """What a value is but for identities and changes of shape that nothing else reads; its reader then, and the changes
    in order.
    """
    shapes: List[Call] = []
    while value.readers == [reader] and value.source and (_is_shape(value) or (identities and _is_identity(value))):
        shapes = [value, *shapes] if _is_shape(value) else shapes
        reader, value = value, value.source
    return value, reader, shapes


def _is_identity(call: Call) -> bool:
    return call.layer in (nn.Identity, NormPlace) and not call.is_hooked


def _is_shape(call: Call) -> bool:
    return call.kind in ("function", "method") and call.function in _SHAPES and not call.kwargs


def _is_alone(graph: Graph, call: Call, places: Mapping[nn.Module, int]) -> bool:
    """Whether a module is called once, with one value, is at one place, and none of its tensors is read as such."""
    reads = any(other.kind == "attribute" and other.name.startswith(f"{call.name}.") for other in graph.calls)
    once = len(graph.calls_of(call.module)) == 1 == places[call.module]
    return once and len(call.args) == 1 and not call.kwargs and not reads


# -- where the channels are


def _channel_dim(norm: Call, shapes: Sequence[Call], neuron: Call) -> int:
    """The dimension of a time step that has the channels of a normalisation behind changes of shape: 1, or -1 for the
    last one; 0 where that is not known, or time is not in front.

    Sizes are not known, but the number of dimensions is: each has a letter, S for samples, T and B for time and batch.
    """
    many = neuron.module.step == "multi"
    dims = _DIMS[type(norm.module)]
    if dims == "SC*" and shapes:
        dims = _dims_of_tokens(norm)
    is_folded = norm.is_folded
    for shape in shapes:
        if is_folded and not shape.is_folded:
            dims, is_folded = dims.replace("S", "TB"), False
        dims = _reshaped(dims, shape) if shape.is_folded == is_folded else ""
    dims = dims.replace("S", "TB") if is_folded else dims
    if not dims.startswith("T" if many else "S") or "C" not in dims:
        return 0
    of_norm = {nn.BatchNorm1d: (3, 4), nn.BatchNorm2d: (5,), nn.BatchNorm3d: (6,)}[type(norm.module)]
    step = dims[1:] if many else dims
    if step[1] == "C" and (dims.endswith("*") or len(step) + 1 in of_norm):
        return 1
    return -1 if step[-1] == "C" and type(norm.module) is nn.BatchNorm1d else 0


def _dims_of_tokens(norm: Call) -> str:
    """The dimensions of what nn.BatchNorm1d gives: tokens ``SCN`` or a matrix ``SC``, where its input says so."""
    source: Any = norm.source
    if _exchanges_last(source, norm) or isinstance(source.module, nn.Conv1d) or _has_sizes(source, 3):
        return "SCN"
    flat = source.source if source.kind == "module" and len(source.args) == 1 else source
    is_matrix = flat is not None and (_has_sizes(flat, 2) or _flattens_tokens(flat))
    return "SC" if is_matrix else "SC*"


def _reshaped(dims: str, shape: Call) -> str:
    """The dimensions behind a change of shape; "" where they are not known."""
    name, numbers, is_open = shape.function, _numbers(shape), dims.endswith("*")
    if name == "contiguous" or not dims:
        return dims
    if name == "unflatten":
        sizes = numbers[1:]
        if numbers[:1] != (0,) or dims[0] != "S" or len(sizes) not in (2, 3) or (is_open and len(sizes) > 2):
            return ""
        return "TBN"[: len(sizes)] + dims[1:]
    if is_open:
        return ""
    if name in ("reshape", "view"):
        added = len(numbers) - len(dims)
        # of a matrix the rows become tokens as well
        unfolds = dims[0] == "S" and (added == 1 or (added == 2 and dims == "SC"))
        return "TBN"[: added + 1] + dims[1:] if unfolds else ""
    if not all(isinstance(n, int) and -len(dims) <= n < len(dims) for n in numbers):
        return ""
    order = [n % len(dims) for n in numbers]
    if name == "permute":
        return "".join([dims[n] for n in order]) if sorted(order) == [*range(len(dims))] else ""
    if len(order) != 2:
        return ""
    first, last = order
    if name == "transpose":
        letters = [*dims]
        letters[first], letters[last] = letters[last], letters[first]
        return "".join(letters)
    joined = dims[first : last + 1]
    return "" if set(joined) & {"C", "T", "S"} else dims[:first] + "X" + dims[last + 1 :]


def _numbers(shape: Call) -> Tuple[Any, ...]:
    """The arguments of a change of shape, sizes given one by one or together."""
    numbers: List[Any] = []
    for argument in shape.args[1:]:
        numbers += argument if isinstance(argument, (tuple, list)) else [argument]
    return tuple(numbers)


def _exchanges_last(source: Call, norm: Call) -> bool:
    """Whether a value is one with its last two dimensions exchanged, of three as the normalisation has them."""
    if not _is_shape(source) or len(source.node.users) != 1:
        return False
    dims, order = ({2, 3}, (0, 1, 3, 2)) if norm.is_folded and not source.is_folded else ({1, 2}, (0, 2, 1))
    numbers = _numbers(source)
    if source.function == "permute":
        return numbers == order
    return source.function == "transpose" and set(numbers) in (dims, {-1, -2})


def _flattens_tokens(value: Call) -> bool:
    return _is_shape(value) and value.function == "flatten" and _numbers(value) in ((0, 2), (0, -2))


def _has_sizes(value: Call, count: int) -> bool:
    """Whether a value was given so many sizes."""
    return _is_shape(value) and value.function in ("reshape", "view") and len(_numbers(value)) == count


# -- the graph of a block that adds no more


class _Blocks:
    """The graphs of blocks, out of which sums are taken."""

    def __init__(self) -> None:
        self._graphs: Dict[Any, Optional[Graph]] = {}
        self.changed: Dict[nn.Module, fx.Graph] = {}

    def take_sum(self, pair: Pair) -> bool:
        """Take the sum of a pair out of the graph of the block that makes it; whether that is possible."""
        block = pair.total.owner  # type: ignore[union-attr]  # it has a sum
        if block not in self._graphs:
            # the arguments of a graph of the block alone are values
            self._graphs[block] = read_block(block) if pair.graph.followed[block] else None
        graph = self._graphs[block]
        take = _take_before if pair.shortcut == "before" else _take_behind
        if graph is None or not take(graph, pair):
            return False
        self.changed[block] = graph.fx
        return True


def _take_before(graph: Graph, pair: Pair) -> bool:
    """Have a neuron be called with the two values whose sum it gets."""
    (call,) = graph.calls_of(pair.neuron.module)
    total, _, shapes = _behind_shapes(call.source, call, identities=False)
    x, skip = total.node.args[::-1] if pair.is_swapped else total.node.args
    with graph.fx.inserting_before(call.node):
        if shapes and pair.shortcut_norm is None:
            skip = graph.fx.call_method("expand_as", (skip, x))  # it may have been of another shape
        for shape in shapes:
            kind, target, (_, *sizes), keywords = shape.node.op, shape.node.target, shape.node.args, shape.node.kwargs
            x, skip = [graph.fx.create_node(kind, target, (value, *sizes), keywords) for value in (x, skip)]
    call.node.args = (x, skip)
    for change in (*shapes[::-1], total):
        graph.fx.erase_node(change.node)
    return True


def _take_behind(graph: Graph, pair: Pair) -> bool:
    """Have a neuron, the last part of a chain that the block calls, be called with what is added to its spikes."""
    sums = [(total, spikes) for total in graph.calls for spikes in total.summands if spikes.module is not None]
    for total, spikes in sums:
        parts = _parts(spikes.module, spikes.name)
        if parts[-1][1] is not pair.neuron.module:
            continue
        value, node = spikes.node.args[0], total.node
        shortcut = node.args[1] if node.args[0] is spikes.node else node.args[0]
        with graph.fx.inserting_before(spikes.node):
            for path, _ in parts[:-1]:
                value = graph.fx.call_module(path, (value,))
        with graph.fx.inserting_before(node):
            node.replace_all_uses_with(graph.fx.call_module(parts[-1][0], (value, shortcut)))
        graph.fx.erase_node(node)
        graph.fx.erase_node(spikes.node)
        return True
    return False


def _parts(module: nn.Module, path: str) -> List[Tuple[str, nn.Module]]:
    """The paths and modules that a call of a chain calls, its last parts followed; a module itself elsewhere."""
    if not in_turn(module) or has_own_hooks(module):
        return [(path, module)]
    parts = [(f"{path}.{name}", part) for name, part in module._modules.items() if part is not None]
    return [*parts[:-1], *_parts(parts[-1][1], parts[-1][0])] if parts else [(path, module)]
