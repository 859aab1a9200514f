"""Loading a graph: its nodes in the order in which they are computed, its loops, and the network of them."""

from __future__ import annotations

import copy
import dataclasses
import os
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np
import torch
from torch import nn

from spikecore.layers import Delay
from spikecore.neurons import Recurrent
from spikecore.surrogate import Surrogate
from spikecore.words import a_kind, shown
from spikecore_nir import _file
from spikecore_nir._conventions import CONVENTIONS, Convention, check_discretization, check_dt
from spikecore_nir._file import Refused, read_node
from spikecore_nir._layer_nodes import LAYER_NODES, check_past, steps_of
from spikecore_nir._neuron_nodes import NEURON_NODES, Reading, neuron_of
from spikecore_nir.modules import INPUT, Network, Unit

#: Levels of a name, which become modules one within the other, for which Python's stack has to do.
_LEVELS = 50


def load(
    path: Any,
    *,
    dt: Optional[float] = None,
    discretization: Optional[str] = None,
    convention: Union[str, Convention, None] = None,
    surrogate: Optional[Surrogate] = None,
    max_bytes: int = _file.MAX_BYTES,
) -> Network:
    r"""Read a graph of NIR as a network, ``[T, B, *N] -> [T, B, *M]``, whose modules have the names of its nodes.

    A file that :func:`save` wrote needs no argument: it gives the same neurons with the same numbers. One of another
    library holds equations in continuous time. They become steps as :class:`Convention` says::

        v' = v_leak + decay (v - v_leak) + gain x        decay = 1 - dt/tau    discretization="euler"
        z  = [v' > v_threshold]                          decay = exp(-dt/tau)  discretization="exp"
        v'' = v_reset where z, else v'                   gain  = R (1 - decay)

    and for IF ``gain = R dt``; the current of CubaLIF first, then its membrane. At ``dt/tau = 0.5`` the two decays are
    0.5 and 0.607, so neither is a default. That is NIR's meaning; what a library computes from its own file may differ
    (it subtracts at a reset, fires at the threshold, takes the input as a jump), which ``convention`` says.

    path: a file, or a graph of the package nir.
    dt: the time step in the unit of the file's time constants, seconds in NIR.
    discretization: ``"euler"`` or ``"exp"``.
    convention: the library that wrote the file, ``"snntorch"``, ``"norse"``, ``"sinabs"``, ``"rockpool"`` or
        ``"spikingjelly"`` (:data:`CONVENTIONS`), or a :class:`Convention`; it has the discretisation and a dt.
    surrogate: that of the neurons which do not come from :func:`save`; None for the default.
    max_bytes: the memory that the arrays of a file may take together, and the past of one sample in a delay.

    Neurons of other libraries become :class:`NIRLIF`, :class:`NIRLI`, :class:`NIRCubaLIF` and :class:`NIRCubaLI`.
    Parameters that are the same for all neurons become numbers, others tensors, per channel where that is enough. A
    neuron whose output comes back through a layer becomes :class:`spikecore.Recurrent`: the output comes back one step
    later.

    A file may be a stranger's: modules get the names of nodes with ``_`` for all but ASCII letters, digits and dots,
    and ``net.places`` has their paths by the names in the file. Only classes, settings, surrogates and numbers that
    :func:`save` writes are taken from its metadata, and a file that refers to other files, or is larger than
    ``max_bytes``, is refused.

    ``net.formats`` has the formats of a prepared network that the file has, as :func:`save` was given them; the network
    computes in floats, and ``sc.quant.restored(net, net.formats)`` is the prepared one.

    Raises ValueError for what the file leaves open, for nodes and loops that have no module here, by name, and for
    whatever else a file holds that cannot be read; OSError if the file cannot be opened; TypeError for arguments of
    wrong types; ImportError without the package nir.
    """
    like = _convention(dt, discretization, convention)
    if surrogate is not None and not isinstance(surrogate, Surrogate):
        raise TypeError(f"sc.nir.load: surrogate={surrogate!r} must be one of sc.surrogate")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
        raise ValueError(f"sc.nir.load: max_bytes={shown(max_bytes)} must be a whole number above 0")
    nir = _file.package()
    of_file = isinstance(path, (str, os.PathLike))
    if not of_file and not isinstance(path, nir.NIRNode):
        raise TypeError(f"sc.nir.load: path={path!r} must be a file's name or a graph of the package nir")
    try:
        graph = _file.read(path, max_bytes) if of_file else _in_numpy(path)
        if not isinstance(graph, nir.NIRGraph):
            node = graph
            graph = read_node("", node, lambda: nir.NIRGraph.from_list(node, type_check=False))
        how = _reading(graph, dt, discretization, like, surrogate, max_bytes)
        net = _network(Graph(graph), how)
        net.formats = _formats(net, _file.formats_of(graph))
    except Refused as error:
        where = f"{os.fspath(path)}: " if of_file else ""
        raise ValueError(f"sc.nir.load: {where}{error}") from error
    for sentence in how.warnings:
        warnings.warn(f"sc.nir.load: {sentence}", UserWarning, stacklevel=2)
    return net


