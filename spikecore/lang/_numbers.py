"""The numbers of surrogates, followed through Python's arithmetic, so that they become parameters of a program.

A surrogate's fields are Python floats, and its derivative computes with them before they meet a traced value:
``(pi / 2 * alpha) * u``. Were such a number a constant of the program, every other ``alpha`` would be another program
with kernels of its own. Rules of this module:

- While a definition is traced, the derivative is asked of a copy of the surrogate whose floats are :class:`Number`.
- A :class:`Number` is the float that Python computes, and knows how it was computed. Where it meets a traced value it
  becomes a parameter of the program. The host computes its value, in float64, as it did when it was a constant.
- What Python does with a number beyond arithmetic (``if alpha > 1``, ``math.sqrt(alpha)``, ``int(alpha)``) is no longer
  followed: it is part of the program, which is traced again for every surrogate.
- A 0 that a traced value divides is a constant all the same (:func:`numerator_of`).
"""

from __future__ import annotations

import copy
import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from spikecore.lang._graph import topological
from spikecore.lang.node import Node, const

#: The smallest normal number of float32.
_SMALLEST = 2.0**-126

_current: ContextVar[Optional[Numbers]] = ContextVar("spikecore_numbers", default=None)


class Number(float):
    """A float that knows how it was computed from the numbers of surrogates."""

    __slots__ = ("numbers", "recipe")

    numbers: Numbers
    recipe: Node

    def __new__(cls, value: float, numbers: Numbers, recipe: Node) -> Number:
        """``recipe`` is the number as an expression of fields, which are parameters, and constants."""
        self = super().__new__(cls, value)
        self.numbers, self.recipe = numbers, recipe
        return self

    def __reduce__(self) -> Tuple[Any, ...]:
        return float, (float(self),)  # a copy is kept for longer than the trace, and a mere number

    def __deepcopy__(self, memo: Any) -> float:
        return float(self)


def _binary(name: str, op: str, swap: bool = False) -> Callable[[Number, Any], Any]:
    plain = getattr(float, name)

    def method(self: Number, other: Any) -> Any:
        value = plain(self, other)
        if type(value) is not float:  # NotImplemented, or a complex power
            return value
        args = (_recipe(other), self.recipe) if swap else (self.recipe, _recipe(other))
        return Number(value, self.numbers, Node(op, args))

    return method


def _unary(name: str, op: str) -> Callable[[Number], Number]:
    plain = getattr(float, name)

    def method(self: Number) -> Number:
        return Number(plain(self), self.numbers, Node(op, (self.recipe,)))

    return method


for _name, _op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"), ("pow", "power")):
    setattr(Number, f"__{_name}__", _binary(f"__{_name}__", _op))
    setattr(Number, f"__r{_name}__", _binary(f"__r{_name}__", _op, swap=True))
for _name in ("neg", "abs"):
    setattr(Number, f"__{_name}__", _unary(f"__{_name}__", _name))
Number.__pos__ = lambda self: self  # type: ignore[method-assign]  # of a float it is the float, too


def _recipe(value: float) -> Node:
    return value.recipe if isinstance(value, Number) else const(value)


def computed(op: str, args: Sequence[Any], value: Any) -> Any:
    """The value of an operation of the language on Python numbers, which knows how it was computed if one of them does.

    A choice by a truth value is made here, and is not followed.
    """
    known = next((arg.numbers for arg in args if isinstance(arg, Number)), None)
    if known is None or type(value) is not float or any(isinstance(arg, bool) for arg in args):
        return value
    return Number(value, known, Node(op, tuple(_recipe(arg) for arg in args)))


def parameter_of(value: Any) -> Optional[Node]:
    """The parameter of the current trace that stands for a surrogate's number; None for any other value."""
    if isinstance(value, Number) and value.numbers is _current.get():
        return value.numbers.parameter(value)
    return None


def numerator_of(value: Any) -> Optional[Node]:
    """The constant for a surrogate's number that is 0 and is divided by a traced value; None for any other value.

    An approximate division of 16-bit kernels would otherwise look for a 0 in every step, which took an eighth of the
    speed of LIF in bfloat16 on an H200. What is below float32's normal numbers counts as 0, which it may be there.
    """
    if isinstance(value, Number) and abs(value) < _SMALLEST:
        return const(float(value))
    return None


def with_tensors(surrogate: Any, traced: Callable[[Node], Any]) -> Tuple[Any, Dict[Node, Any]]:
    """The surrogate with a parameter for each field that is a tensor, and the tensors; for a call by hand."""
    tensors = {name: value for name, value in _attributes(surrogate).items() if isinstance(value, torch.Tensor)}
    if not tensors:
        return surrogate, {}
    with_parameters = copy.copy(surrogate)
    for name in tensors:
        object.__setattr__(with_parameters, name, traced(Node("param", (), name)))
    return with_parameters, {Node("param", (), name): value for name, value in tensors.items()}


