"""What lies within values that can change, and whether it is still there.

A :class:`Look` at values has two results:

- Checks: one for each list, dict, object, ... that was met. A check passes while this one holds the very same objects.
  Where all pass, nothing has changed, so that a call compares no value.
- The content of each value, in a form that compares. It is looked at once a check has failed: another object may be
  an equal one.

What is only compared by identity is kept: another object could be made at its address.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Collection, Container, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from spikecore._base.unchanged import (
    Check,
    bytes_of,
    has,
    has_bytes,
    has_version,
    holds,
    holds_within,
    is_built,
    lists,
    maps,
    maps_within,
    sizes,
)

#: The most values that are compared; a larger value is not looked into.
MOST = 1000
#: Types whose values never change.
_FIXED = (type(None), bool, int, float, complex, str, bytes)
#: Types whose attributes are not looked into.
_WHOLE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType)
#: Types that hold items and no attributes.
_BARE = (list, tuple, dict, set, frozenset)
#: Packages whose classes hold no values of a user.
_LIBRARIES = ("builtins", "torch", "spikecore")


class Look:
    """One look at several values.

    ``names``: the attributes of modules and classes that count, less ``left_out``. Of other objects all do.
    """

    def __init__(self, names: Container[str], left_out: Collection[str] = ()) -> None:
        self.checks: List[Check] = []
        #: The names, as the caller gives them, of values that hold too much to look into all of it.
        self.too_large: List[str] = []
        self._names, self._left_out = names, left_out
        self._name = ""
        self._met: Dict[int, Any] = {}

    def root(self, name: str, value: Any) -> Any:
        """The content of a value, which ``too_large`` lists under this name."""
        self._name = name
        return self.part(value)

    def _cut(self) -> None:
        if self._name not in self.too_large:
            self.too_large.append(self._name)

    def part(self, value: Any) -> Any:
        """The content of a value; for one that is not looked into, its identity."""
        if is_fixed(value):
            return type(value), repr(value)  # which tells -0.0 from 0.0, and finds NaN equal
        content = self._content(value)
        return _Same(value) if content is None else content

    def attributes_of_class(self, kind: Any, names: Sequence[str], called: str = "") -> Any:
        """The values of a class under these names, as it inherits them. ``called``: see :meth:`entries`."""
        if not names:
            return None
        kept = [getattr(kind, name, None) for name in names]
        self.checks.append(partial(has, kind, names, kept))
        return self._parts(names, kept, called)

    def entries(self, held: Mapping[str, Any], names: Sequence[str], called: str = "") -> Any:
        """The values under these names of a dict, None where there is none.

        ``called``: what the caller calls each, with ``{}`` for its name; empty within a value that the caller named.
        """
        if not names:
            return None
        kept = [held.get(name) for name in names]
        self.checks.append(partial(holds, held, names, kept))
        return self._parts(names, kept, called)

    def _entries_within(self, value: nn.Module, where: Optional[str], names: Sequence[str]) -> Any:
        """The same of a dict of a module, of ``__dict__`` itself for None."""
        if not names:
            return None
        held = value.__dict__ if where is None else value.__dict__[where]
        kept = [held.get(name) for name in names]
        self.checks.append(partial(holds_within, value, where, names, kept))
        return self._parts(names, kept, "")

    def _parts(self, names: Sequence[str], values: Sequence[Any], called: str) -> Any:
        if not called:
            return [(name, self.part(value)) for name, value in zip(names, values)]
        return [(name, self.root(called.format(name), value)) for name, value in zip(names, values)]

    def _counting(self, names: Iterable[str]) -> List[str]:
        return [name for name in names if name in self._names and name not in self._left_out]

    def _content(self, value: Any) -> Any:
        if id(value) in self._met:
            return None
        if isinstance(value, _WHOLE):
            return None
        if len(self._met) > MOST:
            self._cut()
            return None
        self._met[id(value)] = value
        if isinstance(value, type):
            return self.attributes_of_class(value, self._counting(class_values(value)))
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple, deque, Mapping, set, frozenset)):
            content = self._items(value)
            if content is None or type(value) in _BARE:
                return content
        else:
            content = self._memory(value)
        attributes, of_class = [*self._attributes(value)], self._content(type(value))
        if content is None and not attributes and of_class is None and not hasattr(value, "__dict__"):
            return None
        return type(value), content, attributes, of_class

    def _tensor(self, value: Tensor) -> Any:
        if value.is_inference():
            return None
        # the version, not the values: reading values would wait for the device
        self.checks.append(partial(has_version, value, value._version))
        return _Same(value), value._version

    def _items(self, value: Any) -> Any:
        if len(value) > MOST:
            # a tuple of numbers cannot change
            if not (isinstance(value, (tuple, frozenset)) and all(map(is_fixed, value))):
                self._cut()
            return None
        if isinstance(value, Mapping):
            names, kept = list(value), list(value.values())
            self.checks.append(partial(maps, value, names, kept))
            return type(value), [(self.part(name), self.part(one)) for name, one in zip(names, kept)]
        kept = list(value)
        if not isinstance(value, (tuple, frozenset)):
            self.checks.append(partial(lists, value, kept))
        if isinstance(value, (set, frozenset)):
            return type(value), {(repr(one), type(one) if is_fixed(one) else _Same(one)) for one in kept}
        return type(value), [self.part(one) for one in kept]

    def _memory(self, value: Any) -> Any:
        """The bytes of an array of NumPy or of Python, if they are few; None for what is no array."""
        try:
            view = memoryview(value)
        except (TypeError, ValueError, BufferError):
            return None
        if view.nbytes > 8 * MOST:
            # read-only memory does not change, unless it is a view of memory that another object can write to
            if not view.readonly or getattr(value, "base", None) is not None:
                self._cut()
            return None
        kept = bytes_of(view)
        self.checks.append(partial(has_bytes, value, kept))
        return kept

    def _attributes(self, value: Any) -> Iterator[Tuple[str, Any]]:
        """The attributes of an object itself, those in ``__slots__`` included."""
        kind: Any = type(value)
        slots = [name for name in _slots(kind) if hasattr(value, name)]
        fixed = _is_frozen(kind)
        if hasattr(value, "__dict__"):
            names, kept = list(value.__dict__), list(value.__dict__.values())
            if not fixed:
                self.checks.append(partial(maps_within, value, names, kept))
            for name, one in zip(names, kept):
                yield name, self.part(one)
        if slots:
            kept = [getattr(value, name) for name in slots]
            if not fixed:
                self.checks.append(partial(has, value, slots, kept))
            for name, one in zip(slots, kept):
                yield name, self.part(one)

    def _module(self, value: nn.Module) -> Any:
        """Attributes, tensors and classes of a module under names that count, and all the modules that it holds."""
        kind = type(value)
        held, of_name = value._modules, self._counting
        # torch replaces these dicts, as on `del` of an item, so that a check must not keep one of them
        self.checks.append(partial(is_built, value, list(held), list(held.values()), sizes(value)))
        # these have numbers for names
        tensors = list if isinstance(value, (nn.ParameterList, nn.ParameterDict)) else of_name
        of_class = of_name(class_values(kind))
        # code of spikecore itself reads the configuration of a neuron
        read = [name for name in getattr(kind, "configuration", ()) if name in value.__dict__]
        own = dict.fromkeys((*of_name(value.__dict__), *of_class, *read))
        return (
            kind,
            self._entries_within(value, None, [*own]),
            self.attributes_of_class(kind, of_class),
            self._entries_within(value, "_parameters", tensors(value._parameters)),
            self._entries_within(value, "_buffers", of_name(value._buffers)),
            [(name, self.part(one)) for name, one in held.items()],
        )


class _Same:
    """An object that is compared by identity, whatever it contains."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def is_fixed(value: Any) -> bool:
    """Whether a value is a number, a text or the like, which never changes."""
    kind: Any = type(value)
    return isinstance(value, _FIXED) or _is_number_of_numpy(kind)


@lru_cache(maxsize=256)
def _is_number_of_numpy(kind: Any) -> bool:
    # looked at by name: NumPy may not be installed. A void is a record, which changes
    names = [base.__name__ for base in kind.__mro__ if base.__module__ == "numpy"]
    return "generic" in names and "void" not in names


@lru_cache(maxsize=256)
def _is_frozen(kind: Any) -> bool:
    declared = getattr(kind, "__dataclass_params__", None)
    return declared is not None and bool(declared.frozen)


@lru_cache(maxsize=256)
def _slots(kind: Any) -> Tuple[str, ...]:
    """Names of the attributes that objects of a class hold without a dict; a class does not gain any."""
    named = ((name, member) for base in kind.__mro__ for name, member in vars(base).items())
    return tuple(name for name, member in named if isinstance(member, MemberDescriptorType))


def class_values(kind: Any) -> List[str]:
    """Names of what the user's classes among those that ``kind`` inherits from hold, without methods and the like."""
    users = [base for base in kind.__mro__ if str(base.__module__).partition(".")[0] not in _LIBRARIES]
    return [
        name
        for base in users
        for name, value in list(vars(base).items())
        if not (name.startswith("__") and name.endswith("__")) and not hasattr(type(value), "__get__")
    ]
