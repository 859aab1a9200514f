"""Groups of the calls of a network that begin and end where its values are spikes or counts.

The reader of networks gives the calls and says which values are whole numbers. A value of another kind, such as what a
convolution gives, stays within one group: the call that makes it and those that read it are of the same. So what is
kept between groups is bits.

- A value that pooling alone reads is not kept: the pooled one is.
- Groups that need each other's values are one.
- A sum that is read twice, and is all that later calls read, ends a group whatever it holds: the potentials that the
  blocks of a network hand on are kept whole.
- Changes of shape, sums and joins of spikes save nothing for backward, and the pooling layers of ``sc.fuse`` a byte a
  window or nothing: they are in no group.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from torch import fx, nn

from spikecore._base.bits import Whole
from spikecore.core.modules import makes_time
from spikecore.core.neuron import Neuron
from spikecore.encode import Poisson
from spikecore.graph import CONVOLUTIONS, DROPOUTS, Call, Graph, NotFollowed, function_of, readers_of
from spikecore.layers import NormNeuron, SequenceDropout, keeps_little, whole_numbers
from spikecore.stochastic import Stochastic

#: Layers, and functions of torch, that draw random numbers.
_RANDOM = (*DROPOUTS, SequenceDropout, Poisson, Stochastic)
_RANDOM_FUNCTIONS = (
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout bernoulli rand_like randn_like"
).split()
_POOLS = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)


#: The ranges of arguments, from the first one on; None for one that is kept as it is.
Wholes = Tuple[Optional[Whole], ...]


class Step(NamedTuple):
    """Some calls of a network: a group, or what is computed between groups.

    run: ``run(net, *inputs)`` gives a tuple, a value for each of ``outputs``. modules: those that are called.
    wholes: of each input the range of its values; None for one that is kept as it is. is_group: whether it is computed
    again in backward. compiles: whether a compiler finds something in it. draws: whether it draws random numbers.
    last: the inputs that no later step reads. title: its last layer, in words. end: of a group that ends with a neuron.
    """

    run: Callable[..., Tuple[Any, ...]]
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    modules: Tuple[nn.Module, ...]
    wholes: Wholes
    is_group: bool
    compiles: bool
    draws: bool
    last: Tuple[str, ...]
    title: str
    end: Optional[End]


class End(NamedTuple):
    """A group whose last call is a neuron's: what it reads, ``head(net, *inputs)``, and the layer of the neuron."""

    head: Callable[..., Tuple[Any, ...]]
    layer: nn.Module


def steps_of(graph: Graph) -> List[Step]:
    """The calls of a network as steps, in an order in which each has what it reads. Raises
    :class:`spikecore.graph.NotFollowed` where a change in place would be seen in another order, or twice.
    """
    for call in graph.calls:
        value = call.source if call.is_in_place else None
        while value is not None:
            if value.kind == "input" or len(value.readers) > 1:
                raise NotFollowed(
                    f"{call.title} changes the value of {value.title} in place, and groups of calls keep that; write "
                    "x = x + y for x += y, and inplace=False"
                )
            value = value.source if value.is_move else None
    known = whole_numbers(graph)
    light = {call for call in graph.calls if _saves_little(call, known)}
    parts = _ordered(_parts(graph, known, light))
    position = {call: number for number, part in enumerate(parts) for call in part}
    read = [_inputs_of(part) for part in parts]
    wanted = set(graph.output.inputs)
    lasts: Dict[Call, int] = {value: number for number, values in enumerate(read) for value in values}
    steps = []
    for number, part in enumerate(parts):
        outputs = [
            call for call in part if call in wanted or any(position.get(reader) != number for reader in _users(call))
        ]
        outputs = [call for call in outputs if call.kind != "attribute"]
        steps.append(
            Step(
                function_of(_graph(part, read[number], outputs)),
                tuple([value.node.name for value in read[number]]),
                tuple([call.node.name for call in outputs]),
                tuple(dict.fromkeys(call.module for call in part if call.module is not None)),
                tuple([known.get(value) for value in read[number]]),
                not light.issuperset(part),
                not all(map(_is_ready, part)),
                any(map(_draws, part)),
                tuple([v.node.name for v in read[number] if lasts[v] == number and v not in wanted]),
                next((call.title for call in reversed(part) if call.module is not None), part[-1].title),
                _end(part, read[number]),
            )
        )
    return steps