def _in_numpy(node: Any) -> Any:
    """A node as a file would have it, with arrays of NumPy, whatever the writer gave."""
    node = copy.copy(node)
    for name, value in vars(node).items():
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            setattr(node, name, (value.float() if value.dtype == torch.bfloat16 else value).numpy())
        elif name == "nodes":
            node.nodes = {key: _in_numpy(each) for key, each in value.items()}
    return node


def _convention(dt: Any, way: Any, convention: Any) -> Optional[Convention]:
    """The convention that the caller gave, with the caller's time step."""
    if dt is not None:
        check_dt("sc.nir.load", dt)
    if way is not None:
        check_discretization("sc.nir.load", way)
    if isinstance(convention, str):
        if convention not in CONVENTIONS:
            raise ValueError(
                f"sc.nir.load: convention={convention!r} is none of {', '.join(CONVENTIONS)}; give a sc.nir.Convention"
            )
        convention = CONVENTIONS[convention]
    if convention is None:
        return None
    if not isinstance(convention, Convention):
        raise TypeError(f"sc.nir.load: convention={convention!r} must be a name or a sc.nir.Convention")
    if way not in (None, convention.discretization):
        raise ValueError(
            f"sc.nir.load: discretization={way!r}, and the convention has {convention.discretization!r}; give one"
        )
    return convention if dt is None else dataclasses.replace(convention, dt=dt)


def _reading(
    graph: Any, dt: Any, way: Any, convention: Optional[Convention], surrogate: Any, max_bytes: int
) -> Reading:
    options = {} if surrogate is None else {"surrogate": surrogate}
    if convention is not None:
        return Reading(convention, None, () if convention.dt else ("dt",), options, max_bytes)
    saved = None
    try:
        content = _file.content_of(graph.metadata)
        if content is not None:
            saved = content.get("dt"), content.get("discretization")
            if saved[0] is not None:
                check_dt(f"metadata {_file.KEY!r} is damaged", saved[0])
            if saved[1] is not None:
                check_discretization(f"metadata {_file.KEY!r} is damaged", saved[1])
            dt, way = saved[0] if dt is None else dt, saved[1] if way is None else way
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(f"the graph: {error}") from None
    lacking = [name for name, value in (("dt", dt), ("discretization", way)) if value is None]
    as_saved = saved if (dt, way) == saved and not lacking else None
    return Reading(Convention(way or "euler", dt), as_saved, lacking, options, max_bytes)


def _network(graph: Graph, how: Reading) -> Network:
    made: Dict[str, nn.Module] = {}
    for loop in graph.loops():
        _add_loop(graph, loop, how, made)
    _add_delays(graph, how, made)
    units = []
    for name in graph.in_order():
        module = made[name] if name in made else _module(name, graph.nodes[name], how)
        units.append(Unit(name, module, _sources(graph, name)))
    return Network(units, _sources(graph, Graph.OUTPUT))


