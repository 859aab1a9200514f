"""Graphs for tools that change a network in place: they hold in any mode, and where the whole cannot be followed, they
are of its parts. A block is read alone, and its ``forward`` is then one by the changed graph.
"""

from __future__ import annotations

import inspect
import keyword
import re
from typing import Any, Collection, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from spikecore.graph._calls import Graph
from spikecore.graph._read import NotFollowed, argument_names, is_a_layer_unhooked, read

#: Paths that the source text of a graph may have: names of modules come from files and dicts as well.
_PATH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


class Parts(NamedTuple):
    """Graphs of a network, and why the other modules are not followed."""

    graphs: List[Graph]
    reasons: Dict[nn.Module, NotFollowed]


def read_parts(net: nn.Module) -> Parts:
    """One graph of a network, where its ``forward`` can be followed and is the same in any mode.

    Elsewhere a module that cannot be followed is one call of the graph around it. What it holds has graphs of its own,
    and so has what a module with hooks or a layer holds. They assume that a layer of such a part is called in that part
    alone.
    """
    reasons: Dict[nn.Module, NotFollowed] = {}
    graphs: Dict[nn.Module, Graph] = {}
    seen: Set[nn.Module] = set()

    def graph_of(module: nn.Module) -> None:
        try:
            graphs[module] = graphs[module] if module in graphs else _in_any_mode(module, reasons)
        except NotFollowed as error:
            reasons[module] = error

    def visit(module: nn.Module) -> List[Graph]:
        """The graph of a module, and those of what its calls hold."""
        if module in seen or not any(True for _ in module.children()):
            return []
        seen.add(module)
        if module not in reasons and not is_a_layer_unhooked(module):
            graph_of(module)
        if module not in graphs:
            return [graph for part in module.children() for graph in visit(part)]
        called = [call.module for call in graphs[module].calls if call.module is not None]
        return [graphs[module], *(graph for part in called for graph in visit(part))]

    if not is_a_layer_unhooked(net):
        graph_of(net)
    if net in reasons:
        # what a module holds before the module: each is one call to those around it, or is followed
        for module in reversed([*net.modules()]):
            if module is not net and any(True for _ in module.children()) and not is_a_layer_unhooked(module):
                graph_of(module)
        del reasons[net]
        graph_of(net)
    return Parts(visit(net), reasons)


def _in_any_mode(net: nn.Module, leaves: Dict[nn.Module, Any]) -> Graph:
    """The graph of a network that is the same in ``train()`` with gradients and in ``eval()`` without. Raises
    :class:`NotFollowed`.
    """
    if argument_names(net) is None:
        raise NotFollowed(
            f"forward of {type(net).__name__} has arguments with a default, or any number of them: calls may differ"
        )
    # not by train(), which a class may override
    modes = [(vars(module), module.training) for module in net.modules() if "training" in vars(module)]
    graphs = []
    try:
        for mode in (False, True):
            for attributes, _ in modes:
                attributes["training"] = mode
            with torch.set_grad_enabled(mode):
                graphs.append(read(net, is_leaf=leaves.__contains__, inside=True))
    finally:
        for attributes, before in modes:
            attributes["training"] = before
    if not _same(*graphs):
        raise NotFollowed(
            f"forward of {type(net).__name__} is another one in train() than in eval(), or in every call: it reads "
            "self.training or a mode of torch, or draws numbers"
        )
    return graphs[1]


def _same(a: Graph, b: Graph) -> bool:
    """Tell whether two graphs say the same calls with the same arguments and constants."""

    def said(graph: Graph) -> List[Any]:
        return [(n.name, n.op, n.target, repr(n.args), repr(n.kwargs)) for n in graph.fx.nodes]

    constants = [(value, b.tensors.get(name)) for name, value in a.tensors.items()]
    return said(a) == said(b) and all(x is y or _equal(x, y) for x, y in constants)


def _equal(x: Any, y: Any) -> bool:
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.dtype == y.dtype and torch.equal(x, y)


# -- one block


def read_block(block: nn.Module, apart: Collection[nn.Module]) -> Optional[Graph]:
    """The graph of the ``forward`` of a block alone, to be changed: what it calls are modules by their paths, and what
    the modules ``apart`` call.

    None where a graph cannot stand in its place: it has arguments with a default or any number of them, or constants,
    or names that no source text may have.
    """
    arguments = argument_names(block)
    if arguments is None:
        return None
    try:
        graph = read(block, inputs=len(arguments), is_leaf=lambda module: module not in apart, inside=True)
    except NotFollowed:
        return None
    names = iter(arguments)
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            node.target = next(names)
        elif node.op in ("call_module", "get_attr"):
            root, _, path = str(node.target).partition(".")
            if root != "net" or not _PATH.fullmatch(path) or any(map(keyword.iskeyword, path.split("."))):
                return None
            node.target = path
    return graph


class Rewritten:
    """The ``forward`` of one block by a graph in the place of its own. The block's modules stay where they are."""

    #: To a reader it is no forward of the module's own: it is followed.
    is_graph = True

    def __init__(self, block: nn.Module, graph: fx.Graph) -> None:
        self.block, self.graph = block, graph
        self._run = function_of(graph)
        # what inspect.signature gives, to readers and others
        self.__signature__ = inspect.signature(self._run.__get__(block))

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The outputs of the block."""
        return self._run(self.block, *args, **keywords)

    def __getstate__(self) -> Dict[str, Any]:
        return {"block": self.block, "rows": _rows(self.graph)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(state["block"], _graph(state["rows"]))  # type: ignore[misc]  # all of it is made of these two


class _Value:
    """A node as an argument of others, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name


def _rows(graph: fx.Graph) -> List[Tuple[Any, ...]]:
    """A graph as a list: pickle would follow its nodes, one within the other."""

    def named(value: Any) -> Any:
        return _Value(value.name) if isinstance(value, fx.Node) else value

    rows = []
    for node in graph.nodes:
        args, keywords = map_aggregate(node.args, named), map_aggregate(node.kwargs, named)
        rows.append((node.op, node.target, args, keywords, node.name))
    return rows


def _graph(rows: Sequence[Tuple[Any, ...]]) -> fx.Graph:
    graph = fx.Graph()
    nodes: Dict[str, fx.Node] = {}

    def node(value: Any) -> Any:
        return nodes[value.name] if isinstance(value, _Value) else value

    for op, target, args, keywords, name in rows:
        nodes[name] = graph.create_node(op, target, map_aggregate(args, node), map_aggregate(keywords, node), name)
    return graph


def function_of(graph: fx.Graph) -> Any:
    """The graph as a function of the module that it is of and of its inputs."""
    code = graph.python_code("self")
    names: Dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<rewritten by sc.fuse>", "exec"), names)
    return names["forward"]
