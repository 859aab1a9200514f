"""What a neuron's definition reads of the neuron itself: a program is traced again when that changes.

Rules of this module:

- A program depends on every attribute whose name stands in code that ran while it was traced, private ones included,
  and on every public one that the neuron had then. Code that looks names up (``getattr``, ``vars``) may read any.
- An attribute that is set or deleted is seen as it happens. What changes within lists, dicts, sets, arrays, tensors and
  objects with attributes of their own is compared at each call. What lies in modules and globals is not followed.
- What is only compared by identity is kept: another object could be made at its address.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Container, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Sequence, Tuple

from torch import Tensor, nn

from spikecore.lang import Expr, Node, Numbers, Program, trace
from spikecore.lang.trace import Ran

#: Private attributes of the shell around a definition, which say nothing about it.
SHELL: FrozenSet[str] = frozenset(vars(nn.Module())) | {
    "_bound",
    "_calls",
    "_carrying",
    "_compiled",
    "_cut",
    "_given",
    "_has_carried",
    "_inside",
    "_loading",
    "_names",
    "_numbers",
    "_passed",
    "_program",
    "_quick",
    "_ranges",
    "_read",
    "_request",
    "_stamp",
    "_state",
    "_watched",
}
_OWN = SHELL | {"bounds", "learn"}
#: Functions and attributes that look names up.
_LOOK_UP = frozenset(("getattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"))
#: Values that never change.
_FIXED = (type(None), bool, int, float, complex, str, bytes)
#: What has attributes and is not looked into.
_WHOLE = (nn.Module, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
#: What holds items and no attributes.
_BARE = (list, tuple, dict, set, frozenset)
#: So many values are compared at each call; what is larger is not followed.
_MOST = 1000


class _Every(Container[str]):
    """All names."""

    def __contains__(self, name: object) -> bool:
        return True


EVERY = _Every()


def traced(
    neuron: Any, detached: Sequence[str]
) -> Tuple[Program, Dict[str, float], Container[str], List[Tuple[str, Any]]]:
    """The program of a neuron's ``dynamics``, the values of its numbers, the names of attributes it depends on, and
    those of them that can change within, each as it is now.
    """
    # in dynamics self.tau means p.tau: as a number it would be frozen into the program
    twin = object.__new__(type(neuron))
    twin.__dict__.update(neuron.__dict__)
    twin.__dict__.update({name: Expr(Node("param", (), name)) for name in neuron.params})
    numbers, ran = Numbers(taken=(*neuron.inputs, *neuron.states, *neuron.params)), Ran()
    program = trace(
        twin.dynamics,
        name=type(neuron).__name__,
        inputs=neuron.inputs,
        states=neuron.states,
        params=tuple(neuron.params),
        detached=detached,
        numbers=numbers,
        ran=ran,
    )
    names = {name for code in ran.codes for name in code.co_names}
    looked_up = not ran.known or not names.isdisjoint(_LOOK_UP)
    # every train() and eval() sets training
    public = [name for name in neuron.__dict__ if not (name.startswith("_") or name == "training")]
    read: Container[str] = EVERY if looked_up else frozenset((*names, *public, *neuron.configuration))
    held = [
        name
        for name in (*neuron.__dict__, *neuron._buffers, *neuron._parameters)
        if (looked_up or name in names) and not (name in _OWN or name in neuron.params or name in neuron.configuration)
    ]
    return program, {name: numbers.values[name] for name in program.numbers}, read, watched(neuron, held)


def watched(neuron: Any, names: Iterable[str]) -> List[Tuple[str, Any]]:
    """The attributes that can change within and are looked into, each with what it holds."""
    found = []
    for name in names:
        value = _held(neuron, name)
        if not isinstance(value, _FIXED) and not _is_frozen(value):
            content = _content(value, {})
            if content is not None:
                found.append((name, content))
    return found


def has_changed(neuron: Any, seen: Iterable[Tuple[str, Any]]) -> bool:
    """Whether one of these attributes holds something else than it did."""
    return any(_content(_held(neuron, name), {}) != content for name, content in seen)


def _held(neuron: Any, name: str) -> Any:
    for held in (neuron.__dict__, neuron._buffers, neuron._parameters):
        if name in held:
            return held[name]
    return None


def _is_frozen(value: Any) -> bool:
    declared = getattr(type(value), "__dataclass_params__", None)
    return declared is not None and bool(declared.frozen) and all(isinstance(v, _FIXED) for _, v in _attributes(value))


class _Same:
    """An object as what it is, whatever it holds: equal to no other."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def _content(value: Any, within: Dict[int, Any]) -> Any:
    """What a list, dict, set, array, tensor or object holds, in a form that compares; None for what is not looked into.

    ``within``: what was met before, by its id.
    """
    if id(value) in within or len(within) > _MOST or isinstance(value, _WHOLE):
        return None
    within[id(value)] = value
    if isinstance(value, Tensor):
        # no value, which would have to come from the device
        return _Same(value), 0 if value.is_inference() else value._version
    items: Any
    if isinstance(value, (list, tuple, deque, Mapping, set, frozenset)):
        if len(value) > _MOST:
            return None
        if isinstance(value, Mapping):
            items = [(_part(name, within), _part(one, within)) for name, one in value.items()]
        elif isinstance(value, (set, frozenset)):
            items = {(repr(one), type(one) if isinstance(one, _FIXED) else _Same(one)) for one in value}
        else:
            items = [_part(one, within) for one in value]
        if type(value) in _BARE:
            return type(value), items
    else:
        items = _memory(value)
    attributes = [(name, _part(one, within)) for name, one in _attributes(value)]
    if items is None and not attributes and not hasattr(value, "__dict__"):
        return None
    return type(value), items, attributes


def _part(value: Any, within: Dict[int, Any]) -> Any:
    if isinstance(value, _FIXED):
        return type(value), repr(value)  # which tells -0.0 from 0.0, and finds NaN equal
    content = _content(value, within)
    return _Same(value) if content is None else content


def _attributes(value: Any) -> Iterator[Tuple[str, Any]]:
    """The attributes of an object itself, those in ``__slots__`` included."""
    yield from getattr(value, "__dict__", {}).items()
    kind: Any = type(value)
    for name in _slots(kind):
        if hasattr(value, name):
            yield name, getattr(value, name)


@lru_cache(maxsize=256)
def _slots(kind: Any) -> Tuple[str, ...]:
    """Names of the attributes that objects of a class hold without a dict; a class does not gain any."""
    named = ((name, member) for base in kind.__mro__ for name, member in vars(base).items())
    return tuple(name for name, member in named if isinstance(member, MemberDescriptorType))


def _memory(value: Any) -> Any:
    """The bytes of an array of NumPy or of Python, if they are few; None for what is no array."""
    try:
        view = memoryview(value)
        return (view.format, view.shape, view.tobytes()) if view.nbytes <= 8 * _MOST else None
    except (TypeError, ValueError, BufferError):
        return None
