"""A ``forward`` by a graph: that of one block, read and changed."""

from __future__ import annotations

import inspect
import keyword
import re
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

from torch import fx, nn
from torch.fx.node import map_aggregate

from spikecore.graph._calls import Graph
from spikecore.graph._read import NotFollowed, argument_names, read

#: Paths that the source text of a graph may have: names of modules come from files and dicts as well.
_PATH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


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
        self._run = _function(graph)
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


def _function(graph: fx.Graph) -> Any:
    """The graph as a function of the block and its inputs."""
    code = graph.python_code("self")
    names: Dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<rewritten by sc.fuse>", "exec"), names)
    return names["forward"]
