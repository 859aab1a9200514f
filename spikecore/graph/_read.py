"""Reading a network: torch.fx follows its ``forward`` down to layers.

One trace stands for every call where ``forward`` computes with values alone. What cannot be followed is a refusal with
its place: a branch on a value, a loop over the steps of a tensor, a change of an attribute, a random number that Python
or torch draws for it, a block with another mode of autograd or autocast, a change in place of a value that something
else reads. Such a ``forward`` is left as it was found.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections import deque
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from spikecore.batches import folded, unfolded_as
from spikecore.context import autocast_dtype
from spikecore.core.modules import calls_as, has_own_hooks
from spikecore.core.state import Stateful
from spikecore.graph._calls import IN_PLACE, Call, Graph

#: Containers of torch.nn, which have no forward of their own, or the forward of their parts.
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class NotFollowed(ValueError):
    """A ``forward`` that cannot be read: its place and the reason."""


def read(
    net: nn.Module,
    *,
    inputs: Union[int, Sequence[Tensor], None] = None,
    is_leaf: Callable[[nn.Module], bool] = lambda module: False,
    inside: bool = False,
) -> Graph:
    """The calls of a network, in the modes that its modules have now.

    A call is one of a layer: of torch and its subclasses, of spikecore, of a module that has hooks, a ``forward`` of
    its own or parametrisations. Chains, :class:`~spikecore.layers.TimeBatched` and modules of the user's are followed.
    An argument of ``forward`` with a default has its default.

    inputs: the number of inputs; None for the arguments of ``forward`` without a default; or examples of them. Then
        ``forward`` may ask for the shapes of its inputs, and loop over their steps: the graph is that of these shapes.
    is_leaf: further modules that are a call each.
    inside: whether ``net`` itself is followed in any case, past hooks that it has.

    Nothing changes in the network. Raises :class:`NotFollowed`, with the place and the reason.
    """
    examples = () if inputs is None or isinstance(inputs, int) else tuple(inputs)
    root = _Root(net, inputs if isinstance(inputs, int) else len(examples) or _count(net))
    tracer = _Tracer(is_leaf, net if inside else None, examples)
    with _unchanged(net) as tracer.before:
        try:
            graph = tracer.trace(root)
            calls = _calls(graph, root)
        except NotFollowed:
            raise
        except Exception as error:  # a forward that reads sizes or values raises whatever it likes
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise NotFollowed(f"forward of {tracer.place} cannot be followed: {reason}") from error
    tracer.check()
    for call in calls:
        _check_in_place(call)
    tensors = {call.name: _attribute(root, str(call.node.target)) for call in calls if call.kind == "attribute"}
    return Graph(net, graph, calls, tensors, tracer.followed)


def _count(net: nn.Module) -> int:
    """The number of arguments of ``forward`` without a default; one where it takes any number."""
    parameters = inspect.signature(net.forward).parameters.values()
    required = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    return max(1, len(required))


def argument_names(module: nn.Module) -> Optional[List[str]]:
    """The names of the arguments of a ``forward``; None where it has defaults or takes any number, so that calls may
    differ.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    plain = all(p.kind in kinds and p.default is p.empty for p in parameters)
    return [p.name for p in parameters] if plain else None


class _Root(nn.Module):
    """A module around the network, so that the network itself may be a layer, with hooks."""

    def __init__(self, net: nn.Module, inputs: int) -> None:
        super().__init__()
        self.net, self.inputs = net, inputs

    def forward(self, *args: Any) -> Any:
        """The network."""
        return self.net(*args)


class _Value(fx.Proxy):
    """A value under way. A change in place stays one, and a number that it cannot be is a refusal for good."""

    tracer: _Tracer

    def __float__(self) -> Any:
        raise self.tracer.refused("it reads the number of a value")

    __int__ = __float__

    def __index__(self) -> int:
        raise self.tracer.refused("it counts by a value or a size, which it has when it runs")

    def __len__(self) -> int:
        raise self.tracer.refused("it asks for the length of a value")


def _in_place(function: Any) -> Any:
    def changed(value: Any, other: Any) -> Any:
        return value.tracer.create_proxy("call_function", function, (value, other), {})

    return changed


for _function in IN_PLACE:
    setattr(_Value, f"__{_function.__name__}__", _in_place(_function))


