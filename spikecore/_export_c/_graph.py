"""From a network to its calls in order: ``torch.fx`` follows one time step of it, and the example runs through it."""

from __future__ import annotations

import copy
import operator
import re
from functools import reduce
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from spikecore._shell.modules import has_own_hooks, unwrapped
from spikecore._shell.state import Stateful
from spikecore._transforms import unfuse
from spikecore.encode import Constant, Encoder
from spikecore.functional import set_step
from spikecore.lang.render import C_WORDS, LIKE_A_MACRO, ascii_name
from spikecore.layers import NormNeuron, SequenceDropout, TimeBatched
from spikecore.neuron import Neuron
from spikecore.nir import SumPool2d
from spikecore.quant._layers import round_input, round_output

#: Modules that give what they get, one step in ``eval()``.
_NOTHING = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    SequenceDropout,
    Constant,
)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_CONVS = (nn.Conv1d, nn.Conv2d)
_ADDITIONS = (operator.add, operator.iadd, torch.add)
#: Functions and methods that change the shape of a sample, whose numbers stay in their order.
_RESHAPING = ("flatten", "reshape", "view", "squeeze", "unsqueeze")


class Refused(ValueError):
    """A network that cannot be exported."""


class Call(NamedTuple):
    """One call of a step: a module, the ``"sum"`` of two values, a ``"view"`` of another shape, or the ``"input"``."""

    name: str
    #: What it is and where, for messages and comments.
    title: str
    what: Any
    #: Names of the calls whose values it takes.
    of: Tuple[str, ...]
    #: The shape of a sample of its value.
    shape: Tuple[int, ...]
    #: Which output of a neuron it is.
    output: int = 0


class Calls(NamedTuple):
    """A network as calls in their order, and what it made of an example."""

    calls: List[Call]
    #: The name of the call whose value is the network's.
    result: str
    #: ``[B, T, *N]``.
    inputs: Tensor
    outputs: Tensor


def calls_of(net: nn.Module, example: Tensor) -> Calls:
    """The calls of one step of ``net``, on which nothing changes. ``example`` is ``[T, B, *N]``."""
    of_one_step = _prepared(unwrapped(net))
    tracer = _Tracer()
    try:
        graph = tracer.trace(of_one_step)
    except Exception as error:
        raise Refused(
            f"torch.fx cannot follow forward of {type(net).__name__}: {error}\nIts forward must call modules, add and "
            "flatten, without branches on values"
        ) from error
    shapes: Dict[fx.Node, Tuple[int, ...]] = {}
    with torch.no_grad():
        outputs = [_run(of_one_step, graph, x_t, shapes) for x_t in example]
    if not all(isinstance(y, Tensor) and y.shape[:1] == example.shape[1:2] for y in outputs):
        raise Refused(f"{type(net).__name__} must return one tensor [B, ...] for a step")
    calls, result = _Reader(of_one_step, shapes).read(graph)
    return Calls(calls, result, example.transpose(0, 1), torch.stack(outputs, 1))


def _prepared(net: nn.Module) -> nn.Module:
    """A copy that takes single steps, on the reference, without what only holds other modules."""
    if any(part.training for part in net.modules()):
        raise Refused("the network is in training mode, and is exported as it infers; call net.eval() first")
    # in a module of its own, so that a layer alone is a call
    net = unfuse(nn.Sequential(copy.deepcopy(net)))
    for name, part in net.named_modules():
        if has_own_hooks(part) and not _only_rounds(part):
            raise Refused(f"{_place(type(part), _path(name))} has hooks, which C would not have; remove them")
    set_step(net, "single")  # at rest
    for part in net.modules():
        if isinstance(part, Neuron):
            part.backend = "torch"
    for name, part in [*net.named_modules()]:
        if isinstance(part, NormNeuron) and part.shortcut:
            raise Refused(f"NormNeuron at {_path(name)!r} has a shortcut; write the sum in forward, without NormNeuron")
        if isinstance(part, (NormNeuron, TimeBatched)):
            parent, _, last = name.rpartition(".")
            inner = nn.Sequential(part.norm, part.neuron) if isinstance(part, NormNeuron) else part.module
            setattr(net.get_submodule(parent), last, inner)
    return net


def _only_rounds(module: nn.Module) -> bool:
    """Whether the hooks of a module are those of :func:`spikecore.quant.prepare` alone."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return "forward" not in vars(module) and all(hook in (round_input, round_output) for hook in hooks)


def _path(name: str) -> str:
    """The path of a module in the user's network, which is within another one here."""
    return name.partition(".")[2]


def _place(kind: Any, path: str) -> str:
    """A module in words."""
    return f"{kind.__name__} at {path!r}" if path else str(kind.__name__)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (Stateful, Encoder, SumPool2d, *_NOTHING)) or is_parametrized(m)
        of_quant = type(m).__module__.startswith("spikecore.quant")
        alone = type(m).__module__.startswith("spikecore.layers") and not any(True for _ in m.children())
        return known or of_quant or alone or super().is_leaf_module(m, module_qualified_name)


