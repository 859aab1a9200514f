"""The ``forward`` of a block as a graph of torch.fx, and a block whose graph was changed."""

from __future__ import annotations

import operator
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
from torch import fx, nn

from spikecore._base.bits import Whole, added, multiplied
from spikecore._shell.modules import in_turn
from spikecore.layers._packed import Follow

#: What adds two tensors in a graph: functions, and names of methods.
_SUMS = (operator.add, operator.iadd, torch.add, "add")
_PRODUCTS = (operator.mul, torch.mul, "mul")
#: Methods and functions that give the numbers that they get, in another shape.
_SHAPES = ("contiguous", "flatten", "permute", "reshape", "squeeze", "transpose", "unflatten", "unsqueeze", "view")


class _Proxy(fx.Proxy):
    """A value under way. ``a += b`` stays a change in place."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Traces one ``forward``: the modules that it calls stay calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def traced(block: nn.Module) -> Optional[fx.Graph]:
    """The graph of a block's ``forward``, None where it has none: where torch.fx cannot trace it, what it does depends
    on ``self.training``, it sets an attribute, or it changes something else than a sum in place.
    """
    modes = [(module, module.training) for module in block.modules()]
    attributes = dict(vars(block))
    graphs = []
    try:
        for training in (True, False):
            block.train(training)
            graphs.append(_Tracer().trace(block))
    except Exception:
        # a forward that reads sizes or values raises whatever it likes: nothing is known of it
        return None
    finally:
        for module, training in modes:
            module.training = training
        changed = {name for name, value in vars(block).items() if attributes.get(name, block) is not value}
        for name in changed:
            vars(block).pop(name)
        vars(block).update(attributes)
    in_place = any(
        (node.op == "call_method" and str(node.target).endswith("_")) or "inplace" in node.kwargs or "out" in node.kwargs
        for node in graphs[0].nodes
    )
    return None if changed - {"training"} or in_place or str(graphs[0]) != str(graphs[1]) else graphs[0]


def summands(node: Any) -> Tuple[fx.Node, ...]:
    """The two values that a node adds; none where it does something else."""
    adds = isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in _SUMS
    both = adds and len(node.args) == 2 and not node.kwargs and all(isinstance(v, fx.Node) for v in node.args)
    return node.args if both else ()


def ends_in(block: nn.Module, call: fx.Node) -> Optional[nn.Module]:
    """The module that computes the output of a call, chains followed."""
    module: Any = block.get_submodule(str(call.target))
    while in_turn(module):
        module = next((part for part in reversed([*module._modules.values()]) if part is not None), None)
    return module  # type: ignore[no-any-return]  # a module holds modules


def call_apart(graph: fx.Graph, block: nn.Module, call: fx.Node, at: fx.Node, other: fx.Node) -> fx.Node:
    """Write calls of the parts of a chain beside the call of the chain; that of the last part, which gets another value
    as well, stands before ``at``, and is given back.
    """
    value, path = call.args[0], str(call.target)
    module: Any = block.get_submodule(path)
    with graph.inserting_before(call):
        while in_turn(module):
            *front, (name, module) = [item for item in module._modules.items() if item[1] is not None]
            for before, _ in front:
                value = graph.call_module(f"{path}.{before}", (value,))
            path = f"{path}.{name}"
    with graph.inserting_before(at):
        return graph.call_module(path, (value, other))


class Rewritten:
    """The ``forward`` of one block by a graph in the place of its own. The block's modules stay where they are."""

    def __init__(self, block: nn.Module, graph: fx.Graph) -> None:
        self.block, self.graph = block, graph
        self._run = _function(graph)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """What ``forward`` gives."""
        return self._run(self.block, *args, **keywords)

    def __getstate__(self) -> Dict[str, Any]:
        return {"block": self.block, "graph": self.graph}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        vars(self).update(state)
        self._run = _function(self.graph)

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.layers.pack`."""
        values: Dict[Any, Optional[Whole]] = {}
        out = None
        inputs: Iterator[Optional[Whole]] = iter([known])
        for node in self.graph.nodes:
            of = [values.get(arg) for arg in node.args if isinstance(arg, fx.Node)]
            if node.op == "placeholder":
                values[node] = next(inputs, None)
            elif node.op == "call_module":
                inner = self.block.get_submodule(node.target)
                values[node] = follow(inner, of[0] if of else None)
                if len(of) > 1 and getattr(inner, "shortcut", None) == "after":
                    values[node] = added(values[node], of[1])
            elif node.target in _SUMS and len(of) == 2:
                values[node] = added(*of)
            elif node.target in _PRODUCTS and len(of) == 2:
                values[node] = multiplied(*of)
            elif getattr(node.target, "__name__", node.target) in _SHAPES:
                values[node] = of[0]
            elif node.op == "output":
                out = of[0] if len(of) == 1 else None
        return out


def _function(graph: fx.Graph) -> Any:
    """The graph as a function of the block and its inputs."""
    code = graph.python_code("self")
    names: Dict[str, Any] = dict(code.globals)
    exec(compile(code.src, "<rewritten by sc.fuse>", "exec"), names)
    return names["forward"]