class _Shaped(_Value):
    """An input whose shape is known: a forward may ask for it, and loop over the steps."""

    @property
    def shape(self) -> torch.Size:
        return self.node.meta["shape"]  # type: ignore[no-any-return]  # a shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: Optional[int] = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter([self.select(0, step) for step in range(len(self))])

    def unbind(self, dim: int = 0) -> Any:
        return tuple([self.select(dim, step) for step in range(self.shape[dim])])


#: Kinds of values under way.
_VALUES = (_Value, _Shaped)


class _Tracer(fx.Tracer):
    """Follows modules of the user's, and notes where time is folded into the batch."""

    proxy_buffer_attributes = True

    def __init__(
        self, is_leaf: Callable[[nn.Module], bool], inside: Optional[nn.Module], examples: Sequence[Tensor]
    ) -> None:
        super().__init__()
        self._is_leaf, self._inside, self._examples = is_leaf, inside, examples
        self._folded = False
        self._modes = _modes()
        #: The first refusal, which a forward may have caught.
        self._refusal: Optional[NotFollowed] = None
        self._within: List[Tuple[nn.Module, str]] = []
        #: Of each module that was followed, whether its forward got values alone, of its caller and of what it calls.
        self.followed: Dict[nn.Module, bool] = {}
        #: The attributes of each module before.
        self.before: Dict[nn.Module, Any] = {}

    @property
    def place(self) -> str:
        """The module whose forward is followed, in words."""
        module, path = self._within[-1] if self._within else (None, "")
        if module is None:
            return "the network"
        return f"{type(module).__name__} at {path!r}" if path else type(module).__name__

    def refused(self, reason: str) -> NotFollowed:
        """The error for what the forward that is followed does, which stays one if that catches it."""
        error = NotFollowed(f"forward of {self.place} cannot be followed: {reason}")
        self._refusal = self._refusal or error
        return error

    def check(self) -> None:
        """Raise a refusal that a forward caught."""
        if self._refusal is not None:
            raise self._refusal

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise self.refused("it branches on a value, or on a size that it has when it runs")

    def iter(self, obj: fx.Proxy) -> Any:
        raise self.refused("it iterates over a value or its sizes, of which there is a number when it runs")

    def keys(self, obj: fx.Proxy) -> Any:
        raise self.refused("it takes a value for a dict")

    def proxy(self, node: fx.Node) -> fx.Proxy:
        if node.op != "placeholder" or not self._examples:
            return _Value(node, self)
        node.meta["shape"] = self._examples[len(self.graph.nodes) - 1].shape
        return _Shaped(node, self)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and a.grad_fn is not None:
            raise self.refused(
                "it computes with a parameter that it takes from an iterator or a list; name it, self.weight"
            )
        return super().create_arg(a)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Tuple[Any, List[Any]]:
        root: Any = self.root
        proxies = [self.create_proxy("placeholder", f"x{k or ''}", (), {}) for k in range(root.inputs)]

        def forward(*args: Any) -> Any:
            return root.net(*args)

        return forward, proxies

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        if kind not in ("placeholder", "output", "get_attr") and _modes() != self._modes:
            raise self.refused(
                "it computes within torch.no_grad(), autocast or a function of autograd, which a graph does not say; "
                "write .detach() for a value without a gradient"
            )
        node = super().create_node(kind, *args, **kwargs)
        node.meta["folded"] = self._folded
        node.meta["owners"] = tuple([module for module, _ in self._within])
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m is not self._inside and (self._is_leaf(m) or is_a_layer(m))

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Any:
        if self.is_leaf_module(m, ""):
            self._check_as_before(m)
            value = super().call_module(m, forward, args, kwargs)
            outputs = len(getattr(getattr(m, "program", None), "outputs", ())) if isinstance(m, Stateful) else 1
            return tuple([value[number] for number in range(outputs)]) if outputs > 1 else value
        # what forward makes itself, such as a TimeBatched around a layer, has no path
        self._within.append((m, self.submodule_paths.get(m, "").partition(".")[2]))  # type: ignore[union-attr]  # set while tracing
        are_values = all(type(value) in _VALUES for value in (*args, *kwargs.values()))
        self.followed[m] = self.followed.get(m, True) and are_values
        follow = None if "forward" in vars(m) else getattr(type(m), "traced_forward", None)
        # not the call of a module, which would tell hooks that observe it of traced values
        value = m.forward(*args, **kwargs) if follow is None else follow(m, self.over_samples, *args, **kwargs)
        self._within.pop()
        if self._within and type(value) not in _VALUES:
            self.followed[self._within[-1][0]] = False
        return value

    def _check_as_before(self, layer: nn.Module) -> None:
        """Refuse a call of a layer that ``forward`` has changed for it, as ``torch.func.functional_call`` does."""
        for part in layer.modules():
            changed = _put_back(vars(part), self.before[part]) if part in self.before else []
            if changed:
                raise self.refused(
                    f"it changes {type(part).__name__}.{changed[0]} before a call; make a layer for each use, "
                    "with what that computes with"
                )

    def over_samples(self, module: nn.Module, x: Any) -> Any:
        """A module on ``[T, B, ...]`` with time and batch as one dimension."""
        samples = self.create_proxy("call_function", folded, (x,), {})
        before, self._folded = self._folded, True
        y = module(samples)
        self._folded = before
        return self.create_proxy("call_function", unfolded_as, (y, x), {})


