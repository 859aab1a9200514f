"""Calls of a network, and the graph that they make.

A :class:`Call` is one use of a module, a function, a method or an attribute. It knows the calls whose values it takes,
and those that read its own. A :class:`Graph` knows how often a module is called and a tensor is used. A tool asks these
two, and nothing else, what surrounds a layer.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.nn.utils import parametrize

from spikecore.core.modules import has_own_hooks
from spikecore.core.state import Stateful, keep

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
#: Layers that give their input in ``eval()``.
NOTHING = (nn.Identity, *DROPOUTS)

#: Functions, and names of methods, that add two values.
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
#: Functions that put values side by side.
_JOINS = (torch.cat, torch.concat, torch.stack)
#: Changes in place that are written with an operator.
IN_PLACE = tuple(
    getattr(operator, f"i{name}")
    for name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
)
#: Functions and methods that give the same numbers in the same order, in another shape.
_RESHAPES = (
    "contiguous flatten folded reshape reshape_as squeeze unflatten unfolded_as unsqueeze view view_as"
).split()
#: Those that move, select or repeat the numbers of their first argument.
_MOVES = (
    "chunk clone detach expand expand_as movedim narrow permute repeat select split swapaxes t transpose unbind"
).split()
#: Attributes of a tensor, methods and functions that read no numbers of it, and methods that read none of their second
#: argument.
_DESCRIBING = (
    "shape ndim dtype device layout is_cuda requires_grad size dim numel stride is_contiguous is_floating_point "
    "new_zeros new_ones new_empty new_full zeros_like ones_like empty_like full_like rand_like randn_like"
).split()
_LIKE = ("view_as", "reshape_as", "expand_as", "type_as", "to", "unfolded_as")
#: Attributes that a subclass of a layer may define and still be that layer.
_HARMLESS = frozenset(
    "__init__ __module__ __doc__ __annotations__ __repr__ __dict__ __weakref__ __qualname__ __constants__ "
    "__firstlineno__ __static_attributes__ extra_repr reset_parameters reset_running_stats".split()
)


class Refused(ValueError):
    """A place in a network that a tool cannot take: where, why, and the way out.

    place: a call in words. why: a sentence about it without a subject. way_out: what to write in its place.
    """

    def __init__(self, place: str, why: str, way_out: str) -> None:
        super().__init__(f"{place} {why}; {way_out}")
        self.place, self.why, self.way_out = place, why, way_out


class Call:
    """One call.

    kind: "input", "module", "function", "method", "attribute" or "output" (what the network returns).
    name: the path of the module or attribute; of others the name that the tracer gives.
    target: the function, or the name of the method.
    args, kwargs: its arguments; values are the calls that compute them.
    inputs: the calls whose values it reads, each once, in order.
    readers: the calls that read numbers of its value, each once, in order; not those that ask for its shape alone.
    users: those, and the calls that ask for its shape alone.
    is_folded: time and batch are one dimension here.
    owners: the modules whose ``forward`` it is made in, each of which calls the next one.
    node: the node of torch.fx.
    """

    def __init__(self, node: fx.Node, kind: str, name: str, target: Any, known: Dict[fx.Node, Call]) -> None:
        #: Number of calls before it.
        self.position = len(known)
        self.node, self.kind, self.name, self.target = node, kind, name, target
        self.module: Any = None
        self.args: Tuple[Any, ...] = map_aggregate(node.args, lambda value: _known(value, known))
        self.kwargs: Dict[str, Any] = map_aggregate(node.kwargs, lambda value: _known(value, known))
        self.inputs: List[Call] = [known[value] for value in node.all_input_nodes]
        self.readers: List[Call] = []
        self.users: List[Call] = []
        self.is_folded = bool(node.meta.get("folded"))
        self.owners: Tuple[nn.Module, ...] = node.meta.get("owners", ())
        for value in self.inputs:
            value.users.append(self)
            if not self._only_describes(value):
                value.readers.append(self)

    def __repr__(self) -> str:
        return f"<{self.title}>"

    @property
    def title(self) -> str:
        """The call in words, for messages."""
        if self.kind == "input":
            return f"the input {self.name!r}"
        if self.kind == "output":
            return "what the network returns"
        if self.module is not None:
            kind = parametrize.type_before_parametrizations(self.module).__name__
            return f"{kind} at {self.name!r}" if self.name else str(kind)
        if self.kind == "attribute":
            return f"the attribute {self.name!r}"
        return f"the call of {self.function} ({self.name})"

    @property
    def describes(self) -> bool:
        """Tell whether it gives the shape, dtype or device of a value, or a new one like it."""
        if self.target is getattr:
            return self.args[1] in _DESCRIBING
        return self.kind in ("function", "method") and self.function in _DESCRIBING

    def _only_describes(self, value: Call) -> bool:
        """Tell whether it reads shape, dtype or device of a value, and none of its numbers."""
        if self.describes:
            return True
        return self.function in _LIKE and self.kind in ("function", "method") and self.args[0] is not value

    @property
    def function(self) -> str:
        """The name of a function or method."""
        return self.target if isinstance(self.target, str) else getattr(self.target, "__name__", str(self.target))

    @property
    def layer(self) -> Optional[Type[nn.Module]]:
        """Of a module, the class that says all that it computes: see :func:`layer_of`."""
        return None if self.module is None else layer_of(self.module)

    @property
    def is_hooked(self) -> bool:
        """Tell whether hooks, or a ``forward`` set on the module or its parts, see or change what it computes."""
        return self.module is not None and any(has_own_hooks(part) for part in self.module.modules())

    @property
    def is_nothing(self) -> bool:
        """Tell whether it gives its input: an identity, or dropout in ``eval()``."""
        dropped = self.layer in DROPOUTS and self.module.training and self.module.p
        return self.layer in NOTHING and not self.is_hooked and not dropped

    @property
    def summands(self) -> Tuple[Call, ...]:
        """The two values that it adds; none where it does something else."""
        adds = self.kind in ("function", "method") and self.target in _SUMS and len(self.args) == 2 and not self.kwargs
        return self.args if adds and all(isinstance(value, Call) for value in self.args) else ()

    @property
    def is_join(self) -> bool:
        """Tell whether it gives the numbers of several values, given as one list, in one."""
        return (
            self.kind == "function"
            and self.target in _JOINS
            and bool(self.args)
            and isinstance(self.args[0], (list, tuple))
        )

    @property
    def is_in_place(self) -> bool:
        """Tell whether it changes a value that it is given."""
        # not those of Python's operators, and_ and or_
        of_torch = self.kind in ("function", "method") and getattr(self.target, "__module__", "") != "_operator"
        by_name = of_torch and self.function.endswith("_") and not self.function.endswith("__")
        by_module = self.module is not None and bool(getattr(self.module, "inplace", False))
        by_operator = self.target in IN_PLACE or self.function == "__setitem__"
        return by_name or by_module or bool(self.kwargs.get("inplace")) or by_operator

    @property
    def is_reshape(self) -> bool:
        """Tell whether it gives the numbers of its first argument, in their order, in another shape."""
        of_function = self.kind in ("function", "method") and self.function in _RESHAPES
        is_cast = any(isinstance(value, torch.dtype) for value in (*self.args, *self.kwargs.values()))  # view(dtype)
        return (of_function and not is_cast) or (self.layer in (nn.Flatten, nn.Unflatten) and not self.is_hooked)

    @property
    def is_move(self) -> bool:
        """Tell whether its numbers are some of those of its first argument: a change of shape, a slice, an identity."""
        is_slice = self.target is operator.getitem and not isinstance(self.args[1], int)
        of_function = self.kind in ("function", "method") and (is_slice or self.function in _MOVES)
        return of_function or self.is_reshape or self.is_nothing

    @property
    def source(self) -> Optional[Call]:
        """The call of the first argument, where that is a value."""
        first = self.args[0] if self.args else None
        return first if isinstance(first, Call) else None


def _known(value: Any, known: Dict[fx.Node, Call]) -> Any:
    return known[value] if isinstance(value, fx.Node) else value


class Graph:
    """The calls of a network in order; the last one is the output.

    net: the network that was read. inputs: the calls that are its inputs. output: the call of kind "output". fx: the
    graph of torch.fx. followed: the modules whose ``forward`` was followed; of each, whether it got values alone,
    of its caller and of the modules that it calls.
    """

    def __init__(
        self,
        net: nn.Module,
        graph: fx.Graph,
        calls: Sequence[Call],
        tensors: Dict[str, Any],
        followed: Dict[nn.Module, bool],
    ) -> None:
        self.net, self.fx, self.calls, self.followed = net, graph, list(calls), followed
        self.inputs = [call for call in calls if call.kind == "input"]
        self.output = self.calls[-1]
        #: Attribute by name -> its tensor.
        self.tensors = tensors
        self._of_module: Dict[nn.Module, List[Call]] = {}
        self._of_tensor: Dict[int, List[Call]] = {}
        for call in calls:
            if call.module is not None:
                self._of_module.setdefault(call.module, []).append(call)
            read = [tensors[call.name]] if call.kind == "attribute" else []
            owned = [] if call.module is None else [*call.module.parameters(), *call.module.buffers()]
            for tensor in (*read, *owned):
                self._of_tensor.setdefault(id(tensor), []).append(call)

    @property
    def result(self) -> Optional[Call]:
        """The call whose value the network returns; None where it returns several values or none."""
        return self.output.source

    def calls_of(self, module: nn.Module) -> List[Call]:
        """The calls of a module."""
        return self._of_module.get(module, [])

    def uses(self, tensor: Tensor) -> List[Call]:
        """The calls that use a parameter or buffer: of modules that hold it, and reads of it as an attribute."""
        return self._of_tensor.get(id(tensor), [])

    def check_owner(self, call: Call, what: str) -> None:
        """Raise :class:`Refused` unless the tensors of the module of a call are used by it alone.

        what: what a tool does to the layer, such as "is folded into it".
        """
        for name, tensor in (*call.module.named_parameters(), *call.module.named_buffers()):
            shared = [other for other in self.uses(tensor) if other.module is not call.module]
            if shared:
                raise Refused(
                    call.title,
                    f"shares its {name} with {_listed(shared)}, and {what}",
                    "give each its own: copy.deepcopy of the layer, or of the parameter",
                )

    def check_plain(self, call: Call, kinds: Tuple[type, ...], what: str) -> None:
        """Raise :class:`Refused` unless a call is one of these layers as its class says: no ``forward``, hooks or
        parametrisations of its own.
        """
        names = ", ".join(kind.__name__ for kind in kinds)
        if call.layer not in kinds:
            own = isinstance(call.module, kinds)
            why = "is a subclass with a forward of its own" if own else f"is none of {names}"
            raise Refused(call.title, f"{why}, and {what}", f"take one of {names} as it is, or a parametrisation of it")
        if call.is_hooked:
            raise Refused(call.title, f"has hooks or a forward of its own, and {what}", "remove them")

    def check_reader(self, call: Call, reader: Call, what: str, value: Optional[Call] = None) -> None:
        """Raise :class:`Refused` unless only one call reads the value of another; ``value``: that value moved."""
        others = [other for other in (value or call).readers if other is not reader]
        if others:
            raise Refused(
                call.title,
                f"is read by {_listed(others)} as well, and {what}",
                "compute the value twice: a copy of the layer (copy.deepcopy) for the other reader",
            )


def _listed(calls: Sequence[Call]) -> str:
    return " and ".join(call.title for call in calls)


def computed_by(call: Optional[Call]) -> Optional[Call]:
    """The call that computed the numbers of a value: the first one that does more than to move them."""
    while call is not None and call.is_move:
        call = call.source
    return call


def readers_of(call: Call) -> List[Call]:
    """The calls that read the numbers of a value, those that only move them left out for their readers."""
    return [reader for first in call.readers for reader in (readers_of(first) if first.is_move else [first])]


def layer_of(module: nn.Module) -> Optional[Type[nn.Module]]:
    """The class of torch or spikecore that says all that a module computes; None for a module of another kind.

    A subclass counts as its base where it overrides nothing of it but ``__init__`` and ``reset_parameters``; a layer
    that ``torch.nn.utils.parametrize`` changed counts as what it was, and a class with an attribute ``computes`` as the
    class that this names. Hooks are another question: :attr:`Call.is_hooked`.
    """
    bases = parametrize.type_before_parametrizations(module).__mro__
    own = {*module._parameters, *module._buffers, *module._modules, *vars(module)}
    for number, base in enumerate(bases):
        if base.__module__.startswith(("torch.nn.", "torch.ao.nn.", "spikecore.")):
            return None if base is nn.Module else vars(base).get("computes", base)
        inherited = {name for other in bases[number + 1 : -1] for name in vars(other)}
        if not vars(base).keys() & (inherited | own) <= _HARMLESS:
            return None
    return None


def is_parametrised(module: nn.Module) -> bool:
    """Tell whether a tensor of a module is computed, by ``torch.nn.utils.parametrize``."""
    return parametrize.is_parametrized(module)


def values(graph: Graph, *inputs: Any) -> Iterator[Tuple[Call, Any]]:
    """Each call with its value, for inputs of the network; modules run with their hooks.

    A value is let go of after its last reader. Raises what the calls raise.
    """
    known: Dict[Call, Any] = {}
    waiting = {call: len(call.node.users) for call in graph.calls}
    remaining = iter(inputs)
    for call in graph.calls:
        value = next(remaining) if call.kind == "input" else value_of(graph, call, known)
        known[call] = value
        yield call, value
        for source in call.inputs:
            waiting[source] -= 1
            if not waiting[source]:
                del known[source]


def value_of(graph: Graph, call: Call, known: Mapping[Call, Any]) -> Any:
    """The value of a call that is no input, from those of the calls that it reads; modules run with their hooks."""
    args, kwargs = _filled(call.args, known), _filled(call.kwargs, known)
    if call.kind == "attribute":
        return graph.tensors[call.name]
    if call.kind == "method":
        return getattr(args[0], call.target)(*args[1:], **kwargs)
    if call.kind == "output":
        return args[0]
    return (call.target if call.module is None else call.module)(*args, **kwargs)


def run(graph: Graph, *inputs: Any) -> Tuple[Any, Dict[Call, Tuple[int, ...]]]:
    """Result of a network for inputs, and the shape of each value that is a tensor.

    Raises :class:`Refused` where a call raises, with the shapes that it reads.
    """
    shapes: Dict[Call, Tuple[int, ...]] = {}
    position, value = -1, None
    try:
        for call, value in values(graph, *inputs):
            position = call.position
            if isinstance(value, Tensor):
                shapes[call] = tuple(value.shape)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        call = graph.calls[position + 1]
        read = ", ".join(str([*shapes[each]]) for each in call.inputs if each in shapes)
        raise Refused(
            call.title, f"does not take {read}: {error}", "give an input of another shape or dtype"
        ) from error
    return value, shapes


def check_outputs(graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Raise :class:`Refused` where a network, called on inputs one after the other from rest, gives other outputs than
    its graph gave.

    A trace follows a forward with values that are no tensors. One that asks ``isinstance(x, Tensor)`` or
    ``hasattr(x, name)``, whether gradients are on, or how often it was called may take another branch when it runs.
    """
    for module in graph.net.modules():
        if isinstance(module, Stateful):
            keep(module, None)
    with torch.no_grad():
        for x, output in zip(inputs, outputs):
            y = graph.net(x.clone())
            if y.shape != output.shape or not torch.allclose(y, output, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise Refused(
                    f"forward of {type(graph.net).__name__}",
                    "computes something else when it runs than when it is followed",
                    "write it without branches on the type of a value, on whether it has an attribute, on "
                    "torch.is_grad_enabled(), on self.training and on what changes from call to call, and call "
                    "sc.reset outside of it",
                )


def _filled(structure: Any, known: Mapping[Call, Any]) -> Any:
    """A structure of arguments with values in the place of calls."""
    return map_aggregate(structure, lambda value: known[value] if isinstance(value, Call) else value)
