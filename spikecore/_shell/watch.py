"""Whether something that a definition read has changed, other than by an attribute of the neuron being set.

Rules of this module:

- It compares the attributes that were read, those of the neuron's class, the globals that the code names, and the
  attributes of imported modules that it names as ``config.gain``; within them lists, dicts, sets, arrays, tensors,
  objects, modules and classes.
- Code itself (functions, methods, default arguments) and closures are not compared.
- A value that is too large to be compared in each call gives a warning.
"""

from __future__ import annotations

import builtins
import dis
import warnings
from functools import lru_cache
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Collection, Container, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from spikecore._base.contents import MOST, Look, class_values
from spikecore._base.unchanged import Check
from spikecore.lang._trace import Ran

#: Functions and attributes that find attributes by a name which is not in the code.
_LOOK_UP = frozenset(("getattr", "hasattr", "vars", "dir", "attrgetter", "__dict__", "__getattribute__"))
#: Globals that are code.
_CODE = (ModuleType, FunctionType, BuiltinFunctionType)
#: Packages whose modules hold constants only.
_CONSTANT = frozenset(("builtins", "cmath", "math", "numpy", "spikecore", "torch"))
#: How often to look again at something that another thread changes meanwhile.
_TRIES = 3

#: Attributes of a neuron: the attribute that holds them by name (None for the neuron itself), and their names.
Own = List[Tuple[Optional[str], List[str]]]


class _Every(Container[str]):
    """All names."""

    def __contains__(self, name: object) -> bool:
        return True


EVERY = _Every()


class _Seen:
    """One look at everything."""

    __slots__ = ("checks", "content", "own", "too_large")

    def __init__(self) -> None:
        #: Of each entry of ``Own``, with the objects that were there.
        self.own: List[Tuple[Optional[str], List[str], List[Any]]] = []
        self.checks: Sequence[Check] = ()
        self.content: Any = object()  # which equals no other
        self.too_large: List[str] = []


class Watch:
    """What a definition read, as it was.

    It does not hold the neuron, nor the dicts of one: a neuron that is dropped is freed at once.
    """

    __slots__ = ("_class_names", "_globals", "_left_out", "_names", "_own", "_seen")

    def __init__(
        self,
        neuron: Any,
        own: Own,
        class_names: Container[str],
        names: Container[str],
        used: Sequence[Tuple[Dict[str, Any], List[str]]],
        left_out: Collection[str],
    ) -> None:
        self._own, self._class_names, self._names = own, class_names, names
        self._globals, self._left_out = used, left_out
        self._seen = _Seen()
        for _ in range(_TRIES):
            try:
                self._seen = self._look(neuron)
            except RuntimeError:  # a dict changed its size meanwhile
                self._seen.checks = (_fails,)
            else:
                break

    @property
    def too_large(self) -> Sequence[str]:
        """Names, as the code has them, of what is too large to be compared as a whole."""
        return self._seen.too_large

    def __bool__(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._seen.own or self._seen.checks)

    def has_changed(self, neuron: Any) -> bool:
        """Whether the contents of something that was read have changed. Asked in each call, so it is quick."""
        seen = self._seen
        try:
            if self._is_as(seen, neuron.__dict__):
                return False
            now = self._look(neuron)
        except RuntimeError:
            return True
        if now.content != seen.content:
            return True
        self._seen = now  # other objects, with equal contents
        return False

    def _is_as(self, seen: _Seen, held: Mapping[str, Any]) -> bool:
        for where, names, kept in seen.own:
            if not all(map(is_, map((held if where is None else held[where]).get, names), kept)):
                return False
        for check in seen.checks:  # noqa: SIM110  # all() would take twice as long
            if not check():
                return False
        return True

    def _look(self, neuron: Any) -> _Seen:
        look, seen, held = Look(self._names, self._left_out), _Seen(), neuron.__dict__
        content: List[Any] = []
        for where, names in self._own:
            scope = held if where is None else held[where]
            kept = [scope.get(name) for name in names]
            seen.own.append((where, names, kept))
            content += [look.root(f"self.{name}", value) for name, value in zip(names, kept)]
        kind = type(neuron)
        own_class = [name for name in class_values(kind) if name in self._class_names and name not in self._left_out]
        content.append(look.attributes_of_class(kind, own_class, "self.{}"))
        content += [look.entries(scope, names, "{}") for scope, names in self._globals]
        seen.content, seen.checks, seen.too_large = content, look.checks, look.too_large
        return seen


def _fails() -> bool:
    return False


def watch(neuron: Any, read: Container[str], left_out: FrozenSet[str], ran: Ran) -> Optional[Watch]:
    """What tells whether something that was read changes; None if nothing can. What is too large is warned of.

    ``read``: the attributes of the neuron that were; ``left_out``: those that say nothing about the definition.
    """
    named = {name for code in ran.codes for name in code.co_names}
    own: Own = []
    for where in (None, "_parameters", "_buffers", "_modules"):
        scope = neuron.__dict__ if where is None else neuron.__dict__[where]
        names = [name for name in scope if name in read and name not in left_out]
        if names:
            own.append((where, names))
    counting: Container[str] = named if ran.known and named.isdisjoint(_LOOK_UP) else EVERY
    scopes: Dict[int, Tuple[Dict[str, Any], List[str]]] = {}
    for code, scope in ran.codes.items():
        for path in _globals_of(code):
            held, name = _end(scope, path)
            used = scopes.setdefault(id(held), (held, []))[1]
            # a name that is not there may come, unless it is a builtin
            there = name in held or not hasattr(builtins, name)
            if name not in used and there and _is_value(held.get(name), counting):
                used.append(name)
    made = Watch(neuron, own, read, counting, [one for one in scopes.values() if one[1]], left_out)
    for name in made.too_large:
        if name.rpartition(".")[2] in named:
            kind = type(neuron).__name__
            warnings.warn(
                f"{kind}.dynamics reads {name}, which holds more than {MOST} values: too many to compare at each call, "
                f"so that {kind} goes on as before when one of them changes. Set the attribute anew after a change; "
                "or keep what is read in a tuple, a tensor, or attributes of its own",
                RuntimeWarning,
                stacklevel=2,
            )
    return made if made else None


def _is_value(value: Any, names: Container[str]) -> bool:
    """Whether a global can change later, other than by being code that is replaced."""
    if isinstance(value, type):
        return any(name in names for name in class_values(value))
    return not isinstance(value, _CODE)


def _end(scope: Dict[str, Any], path: Sequence[str]) -> Tuple[Dict[str, Any], str]:
    """The dict and the name of what a path of names begins with, behind the imported modules on its way."""
    for name in path[:-1]:
        value = scope.get(name)
        if not isinstance(value, ModuleType) or value.__name__.partition(".")[0] in _CONSTANT:
            return scope, name
        scope = vars(value)
    return scope, path[-1]


@lru_cache(maxsize=1024)
def _globals_of(code: CodeType) -> Tuple[Tuple[str, ...], ...]:
    """The globals and builtins that code reads, each with the attributes that it reads of them: a, a.b, a.b.c."""
    paths: Dict[Tuple[str, ...], None] = {}
    path: Tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            path = (str(step.argval),)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, str(step.argval))
        elif step.opname != "EXTENDED_ARG":
            path = ()
        if path:
            paths[path] = None
    return tuple(paths)