def layers_in_turn(module: nn.Module) -> Optional[List[nn.Module]]:
    """The layers that an ``nn.Sequential`` calls, one after the other; None for a module of another kind, and for one
    whose ``forward``, ``__call__`` or ``__iter__``, which its ``forward`` runs through, is its own.
    """
    plain = calls_as(module, nn.Sequential) and type(module).__iter__ is nn.Sequential.__iter__  # type: ignore[attr-defined]
    return [*module] if plain and "forward" not in vars(module) else None  # type: ignore[misc]  # an nn.Sequential


def is_a_layer(module: nn.Module) -> bool:
    """Tell whether a call of a module is one call of a graph, and not followed."""
    # a missing attribute of a neuron, which torch asks for, is slow
    return has_own_hooks(module) or is_a_layer_unhooked(module) or is_parametrized(module)


def is_a_layer_unhooked(module: nn.Module) -> bool:
    """The same of a module without its hooks."""
    if "forward" in vars(module):
        return not getattr(module.forward, "is_graph", False)
    if isinstance(module, Stateful):
        return True
    if getattr(type(module), "mixes_time", False) or getattr(type(module), "is_one_call", False):
        return True
    if layers_in_turn(module) is not None:
        return False
    of_torch = [kind for kind in type(module).__mro__ if kind.__module__.startswith(("torch.nn.", "torch.ao.nn."))]
    if any(kind is not nn.Module and kind not in _CONTAINERS for kind in of_torch):
        return True
    return type(module).__module__.startswith("spikecore.") and not any(True for _ in module.children())


def _modes() -> Tuple[Any, ...]:
    """The modes of torch that change what an operation computes, or its gradient."""
    return torch.is_grad_enabled(), autocast_dtype("cpu"), autocast_dtype("cuda")


def _calls(graph: fx.Graph, root: _Root) -> List[Call]:
    known: Dict[fx.Node, Call] = {}
    kinds = {
        "placeholder": "input",
        "call_module": "module",
        "call_function": "function",
        "call_method": "method",
        "get_attr": "attribute",
        "output": "output",
    }
    for node in graph.nodes:
        path = str(node.target)
        of_net = path == "net" or path.startswith("net.")
        is_path = node.op in ("call_module", "get_attr")
        name = path.partition(".")[2] if is_path and of_net else path if is_path else node.name
        call = Call(node, kinds[node.op], name, None if is_path else node.target, known)
        if node.op == "call_module":
            call.module = root.get_submodule(path)
        known[node] = call
    return [*known.values()]


def _attribute(root: nn.Module, path: str) -> Any:
    value: Any = root
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _check_in_place(call: Call) -> None:
    """Refuse a change in place of a value, or of what it is a view of, that a later call reads."""
    if call.kwargs.get("out") is not None:
        raise NotFollowed(f"{call.title} writes its result to out=; take what it returns")
    if not call.is_in_place:
        return
    reader, value = call, call.source
    while value is not None:
        later = [other for other in value.readers if other is not reader and other.position > call.position]
        if later or value.kind == "attribute":
            what = f"{later[0].title} reads that afterwards" if later else "that is none of a step"
            raise NotFollowed(
                f"{call.title} changes the value of {value.title} in place, and {what}; write x = x + y for x += y, "
                "and inplace=False"
            )
        is_new = (bool(value.summands) and not value.is_in_place) or value.describes
        is_view = (value.kind in ("function", "method") and not is_new) or value.is_nothing or value.is_reshape
        reader, value = value, value.source if is_view else None