def _run(net: nn.Module, graph: fx.Graph, x: Tensor, shapes: Dict[fx.Node, Tuple[int, ...]]) -> Any:
    """What the graph makes of an input, node by node; ``shapes`` gets those of its values.

    No ``fx.GraphModule``, which compiles a text that has the names of modules.
    """
    values: Dict[fx.Node, Any] = {}
    for node in graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            value = args[0] if values and args else x
        elif node.op == "call_module":
            value = net.get_submodule(node.target)(*args, **kwargs)
        elif node.op == "call_method":
            value = getattr(args[0], node.target)(*args[1:], **kwargs)
        elif node.op == "call_function":
            value = node.target(*args, **kwargs)
        elif node.op == "get_attr":
            value = reduce(getattr, node.target.split("."), net)
        else:
            return args[0]
        values[node] = value
        if isinstance(value, Tensor):
            shapes[node] = tuple(value.shape[1:])
    return None


class _Reader:
    """Reads the nodes of a graph as calls."""

    def __init__(self, net: nn.Module, shapes: Dict[fx.Node, Tuple[int, ...]]) -> None:
        self._net, self._shapes = net, shapes
        self._calls: Dict[str, Call] = {}
        #: Node -> the call whose value it is.
        self._of: Dict[fx.Node, str] = {}
        self._placed: Dict[int, str] = {}

    def read(self, graph: fx.Graph) -> Tuple[List[Call], str]:
        """The calls, and the name of the last one."""
        for node in graph.nodes:
            if node.op == "placeholder":
                if self._calls and node.users:
                    raise Refused(f"{type(self._net).__name__} has more than one input; C is written for one")
                if not self._calls:
                    self._add(node, "x", "the input", "input", ())
            elif node.op == "call_module":
                self._module(node)
            elif node.op == "output":
                return [*self._calls.values()], self._known(node.args[0], node)
            else:
                self._function(node)
        raise Refused(f"{type(self._net).__name__} returns nothing")

    def _add(self, node: fx.Node, name: str, title: str, what: Any, of: Sequence[str]) -> None:
        name = identifier(name, self._calls)
        self._calls[name] = Call(name, title, what, tuple(of), self._shapes.get(node, ()))
        self._of[node] = name

    def _known(self, value: Any, user: fx.Node) -> str:
        if not isinstance(value, fx.Node) or value not in self._of:
            raise Refused(f"{user} takes {value}, which is no tensor of this step")
        return self._of[value]

    def _module(self, node: fx.Node) -> None:
        module, path = self._net.get_submodule(str(node.target)), _path(str(node.target))
        kind = type_before_parametrizations(module)
        if node.kwargs:
            raise Refused(f"{_place(kind, path)} is called with keyword arguments, {[*node.kwargs]}")
        of = [self._known(value, node) for value in node.args]
        if kind in _NOTHING:
            self._of[node] = of[0]
            return
        if kind is nn.Flatten:
            self._add(node, path, _place(kind, path), "view", of)
            return
        if id(module) in self._placed:
            raise Refused(f"{_place(kind, path)} is called twice; make a layer for each place")
        self._placed[id(module)] = path
        if kind in _NORMS:
            self._fold(node, module, path)
            return
        name = path if path[:1].isalpha() else f"{kind.__name__.lower()}_{path}"
        self._add(node, name, _place(kind, path), module, of)

    def _fold(self, node: fx.Node, norm: Any, path: str) -> None:
        """Put a batch normalisation into the layer in front of it."""
        source: Any = node.args[0]
        call = self._calls[self._known(source, node)]
        linear = type(call.what) is nn.Linear
        if not (linear or type(call.what) in _CONVS) or len(source.users) > 1 or norm.running_mean is None:
            raise Refused(
                f"{_place(type(norm), path)} has no linear layer or convolution in front of it to be folded into"
            )
        folded = fuse_linear_bn_eval(call.what, norm) if linear else fuse_conv_bn_eval(call.what, norm)
        self._calls[call.name] = call._replace(what=folded, title=f"{call.title} and {_place(type(norm), path)}")
        self._of[node] = call.name

    def _output(self, node: fx.Node, number: int) -> None:
        """One output of a neuron with several, of which others may be unpacked and not used."""
        if not node.users:
            return
        source: Any = node.args[0]
        call = self._calls[self._known(source, node)]
        if len({user.args[1] for user in source.users if user.users}) > 1:
            raise Refused(f"{call.title} gives two of its outputs, and C is written for one of them")
        self._calls[call.name] = call._replace(shape=self._shapes[node], output=number)
        self._of[node] = call.name

    def _function(self, node: fx.Node) -> None:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        if node.target is operator.getitem and isinstance(node.args[1], int):
            self._output(node, int(node.args[1]))
            return
        adds = node.target in _ADDITIONS or (node.op == "call_method" and name in ("add", "add_"))
        if adds and len(node.args) == 2 and not node.kwargs:
            of = [self._known(value, node) for value in node.args]
            if self._calls[of[0]].shape != self._calls[of[1]].shape:
                raise Refused(f"{node} adds samples of shapes {[self._calls[part].shape for part in of]}")
            self._add(node, node.name, f"the sum {node.name}", "sum", of)
        elif name in _RESHAPING:
            self._add(node, node.name, f"the call of {name}", "view", [self._known(node.args[0], node)])
        else:
            raise Refused(f"forward calls {name}, for which there is no C; it may call modules, add, and flatten")


def identifier(name: str, taken: Any) -> str:
    """A name as C can have it, beside others."""
    name = re.sub("_+", "_", ascii_name(name.replace(".", "_"))).strip("_")
    name = name if name[:1].isalpha() else f"u{name}"
    name += "_" * bool(LIKE_A_MACRO.fullmatch(name))
    while name in C_WORDS or name in taken:
        name += "_"
    return name