def _end(part: Sequence[Call], inputs: Sequence[Call]) -> Optional[End]:
    """The neuron that a group ends with, if it does, also with changes of shape behind it."""
    size = next((k for k in range(len(part), 0, -1) if not part[k - 1].is_move), 0)
    call = part[size - 1] if size else None
    if call is None or not isinstance(call.module, (Neuron, NormNeuron)) or call.is_hooked or call.kwargs:
        return None
    if not all(isinstance(value, Call) and value.kind != "attribute" for value in call.args):
        return None
    return End(function_of(_graph(part[: size - 1], inputs, call.args)), call.module)


def _users(call: Call) -> List[Call]:
    return [user for user in call.users if user.kind != "output"]


def _inputs_of(part: Sequence[Call]) -> List[Call]:
    """The values that calls read of others, each once."""
    own = set(part)
    return [*dict.fromkeys(v for call in part for v in call.inputs if v not in own and v.kind != "attribute")]


def _graph(part: Sequence[Call], inputs: Sequence[Call], outputs: Sequence[Call]) -> fx.Graph:
    """The graph of some calls; tensors of the network that they read are theirs."""
    graph = fx.Graph()
    nodes: Dict[fx.Node, fx.Node] = {value.node: graph.placeholder(value.node.name) for value in inputs}
    for call in part:
        for value in call.inputs:
            if value.kind == "attribute" and value.node not in nodes:
                nodes[value.node] = graph.node_copy(value.node)
        nodes[call.node] = graph.node_copy(call.node, nodes.__getitem__)
    graph.output(tuple([nodes[call.node] for call in outputs]))
    return graph


# -- which calls are one part


def _parts(graph: Graph, known: Dict[Call, Whole], light: Set[Call]) -> List[List[Call]]:
    """The calls in parts between which all values may be kept."""
    calls = [call for call in graph.calls if call.kind not in ("input", "output", "attribute")]
    ends = _ends(graph, known, light)
    merged = _Merged(calls)
    for call in calls:
        for value in call.inputs:
            changes = call.is_in_place and call not in light and value is call.source
            if value.kind not in ("input", "attribute") and (value not in ends or changes):
                merged.join(value, call)
    merged.without_cycles()
    return merged.parts()


def _ends(graph: Graph, known: Dict[Call, Whole], light: Set[Call]) -> Set[Call]:
    """The values between parts."""
    ends = {call for call in graph.calls if _is_size(call)}
    for call in known:
        only = call.users[0] if len(call.users) == 1 else None
        readers = readers_of(call)
        pooled = len(readers) == 1 and readers[0] not in light and issubclass(readers[0].layer or nn.Module, _POOLS)
        # a change of shape is computed again with its reader, so that what it got is kept once
        if not pooled and not (call.is_move and only is not None and only.kind != "output"):
            ends.add(call)
    live: Set[Call] = set()
    last = {value: call.position for call in graph.calls for value in call.inputs}
    for call in graph.calls:
        live = {value for value in live if last[value] > call.position}
        alone = all(value in ends and value not in known for value in live)
        if alone and call.summands and len(call.readers) > 1:
            ends.add(call)
        if last.get(call, -1) > call.position and call.kind != "attribute":
            live.add(call)
    return ends


def _is_size(call: Call) -> bool:
    """Tell whether a value is a size, a dtype or a device, or computed of these alone: no tensor."""
    if call.target is getattr:
        return call.describes
    if call.kind == "method" and call.function in ("size", "dim", "numel"):
        return True
    return call.kind == "function" and bool(call.inputs) and all(map(_is_size, call.inputs))