@contextmanager
def _unchanged(net: nn.Module) -> Iterator[Dict[nn.Module, Any]]:
    """A block after which attributes of the network and generators are as before; :class:`NotFollowed` where it changed
    one of them and raised nothing else. It is given the attributes of each module.
    """
    attributes = {module: _content(vars(module)) for module in net.modules()}
    generators = _generators()
    changed: List[str] = []
    try:
        yield attributes
    finally:
        for module, before in attributes.items():
            changed += [f"{type(module).__name__}.{name}" for name in _put_back(vars(module), before)]
        of_python, of_numpy, of_torch = generators
        python, numpy, torchs = _generators()
        drawn = python != of_python or numpy[2:] != of_numpy[2:] or not np.array_equal(numpy[1], of_numpy[1])
        drawn = drawn or not torch.equal(torchs, of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002  # a forward of the user's may draw from it
        torch.set_rng_state(of_torch)
    if changed:
        raise NotFollowed(
            f"forward cannot be followed: it changes {', '.join(changed)}; return the value, or take it by sc.monitor"
        )
    if drawn:
        raise NotFollowed(
            "forward cannot be followed: it draws random numbers itself, which one trace does not stand for; draw them "
            "in a module without parts, such as nn.Dropout or an encoder"
        )


def _generators() -> Tuple[Any, ...]:
    """The states of Python's, NumPy's and torch's global generators."""
    of_numpy = np.random.get_state()  # noqa: NPY002  # a forward of the user's may draw from it
    return random.getstate(), of_numpy, torch.get_rng_state()


#: Containers whose content may change in place.
_CONTAINERS_OF_PYTHON = (list, dict, set, deque)
#: Types of values that are not searched for values that a user's forward keeps.
_OPAQUE = (nn.Module, Tensor, fx.Proxy, type, FunctionType, MethodType, ModuleType)
#: Beginnings of the modules of classes whose objects keep caches.
_NOT_OF_USERS = ("torch.", "spikecore.")


def _container(value: Any) -> Any:
    """A container of Python itself, or the attributes of an object of the user's; None for another value."""
    if isinstance(value, (*_CONTAINERS_OF_PYTHON, tuple)):
        return value
    if isinstance(value, _OPAQUE) or any(kind.__module__.startswith(_NOT_OF_USERS) for kind in type(value).__mro__):
        return None
    return getattr(value, "__dict__", None)


def _content(value: Any, around: Tuple[int, ...] = (), objects: bool = True) -> Any:
    """The content of a container of Python or of an object, and of those within it; None for another value, and within
    itself. Objects within an object are left out.
    """
    container = _container(value)
    if container is None or id(value) in around or not (objects or container is value):
        return None
    objects = objects and container is value
    inner = [(each, _content(each, (*around, id(value)), objects)) for each in _items(container)]
    return copy.copy(container), inner


def _put_back(attributes: Dict[str, Any], before: Any) -> List[str]:
    """Make attributes what they were; the names of those that were not."""
    were, inner = before
    changed = [*(attributes.keys() - were.keys())]
    for name, value in were.items():
        if attributes.get(name) is not value or name not in attributes or _changes(value, _content_of(value, inner)):
            changed.append(name)
    if changed:
        attributes.clear()
        attributes.update(were)
    return changed


def _content_of(value: Any, inner: List[Tuple[Any, Any]]) -> Any:
    return next((content for each, content in inner if each is value), None)


def _changes(value: Any, content: Any) -> bool:
    """Tell whether a container or an object holds something else than it did, which it then holds again."""
    if content is None:
        return False
    held, inner = content
    value = _container(value)
    changed = sum(_changes(each, within) for each, within in inner) > 0
    if [*map(id, _items(value))] != [*map(id, _items(held))]:
        value.clear()
        (value.update if isinstance(value, (dict, set)) else value.extend)(held)
        changed = True
    return changed


def _items(value: Any) -> List[Any]:
    return [each for pair in value.items() for each in pair] if isinstance(value, dict) else [*value]