def _formats(net: Network, said: Mapping[str, Any]) -> Dict[str, Any]:
    """Formats by the paths of modules in a network, which have them by the names of nodes."""
    formats: Dict[str, Any] = {}
    for name, value in said.items():
        inside = [unit for unit in net.places if f"{name}.".startswith(f"{unit}.")]
        if not inside:
            raise Refused(f"metadata {_file.FORMATS!r} has {shown(name)}, which is no node; remove it")
        unit = max(inside, key=len)
        formats[f"{net.places[unit]}{name[len(unit) :]}"] = value
    return formats


def _module(name: str, node: Any, how: Reading) -> nn.Module:
    kind = type(node).__name__
    read: Any = neuron_of if kind in NEURON_NODES else LAYER_NODES.get(kind)
    if read is None:
        known = ", ".join((*NEURON_NODES, *LAYER_NODES))
        raise Refused(f"node {name!r} is {a_kind(node)}, which has no module here; there are {known}")
    module: nn.Module = read_node(name, node, lambda: read(name, node, how))
    return module


def _sources(graph: Graph, name: str) -> Tuple[str, ...]:
    return tuple(INPUT if source == Graph.INPUT else source for source in graph.sources[name])


def _add_loop(graph: Graph, loop: Set[str], how: Reading, made: Dict[str, nn.Module]) -> None:
    """One neuron whose output comes back through layers, as Recurrent."""
    neurons = [name for name in loop if type(graph.nodes[name]).__name__ in NEURON_NODES]
    names = ", ".join(sorted(repr(name) for name in loop))
    if len(neurons) != 1:
        raise Refused(
            f"nodes {names} lead to each other with {len(neurons)} neurons in the loop, and a graph does "
            "not say which of its edges waits for a step; loops with one neuron are loaded, as sc.Recurrent. Take an "
            "edge out, load the rest, and write the loop over time yourself, with sc.set_step(net, 'single')"
        )
    (start,) = neurons
    chain: List[str] = []
    ahead = [name for name in graph.targets[start] if name in loop]
    while len(ahead) == 1 and ahead[0] != start:
        (each,) = ahead
        if len(graph.sources[each]) != 1 or len(graph.targets[each]) != 1:
            raise Refused(
                f"node {each!r} within the loop of {names} has edges to nodes outside of it; what comes "
                f"in and goes out must do so at the neuron, {start!r}"
            )
        chain.append(each)
        ahead = graph.targets[each]
    if len(ahead) != 1 or len(chain) + 1 != len(loop):
        raise Refused(f"the output of {start!r} comes back on several ways, {names}; wanted is one")
    name = graph.common_name([start, *chain]) or start
    neuron: Any = _module(start, graph.nodes[start], how)
    metadata = graph.nodes[start].metadata
    detach = isinstance(metadata, dict) and "spikecore_detach" in metadata
    made[name] = Recurrent(neuron, _feedback(graph, chain, how), detach=detach)
    graph.join([start, *chain], name)


def _feedback(graph: Graph, chain: List[str], how: Reading) -> nn.Module:
    kinds = [type(graph.nodes[name]).__name__ for name in chain]
    if "Delay" in kinds:
        if len(kinds) != 2 or kinds[0] != "Delay" or kinds[1] not in ("Affine", "Linear"):
            raise Refused(
                f"an output comes back through {', '.join(kinds)} ({', '.join(map(repr, chain))}); with a "
                "Delay, that must be Delay and then Affine or Linear"
            )
        return _delayed(graph, chain[0], chain[1], how)
    layers = [_module(name, graph.nodes[name], how) for name in chain]
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def _delayed(graph: Graph, delay: str, linear: str, how: Reading) -> nn.Module:
    node = graph.nodes[delay]

    def make() -> nn.Module:
        steps = steps_of(delay, node, how)
        longest = max(int(steps.max()), 1)
        saved = node.metadata.get("spikecore_max_delay") if isinstance(node.metadata, dict) else None
        if saved is not None:
            longest = max(int(np.asarray(saved)), longest)
            check_past(delay, node, longest, how)
        layer: Any = _module(linear, graph.nodes[linear], how)
        return Delay(layer, longest, delay=steps.to(torch.float32), per="input", learn=())

    module: nn.Module = read_node(delay, node, make)
    return module


