"""The ``forward`` of a block as a graph of torch.fx, and a block whose graph was changed."""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from spikecore._base.bits import Whole, added, multiplied
from spikecore._base.context import autocast_dtype
from spikecore._shell.modules import in_turn, unwrapped

if TYPE_CHECKING:
    from spikecore.layers._packed import Follow

#: What adds two tensors in a graph: functions, and names of methods.
_SUMS = (operator.add, operator.iadd, torch.add, "add")
_PRODUCTS = (operator.mul, torch.mul, "mul")
#: Methods and functions that give the numbers that they get, in another shape.
_SHAPES = ("contiguous", "flatten", "permute", "reshape", "squeeze", "transpose", "unflatten", "unsqueeze", "view")


class _Proxy(fx.Proxy):
    """A value under way. ``a += b`` stays a change in place; others would become new values, so they raise."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def _refuse(self, other: Any) -> Any:
        raise RuntimeError("of changes in place a graph has sums alone")

    __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = _refuse
    __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _refuse


def _modes() -> Tuple[Any, ...]:
    return torch.is_grad_enabled(), autocast_dtype("cpu"), autocast_dtype("cuda")


class _Tracer(fx.Tracer):
    """Traces one ``forward``: the modules that it calls stay calls. Raises where it sets a mode, which no graph has."""

    def __init__(self) -> None:
        super().__init__()
        self._modes = _modes()

    def create_proxy(self, *args: Any, **keywords: Any) -> Any:
        if _modes() != self._modes:
            raise RuntimeError("a graph has no torch.no_grad() and no torch.autocast()")
        return super().create_proxy(*args, **keywords)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Kept:
    """A dict of attributes as it was, with the lists and dicts in it."""

    def __init__(self, attributes: Dict[str, Any]) -> None:
        inner = [value for value in attributes.values() if isinstance(value, (list, dict))]
        self._kept = [(value, copy.copy(value)) for value in [attributes, *inner]]

    def restore(self) -> bool:
        """Give them back what they had; whether that is something else than what they have."""
        changed = [(now, old) for now, old in self._kept if not _same(now, old)]
        for now, old in changed:
            now.clear()
            now.update(old) if isinstance(now, dict) else now.extend(old)
        return bool(changed)


def _same(one: Any, other: Any) -> bool:
    """Whether two lists or dicts have the same objects."""
    if isinstance(one, dict):
        return _same([*one], [*other]) and _same([*one.values()], [*other.values()])
    return len(one) == len(other) and all(map(operator.is_, one, other))


def traced(block: nn.Module) -> Optional[fx.Graph]:
    """The graph of a block's ``forward``, None where it has none: where torch.fx cannot trace it, what it does depends
    on ``self.training``, an argument has a default, it sets an attribute or a mode, it changes a list or dict that is
    an attribute, or it changes something else than a sum in place.
    """
    modes = [(module, module.training) for module in block.modules()]
    grad, before = torch.is_grad_enabled(), _modes()
    kept = [_Kept(vars(module)) for module, _ in modes]
    graphs = []
    try:
        for training in (True, False):
            for module, _ in modes:
                module.training = training
            graphs.append(_Tracer().trace(block))
    except Exception:
        # a forward that reads sizes or values raises whatever it likes: nothing is known of it
        return None
    finally:
        changed = _modes() != before
        torch.set_grad_enabled(grad)
        for module, training in modes:
            module.training = training
        for attributes in kept:
            changed = attributes.restore() or changed
    in_place = any(
        (node.target is operator.iadd and len(node.args[0].users) > 1)
        or (node.op == "call_method" and str(node.target).endswith("_"))
        or {"inplace", "out"}.intersection(node.kwargs)
        for node in graphs[0].nodes
    )
    # of an argument with a default the graph has what a forward does that is given one
    defaults = any(node.op == "placeholder" and node.args for node in graphs[0].nodes)
    return None if changed or in_place or defaults or str(graphs[0]) != str(graphs[1]) else graphs[0]


def summands(node: Any) -> Tuple[fx.Node, ...]:
    """The two values that a node adds; none where it does something else."""
    return _operands(node, _SUMS)


def _operands(node: Any, targets: Sequence[Any]) -> Tuple[fx.Node, ...]:
    """The two values that a node calls one of the targets with; none where it has other arguments."""
    calls = isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets
    both = calls and len(node.args) == 2 and not node.kwargs and all(isinstance(v, fx.Node) for v in node.args)
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


def without_shapes(value: fx.Node) -> Tuple[fx.Node, List[fx.Node]]:
    """The value that others are the shapes of, and what changes its shape, in order; each has one user."""
    shapes: List[fx.Node] = []
    while _shapes(value) and len(value.users) == 1:
        shapes.insert(0, value)
        value = value.args[0]  # type: ignore[assignment]  # a value, as _shapes() says
    return value, shapes


def in_shapes(graph: fx.Graph, value: fx.Node, shapes: Sequence[fx.Node]) -> fx.Node:
    """Write the same changes of shape for another value."""
    for shape in shapes:
        value = graph.create_node(shape.op, shape.target, (value, *shape.args[1:]), shape.kwargs)
    return value


def channels_behind(norm: Any, folded: bool, call: fx.Node, shapes: Sequence[fx.Node], before: Any) -> int:
    """Which dimension of a time step has the channels of a normalisation of samples, once its output was given other
    shapes: 1, or -1 for the last one; 0 where that is not known. ``before`` is the module that its input comes from.

    Known are tokens that are transposed before and behind (Zhou et al., 2023), and samples in front of which time and
    batch, and tokens maybe, become dimensions of their own. Where sizes are not what the shapes say, the call raises.
    """
    source: Any = call.args[0]
    if _swaps(source, folded):
        rest = shapes[1:] if shapes and _swaps(shapes[0], folded) else [source]
        return -1 if isinstance(norm, nn.BatchNorm1d) and all(map(_keeps_last, rest)) else 0
    unfolds = [shape for shape in shapes if _name(shape) != "contiguous"]
    if len(unfolds) != 1 or _name(unfolds[0]) not in ("unflatten", "reshape", "view"):
        return 0
    sizes = _sizes(unfolds[0])
    if _name(unfolds[0]) == "unflatten":
        if unfolds[0].args[1:2] != (0,):
            return 0
        sizes = (*sizes, *[None] * _SAMPLES[type(norm)])
    if isinstance(norm, nn.BatchNorm1d) and _is_matrix(source):
        return 1 if len(sizes) in (3, 4) and len(_sizes(unfolds[0])) == 2 else -1 if len(sizes) > 2 else 0
    # nn.BatchNorm1d takes matrices as well, which four sizes may give tokens
    shown = not isinstance(norm, nn.BatchNorm1d) or isinstance(before, nn.Conv1d) or _name(unfolds[0]) == "unflatten"
    return 1 if len(sizes) == 2 + _SAMPLES[type(norm)] and (shown or _has_sizes(source, 3)) else 0


#: Dimensions of a sample.
_SAMPLES = {nn.BatchNorm1d: 2, nn.BatchNorm2d: 3, nn.BatchNorm3d: 4}


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _shapes(node: Any) -> bool:
    """Whether a node gives a value another shape."""
    calls = isinstance(node, fx.Node) and node.op in ("call_method", "call_function") and _name(node) in _SHAPES
    return bool(calls and node.args and isinstance(node.args[0], fx.Node) and not node.kwargs)


def _swaps(node: Any, folded: bool) -> bool:
    """Whether it exchanges the last two of three dimensions, or of four, of which the first is folded into the next."""
    if not _shapes(node) or len(node.users) != 1:
        return False
    dims, order = ({2, 3}, (0, 1, 3, 2)) if folded else ({1, 2}, (0, 2, 1))
    permuted = _name(node) == "permute" and _sizes(node) == order
    return permuted or (_name(node) == "transpose" and set(node.args[1:]) in (dims, {-1, -2}))


def _sizes(node: fx.Node) -> Tuple[Any, ...]:
    """The sizes that a node is given, one by one or together."""
    args = node.args[2:] if _name(node) == "unflatten" else node.args[1:]
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)


def _keeps_last(node: fx.Node) -> bool:
    """Whether the last dimension stays, of ``[T * B, N, C]`` that becomes ``[T, B, N, C]``, if its size does."""
    name, args = _name(node), node.args[1:]
    if name == "flatten":
        return len(args) == 2 and args[1:] != (-1,)
    return name == "contiguous" or (name == "unflatten" and args[:1] == (0,)) or _has_sizes(node, 4)


def _is_matrix(value: Any) -> bool:
    """Whether a value has two dimensions, so far as the graph says: it was flattened, before a linear layer maybe."""
    if isinstance(value, fx.Node) and value.op == "call_module" and len(value.args) == 1:
        value = value.args[0]
    if not _shapes(value):
        return False
    flattened = _name(value) == "flatten" and value.args[1:] in ((0, 2), (0, -2))
    return flattened or _has_sizes(value, 2)


def _has_sizes(value: Any, count: int) -> bool:
    """Whether a value was given so many sizes."""
    return _shapes(value) and _name(value) in ("reshape", "view") and len(_sizes(value)) == count


class Rewritten:
    """The ``forward`` of one block by a graph in the place of its own. The block's modules stay where they are."""

    def __init__(self, block: nn.Module, graph: fx.Graph) -> None:
        self.block, self.graph = block, graph
        self._run = _function(graph)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """What ``forward`` gives."""
        return self._run(self.block, *args, **keywords)

    def __getstate__(self) -> Dict[str, Any]:
        return {"block": self.block, "rows": _rows(self.graph)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.block, self.graph = state["block"], _graph(state["rows"])
        self._run = _function(self.graph)


def graph_of(module: nn.Module) -> Optional[fx.Graph]:
    """The graph that ``sc.fuse`` put in the place of a block's ``forward``, None if there is none."""
    forward = vars(module).get("forward")
    return forward.graph if isinstance(forward, Rewritten) else None


def may_be_traced(module: nn.Module) -> bool:
    """Whether a module is a block with a ``forward`` of its own: none of torch's, and no wrapper."""
    own = not type(module).__module__.startswith("torch.") and "forward" not in vars(module)
    return own and not in_turn(module) and unwrapped(module) is module and any(True for _ in module.children())


def follow_graph(block: nn.Module, graph: fx.Graph, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
    """What comes out of a block, for :func:`spikecore.layers.pack`; ``known`` goes into its first input."""
    values: Dict[Any, Optional[Whole]] = {}
    out = None
    for node in graph.nodes:
        of = [values.get(arg) for arg in node.args if isinstance(arg, fx.Node)]
        if node.op == "placeholder":
            values[node], known = known, None
        elif node.op == "call_module":
            values[node] = _follow_call(block.get_submodule(str(node.target)), of, follow)
        elif summands(node):
            values[node] = added(*of)
        elif _operands(node, _PRODUCTS):
            values[node] = multiplied(*of)
        elif _shapes(node):
            values[node] = of[0]
        elif node.op == "output":
            out = of[0] if len(of) == 1 else None
    return out


def _follow_call(module: nn.Module, of: Sequence[Optional[Whole]], follow: Follow) -> Optional[Whole]:
    """What comes out of a module; of two inputs the second one is the shortcut of a ``NormNeuron``."""
    shortcut = getattr(module, "shortcut", None) if len(of) == 2 else None
    found = follow(module, of[1] if shortcut == "before" else of[0] if of else None)
    return added(found, of[1]) if shortcut == "after" else found


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
