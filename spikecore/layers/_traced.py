"""The ``forward`` of a block as a graph of torch.fx, and a block whose graph was changed."""

from __future__ import annotations

import ast
import inspect
import keyword
import operator
import re
import textwrap
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from spikecore._base.bits import Whole, added, multiplied
from spikecore._shell.modules import in_turn, unwrapped

if TYPE_CHECKING:
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
    """The graph of a block's ``forward``; None where its text is no straight one (:func:`is_straight`), where torch.fx
    cannot trace it, where it changes something else than a sum in place, and where a name within the block is none
    that code can have.
    """
    if not is_straight(block) or not all(map(_is_plain, _names(block))):
        return None
    try:
        graph = _Tracer().trace(block)
    except Exception:
        # a forward that reads sizes or values raises whatever it likes: nothing is known of it
        return None
    in_place = any(
        (node.target is operator.iadd and len(node.args[0].users) > 1)
        or (node.op == "call_method" and str(node.target).endswith("_"))
        or node.kwargs.get("inplace")
        or "out" in node.kwargs
        for node in graph.nodes
    )
    return None if in_place else graph


def _names(block: nn.Module) -> Iterator[str]:
    """The names of modules, parameters and buffers within a block, which its graph may call or read."""
    for part in block.modules():
        yield from (*part._modules, *part._parameters, *part._buffers)


def _is_plain(name: str) -> bool:
    """Whether torch.fx can write a name into code: it escapes nothing."""
    return re.fullmatch(r"\w+", name, re.ASCII) is not None and not keyword.iskeyword(name)


# -- texts of which one trace stands for every call

#: Builtin functions whose result depends on their arguments alone, and on no type of a traced value.
_BUILTINS = ("dict", "enumerate", "float", "int", "len", "list", "max", "min", "range", "reversed", "tuple", "zip")
#: How names of torch begin that draw numbers, or that read or set a mode.
_OF_MODES = ("rand", "bernoulli", "normal", "poisson", "multinomial", "is_", "get_", "set_", "seed", "manual_seed")
#: The statements of such a text.
_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Pass, ast.If, ast.For)
#: Expressions that no such text has.
_NEVER = (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


def is_straight(block: nn.Module) -> bool:
    """Whether one trace of a ``forward`` stands for every call: its text assigns local names, and returns.

    Conditions and loops read attributes of ``self`` alone, whose values are then those of the trace; ``self.training``
    is read nowhere. It calls modules, methods of values, functions of torch and methods of its own that are such a
    text, too, and nothing for an effect alone. It has no default argument, and changes no attribute.
    """
    return _is_straight(block, type(block).forward)


def _is_straight(block: nn.Module, method: Callable[..., Any]) -> bool:
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False  # there is no text, as of a method that was written in a console
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    arguments = function.args
    if arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        return False
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    text = _Text(block, getattr(method, "__globals__", {}), function)
    return all(text.allows(node) for statement in body for node in ast.walk(statement))


class _Text:
    """What the text of a method of a block may have."""

    def __init__(self, block: nn.Module, names: Mapping[str, Any], function: ast.FunctionDef) -> None:
        self.block, self.globals = block, names
        self.itself, *arguments = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
        stored = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        self.local = {*arguments, *[node.id for node in stored]}

    def allows(self, node: ast.AST) -> bool:
        """Whether a node is one of a text of which one trace stands for every call."""
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            return False
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, ast.Add)
        if isinstance(node, (ast.If, ast.IfExp)):
            return self._is_of_block(node.test)
        if isinstance(node, (ast.For, ast.comprehension)):
            return all(map(self._is_of_block, [node.iter, *getattr(node, "ifs", ())]))
        if isinstance(node, ast.Compare):
            return self._is_of_block(node)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return isinstance(node.ctx, ast.Load) and getattr(node, "attr", "") != "training"
        if isinstance(node, ast.Call):
            return self._is_known(node.func)
        return not isinstance(node, _NEVER)

    def _is_of_block(self, expression: ast.expr) -> bool:
        """Whether an expression reads attributes of the block, numbers and builtins alone."""
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        return names <= {self.itself, *_BUILTINS}

    def _is_known(self, called: ast.expr) -> bool:
        """Whether a call is one of the block, of torch, of a method of a value, or of a builtin."""
        path: List[str] = []
        while isinstance(called, (ast.Attribute, ast.Subscript)):
            # an entry of a list of modules, or of a value, stands for all of its entries
            path = [called.attr, *path] if isinstance(called, ast.Attribute) else []
            called = called.value
        if not isinstance(called, ast.Name) or called.id in self.local:
            return True  # a method of a value
        if called.id == self.itself:
            return self._is_of_module(path)
        if called.id in _BUILTINS and not path:
            return called.id not in self.globals
        value = self.globals.get(called.id)
        module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        of_torch = isinstance(module, str) and module.partition(".")[0] in ("torch", "spikecore")
        return of_torch and not any(name.startswith(_OF_MODES) for name in (*path, called.id))

    def _is_of_module(self, path: Sequence[str]) -> bool:
        """Whether a path from the block leads to a module, to a method of a tensor, or to a method with such a text."""
        method = getattr(type(self.block), path[0], None) if len(path) == 1 else None
        if inspect.isfunction(method):
            of_class = path[0] not in vars(nn.Module) and path[0] not in vars(self.block)
            return of_class and _is_straight(self.block, method)
        value: Any = self.block
        for name in path:
            if isinstance(value, torch.Tensor):
                return True
            value = getattr(value, name, None)
        return value is None or isinstance(value, nn.Module)  # None where a condition leaves the call out


# -- what is in a graph


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
    """Replace a call of a chain by calls of its parts. The last part also gets ``other``, its call stands before ``at``
    and is the result.
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
    """The dimension of a time step that has the channels of a normalisation of samples, behind the calls ``shapes``,
    which reshape its output: 1, or -1 for the last one; 0 if that is not known. ``before``: the module in front of it.

    It is known for tokens that are transposed before and behind the normalisation (Zhou et al., 2023), and where time
    and batch, and maybe tokens, become dimensions again. A call raises where sizes are not what the shapes say.
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
    of_user = not type(module).__module__.startswith("torch.") and "forward" not in vars(module)
    return of_user and not in_turn(module) and unwrapped(module) is module and any(True for _ in module.children())


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
    spikes = follow(module, of[1] if shortcut == "before" else of[0] if of else None)
    return added(spikes, of[1]) if shortcut == "after" else spikes


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