def _add_delays(graph: Graph, how: Reading, made: Dict[str, nn.Module]) -> None:
    """Nodes ``p.delay`` and ``p.linear`` that follow each other, which sc.Delay is saved as."""
    for name in [name for name in graph.nodes if name.endswith(".delay")]:
        behind = name[:-5] + "linear"
        kinds = type(graph.nodes[name]).__name__, type(graph.nodes.get(behind)).__name__
        if kinds not in (("Delay", "Affine"), ("Delay", "Linear")):
            continue
        place = graph.common_name([name, behind])
        if place and graph.targets[name] == [behind] and graph.sources[behind] == [name]:
            made[place] = _delayed(graph, name, behind, how)
            graph.join([name, behind], place)


class Graph:
    """A graph without subgraphs, whose only nodes are those that compute; ``INPUT`` and ``OUTPUT`` are its ends.

    ``sources`` and ``targets`` have the names of the nodes before and behind each node, in the order of the edges.
    """

    # no file has such names, HDF5 takes them for paths
    INPUT, OUTPUT = "/input", "/output"

    def __init__(self, graph: Any) -> None:
        self.nodes: Dict[str, Any] = {}
        self.sources: Dict[str, List[str]] = {self.INPUT: [], self.OUTPUT: []}
        self.targets: Dict[str, List[str]] = {self.INPUT: [], self.OUTPUT: []}
        self._ends: List[str] = []
        start, end = self._take("", graph)
        self._add_edge(self.INPUT, start)
        self._add_edge(end, self.OUTPUT)
        for name in list(self.sources):
            self._check_twice(name)
        for name in self._ends:
            self._dissolve(name)
        for name in self.nodes:
            if not self.sources[name] or not self.targets[name]:
                lacks = "leads to it" if not self.sources[name] else "it leads to"
                raise Refused(f"node {name!r} has no edge that {lacks}, so it takes no part in the output")
        #: Levels of names, as ``a`` and ``a.b`` of ``a.b.c`` -> how many nodes have them.
        self._levels: Dict[str, int] = {}
        for name in self.nodes:
            self._count_levels(name, 1)

    def _take(self, prefix: str, graph: Any) -> Tuple[str, str]:
        """Add the nodes and edges of a graph; the names of its input and output."""
        ends: Dict[str, List[str]] = {"Input": [], "Output": []}
        #: Node -> where an edge to it ends, and where one from it begins: a subgraph's input and output.
        places: Dict[str, Tuple[str, str]] = {}
        for key, node in graph.nodes.items():
            name, kind = prefix + key, type(node).__name__
            if not name or name in self.sources:
                raise Refused(f"{name!r} cannot be the name of a node: it is empty, or another node has it")
            if name.count(".") > _LEVELS:
                raise Refused(f"node {name[:40]!r}... is in {name.count('.')} others; wanted are at most {_LEVELS}")
            if kind == "NIRGraph":
                places[key] = self._take(name + ".", node)
                continue
            places[key] = name, name
            self.sources[name], self.targets[name] = [], []
            if kind in ends:
                ends[kind].append(name)
                self._ends.append(name)
            else:
                self.nodes[name] = node
        for kind, names in ends.items():
            if len(names) != 1:
                where = f"subgraph {prefix[:-1]!r}" if prefix else "the graph"
                raise Refused(
                    f"{where} has {len(names)} nodes of type {kind} ({', '.join(names) or 'none'}), "
                    "wanted is one; join them, or load a part"
                )
        for source, target in graph.edges:
            for name in (source, target):
                if name not in places:
                    raise Refused(f"edge {source!r} -> {target!r} names a node that is not there: {name!r}")
            self._add_edge(places[source][1], places[target][0])
        return ends["Input"][0], ends["Output"][0]

    def _add_edge(self, source: str, target: str) -> None:
        self.targets[source].append(target)
        self.sources[target].append(source)

    def _dissolve(self, name: str) -> None:
        """Join what leads to an end with what it leads to, at its place in the order of the edges."""
        before, after = self.sources.pop(name), self.targets.pop(name)
        if name in before:
            raise Refused(f"node {name!r} leads to itself in a loop that is not delayed")
        for edges, nodes, others in ((self.sources, after, before), (self.targets, before, after)):
            for node in nodes:
                at = edges[node].index(name)
                edges[node][at : at + 1] = others
        for target in after:
            self._check_twice(target)

    def _check_twice(self, target: str) -> None:
        sources = self.sources[target]
        if len(set(sources)) < len(sources):
            source = next(each for each in sources if sources.count(each) > 1)
            raise Refused(f"edge {source!r} -> {target!r} is there twice; NIR adds an output once")

    def join(self, members: Sequence[str], name: str) -> None:
        """Take several nodes for one of this name, without the edges among them."""
        inside = set(members)
        sources = [each for member in members for each in self.sources[member] if each not in inside]
        targets = [each for member in members for each in self.targets[member] if each not in inside]
        for member in members:
            del self.nodes[member], self.sources[member], self.targets[member]
            self._count_levels(member, -1)
        self.nodes[name] = None
        self.sources[name], self.targets[name] = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
        self._count_levels(name, 1)
        for edges, others in ((self.targets, sources), (self.sources, targets)):
            for other in set(others):
                edges[other] = list(dict.fromkeys(name if each in inside else each for each in edges[other]))

    def loops(self) -> List[Set[str]]:
        """Nodes that lead back to themselves, those that lead to each other together (Kosaraju's algorithm)."""
        finished = [name for group in _searched(self.targets, (self.INPUT, *self.nodes)) for name in group]
        groups = [set(group) for group in _searched(self.sources, reversed(finished))]
        loops = [group for group in groups if len(group) > 1 or group & set(self.sources[next(iter(group))])]
        first = {name: position for position, name in enumerate(self.nodes)}
        return sorted(loops, key=lambda loop: min(first[name] for name in loop))

    def in_order(self) -> List[str]:
        """Names, each after all of its sources, without loops."""
        from graphlib import TopologicalSorter  # Python 3.9; nir needs 3.10

        position = {name: number for number, name in enumerate(self.nodes)}
        before = {name: [each for each in self.sources[name] if each != self.INPUT] for name in self.nodes}
        sorter = TopologicalSorter(before)
        sorter.prepare()
        order: List[str] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready(), key=position.__getitem__)
            order += ready
            sorter.done(*ready)
        return order

    def common_name(self, members: Sequence[str]) -> str:
        """The level that all members and nobody else are in, as ``rlif`` of ``rlif.lif``; "" if there is none."""
        levels = {name.rpartition(".")[0] for name in members}
        level = levels.pop() if len(levels) == 1 else ""
        return level if level and self._levels[level] == len(members) else ""

    def _count_levels(self, name: str, number: int) -> None:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            level = ".".join(parts[:length])
            self._levels[level] = self._levels.get(level, 0) + number


def _searched(edges: Mapping[str, Sequence[str]], starts: Iterable[str]) -> Iterator[List[str]]:
    """For each start the nodes that are reached from it first, each behind those that it leads to."""
    entered: Set[str] = set()
    for start in starts:
        if start in entered:
            continue
        entered.add(start)
        group, path = [], [(start, iter(edges[start]))]
        while path:
            name, ahead = path[-1]
            following = next((each for each in ahead if each not in entered), None)
            if following is None:
                path.pop()
                group.append(name)
            else:
                entered.add(following)
                path.append((following, iter(edges[following])))
        yield group
