"""Graphs for tools that change a network in place: they hold in any mode, and where the whole cannot be followed, they
are of its parts.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Set

import torch
from torch import Tensor, nn

from spikecore.graph._calls import Graph
from spikecore.graph._read import NotFollowed, argument_names, is_a_layer_unhooked, read


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