def _saves_little(call: Call, known: Dict[Call, Whole]) -> bool:
    """Tell whether autograd saves a byte a window for a call, or nothing."""
    is_pool = call.module is not None and keeps_little(call.module)
    is_light = call.is_move or call.is_join or bool(call.summands) or is_pool
    return _is_size(call) or (call in known and is_light)


def _is_ready(call: Call) -> bool:
    """Tell whether a compiler has nothing to do for a call: a product by a library, a neuron's kernel, a view."""
    kernels = isinstance(call.module, (Neuron, NormNeuron)) and not makes_time(call.module)
    return kernels or isinstance(call.module, (nn.Linear, *CONVOLUTIONS)) or call.is_move or _is_size(call)


def _draws(call: Call) -> bool:
    modules = [] if call.module is None else call.module.modules()
    return any(isinstance(part, _RANDOM) for part in modules) or call.function in _RANDOM_FUNCTIONS


class _Merged:
    """Calls in parts, which are joined."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._root = {call: call for call in calls}

    def root(self, call: Call) -> Call:
        """The call that stands for the part of one."""
        while self._root[call] is not call:
            call = self._root[call]
        return call

    def join(self, a: Call, b: Call) -> None:
        """Make one part of two; its first call stands for it."""
        first, second = sorted((self.root(a), self.root(b)), key=lambda call: call.position)
        self._root[second] = first

    def without_cycles(self) -> None:
        """Join parts that need each other."""
        while True:
            needs = self._needs()
            cycle = next(((a, b) for a in needs for b in needs[a] if a is not b and a in needs[b]), None)
            if cycle is None:
                return
            self.join(*cycle)

    def _needs(self) -> Dict[Call, Set[Call]]:
        """Of each part those that it needs, themselves or by others."""
        direct: Dict[Call, Set[Call]] = {}
        for call in self._calls:
            direct.setdefault(self.root(call), set()).update(self.root(v) for v in call.inputs if v in self._root)
        needs = {}
        for root in direct:
            seen: Set[Call] = set()
            waiting = [*direct[root]]
            while waiting:
                other = waiting.pop()
                if other not in seen and other is not root:
                    waiting += direct[other]
                seen.add(other)
            needs[root] = seen
        return needs

    def parts(self) -> List[List[Call]]:
        """The parts, each in the order of its calls."""
        parts: Dict[Call, List[Call]] = {}
        for call in self._calls:
            parts.setdefault(self.root(call), []).append(call)
        return [*parts.values()]


def _ordered(parts: Sequence[List[Call]]) -> List[List[Call]]:
    """Parts, each behind those whose values it reads, the first ones of the network first."""
    waiting, done, order = [*parts], set(), []
    there = {call for part in parts for call in part}
    while waiting:
        ready = next(part for part in waiting if all(v in done or v not in there for v in _inputs_of(part)))
        waiting.remove(ready)
        done.update(ready)
        order.append(ready)
    return order


# -- inputs of layers in turn


def whole_inputs(graphs: Sequence[Graph], layers: Sequence[nn.Module]) -> Wholes:
    """The ranges of the inputs of layers that are called one after the other, in all of their calls; as many as are
    known.
    """
    wholes: Set[Wholes] = set()
    for graph in graphs:
        own = {call for call in graph.calls if call.module in layers or any(map(call.owners.__contains__, layers))}
        if not own:
            continue
        known = whole_numbers(graph)
        if len(layers) == 1 and graph.calls_of(layers[0]):
            for call in graph.calls_of(layers[0]):
                wholes.add(tuple([known.get(v) if isinstance(v, Call) else None for v in call.args]))
        else:
            entering = {v for call in own for v in call.inputs if v not in own and v.kind != "attribute"}
            wholes.update((known.get(value),) for value in entering if not _is_size(value))
    return wholes.pop() if len(wholes) == 1 else ()