def current() -> Optional[Numbers]:
    """The numbers that the current trace follows, if it follows any."""
    return _current.get()


class Numbers:
    """The numbers that the surrogates of one traced definition use, by the names of the parameters they become.

    No parameter gets one of the ``reserved`` names.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = set(reserved)
        #: id of a surrogate -> the surrogate, held so that its id is not given to another object, and its copy.
        self._copies: Dict[int, Tuple[Any, Any]] = {}
        self._names: Dict[Node, str] = {}
        #: Name of a parameter -> its value, in the order of their first use.
        self.values: Dict[str, float] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Makes this the current trace's numbers: they become parameters of what is traced in the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def copy_of(self, surrogate: Any) -> Any:
        """The surrogate with floats that are followed, those of surrogates that it holds included.

        Two surrogates have numbers of their own even where they are equal: the program does not depend on values. The
        surrogate does not change from now on: the program has its numbers, and neurons that share it would not see it.
        """
        if id(surrogate) not in self._copies:
            self._copies[id(surrogate)] = surrogate, self._copied(surrogate)
            if hasattr(surrogate, "__dict__"):
                vars(surrogate)["_in_use"] = True
        return self._copies[id(surrogate)][1]

    def _copied(self, surrogate: Any) -> Any:
        followed = copy.copy(surrogate)
        for name, value in _attributes(surrogate).items():
            # a bool or an int picks a formula or counts its terms, so it is part of the program
            if isinstance(value, float):
                leaf = Node("param", (), self._free(_word(name)))
                object.__setattr__(followed, name, Number(value, self, leaf))
            elif not _is_traced(value) and callable(getattr(value, "derivative", None)) and not isinstance(value, type):
                object.__setattr__(followed, name, self.copy_of(value))
        return followed

    def parameter(self, number: Number) -> Node:
        """The parameter that holds a number."""
        recipe = number.recipe
        if recipe not in self._names:
            fields_ = [str(node.attr) for node in topological([recipe]) if node.op == "param"]
            self._names[recipe] = fields_[0] if recipe.is_leaf else self._free(f"{fields_[0]}_1")
        name = self._names[recipe]
        self.values.setdefault(name, float(number))
        return Node("param", (), name)

    def _free(self, name: str) -> str:
        """The name, or it with the next number that is free: ``alpha``, ``alpha_1``, ``alpha_2``."""
        base, _, digits = name.rpartition("_") if re.search(r"_\d+$", name) else (name, "", "1")
        count = int(digits)
        while name in self._reserved:
            count += 1
            name = f"{base}_{count}"
        self._reserved.add(name)
        return name

    def label(self, surrogate: Any) -> str:
        """A surrogate as a program shows it, which does not know its values: class and names of fields."""
        attributes, parts = _attributes(self.copy_of(surrogate)), []
        if not any(isinstance(value, Number) or _is_traced(value) for value in attributes.values()):
            return repr(surrogate)
        for name, value in attributes.items():
            if isinstance(value, Number):
                field = str(value.recipe.attr)
                parts.append(name if name == field else f"{name}={field}")
            else:
                parts.append(f"{name}={(value.node if _is_traced(value) else value)!r}")
        return f"{type(surrogate).__name__}({', '.join(parts)})"

    def recipes(self, derivative: Node) -> Tuple[Tuple[Node, Node], ...]:
        """The parameters of a derivative that are computed from fields, each with how."""
        used = {node for node in topological([derivative]) if node.op == "param"}
        recipes = [(Node("param", (), name), recipe) for recipe, name in self._names.items()]
        return tuple((leaf, recipe) for leaf, recipe in recipes if leaf in used and not recipe.is_leaf)


def _attributes(surrogate: Any) -> Dict[str, Any]:
    """The attributes of a surrogate: fields, also in slots, then others."""
    names: List[str] = [field.name for field in fields(surrogate)] if is_dataclass(surrogate) else []
    attributes = {name: getattr(surrogate, name) for name in names if hasattr(surrogate, name)}
    attributes.update((name, value) for name, value in getattr(surrogate, "__dict__", {}).items() if name != "_in_use")
    return attributes


def _is_traced(value: Any) -> bool:
    """True for a traced value, whose class is in a module above this one."""
    return hasattr(type(value), "node")


def _word(name: str) -> str:
    """An identifier for people, whatever the attribute is called."""
    return re.sub(r"\W", "_", name)
