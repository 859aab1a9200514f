"""What a neuron's definition reads of the neuron itself: a program is traced again when that changes.

Rules of this module:

- A program depends on every attribute whose name stands in code that ran while it was traced, private ones included,
  and on every public one that the neuron had then. Code that looks names up (``getattr``, ``vars``) may read any.
- An attribute that is set or deleted is seen as it happens. What changes within lists, dicts, sets and objects with
  attributes of their own is compared at each call. What lies in tensors, arrays, modules and globals is not followed.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Container, Dict, FrozenSet, Iterable, List, Mapping, Sequence, Set, Tuple

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
_OWN = SHELL | {"bounds", "learn", "training"}
#: Functions and attributes that look names up.
_LOOK_UP = frozenset(("getattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"))
#: Values that never change.
_FIXED = (type(None), bool, int, float, complex, str, bytes)
#: What has attributes and is not looked into.
_WHOLE = (Tensor, nn.Module, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
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
    public = [name for name in neuron.__dict__ if not name.startswith("_")]
    read: Container[str] = EVERY if looked_up else frozenset((*names, *public, *neuron.configuration))
    held = [
        name
        for name in neuron.__dict__
        if (looked_up or name in names) and not (name in _OWN or name in neuron.params or name in neuron.configuration)
    ]
    return program, {name: numbers.values[name] for name in program.numbers}, read, watched(neuron, held)


def watched(neuron: Any, names: Iterable[str]) -> List[Tuple[str, Any]]:
    """The attributes that can change within and are looked into, each with what it holds."""
    found = []
    for name in names:
        value = neuron.__dict__.get(name)
        if not isinstance(value, _FIXED) and not _is_frozen(value):
            content = _content(value, set())
            if content is not None:
                found.append((name, content))
    return found


def has_changed(neuron: Any, seen: Iterable[Tuple[str, Any]]) -> bool:
    """Whether one of these attributes holds something else than it did."""
    return any(_content(neuron.__dict__.get(name), set()) != content for name, content in seen)


def _is_frozen(value: Any) -> bool:
    declared = getattr(type(value), "__dataclass_params__", None)
    return declared is not None and bool(declared.frozen) and all(isinstance(v, _FIXED) for v in vars(value).values())


def _content(value: Any, within: Set[int]) -> Any:
    """What a list, dict, set or object holds, in a form that compares; None for what is not looked into."""
    if id(value) in within or len(within) > _MOST:
        return None
    within.add(id(value))
    if isinstance(value, (list, tuple, Mapping, set, frozenset)) and len(value) > _MOST:
        return None
    if isinstance(value, (list, tuple)):
        return type(value), [_part(one, within) for one in value]
    if isinstance(value, Mapping):
        return type(value), [(_part(name, within), _part(one, within)) for name, one in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), {repr(one) for one in value}
    held = None if isinstance(value, _WHOLE) else getattr(value, "__dict__", None)
    return None if held is None else (type(value), [(name, _part(one, within)) for name, one in held.items()])


def _part(value: Any, within: Set[int]) -> Any:
    if isinstance(value, _FIXED):
        return type(value), repr(value)  # which tells -0.0 from 0.0, and finds NaN equal
    content = _content(value, within)
    return id(value) if content is None else content
