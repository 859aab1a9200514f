"""The numbers of surrogates as parameters of a program.

A surrogate's fields are Python floats. Were such a number a constant of the program, every other ``alpha`` would be
another program with kernels of its own. Rules of this module:

- While a definition is traced, the derivative is asked of a copy of the surrogate whose floats are traced values.
- What a derivative computes of them alone, such as ``pi / 2 * alpha``, becomes one parameter. The host computes its
  value, in float64.
- A derivative that decides by a number (``if alpha > 1``) or gives it to ``math`` is that of the surrogate itself, and
  so is one that is another with traced values than with floats (``isinstance(alpha, float)``): then its numbers are
  constants of the program, which is traced again for every surrogate.
- A 0 that something else divides is a constant, too: an approximate division of 16-bit kernels would otherwise look for
  a 0 in every step, which took an eighth of the speed of LIF in bfloat16 on an H200.
"""

from __future__ import annotations

import copy
import operator
import re
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from spikecore.lang import operations
from spikecore.lang._expr import Expr
from spikecore.lang._graph import topological
from spikecore.lang.node import Node, const, substitute

#: The smallest normal number of float32. What is below it counts as 0, which it may be there.
_SMALLEST = 2.0**-126
#: Python's arithmetic, by operation.
_ARITHMETIC: Dict[str, Callable[..., float]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg")},
    "div": operator.truediv,
    "power": operator.pow,
    "abs": abs,
}


def with_tensors(surrogate: Any) -> Tuple[Any, Dict[Node, Any]]:
    """The surrogate with a parameter for each field that is a tensor, and the tensors; for a call by hand."""
    tensors = {name: value for name, value in _attributes(surrogate).items() if isinstance(value, torch.Tensor)}
    if not tensors:
        return surrogate, {}
    with_parameters = copy.copy(surrogate)
    for name in tensors:
        object.__setattr__(with_parameters, name, Expr(Node("param", (), name)))
    return with_parameters, {Node("param", (), name): value for name, value in tensors.items()}


class Numbers:
    """The numbers that the surrogates of one traced definition use, by the names of the parameters they become.

    No parameter gets one of the ``reserved`` names.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = set(reserved)
        #: id of a surrogate -> the surrogate, held so that its id is not given to another object, and its copy.
        self._copies: Dict[int, Tuple[Any, Any]] = {}
        #: Fields of surrogates, and their values; expressions of them, and the parameters that they become.
        self._fields: Dict[Node, float] = {}
        self._parameters: Dict[Node, Node] = {}
        #: Name of a parameter -> its value, in the order of their first use.
        self.values: Dict[str, float] = {}

    def copy_of(self, surrogate: Any) -> Any:
        """The surrogate with traced values in the place of floats, those of surrogates that it holds included.

        Two surrogates have numbers of their own even where they are equal: the program does not depend on values. The
        surrogate does not change from now on: the program has its numbers, and neurons that share it would not see it.
        """
        if id(surrogate) not in self._copies:
            followed = copy.copy(surrogate)
            self._copies[id(surrogate)] = surrogate, followed
            for name, value in _attributes(surrogate).items():
                # a bool or an int picks a formula or counts its terms, so it is part of the program
                if isinstance(value, float):
                    leaf = Node("param", (), self._free(re.sub(r"\W", "_", name)))
                    self._fields[leaf] = value
                    object.__setattr__(followed, name, Expr(leaf))
                elif not isinstance(value, (Expr, type)) and callable(getattr(value, "derivative", None)):
                    object.__setattr__(followed, name, self.copy_of(value))
            if hasattr(surrogate, "__dict__"):
                vars(surrogate)["_in_use"] = True
        return self._copies[id(surrogate)][1]

    def settled(self, derivative: Node, plain: Node) -> Optional[Tuple[Node, Tuple[Tuple[Node, Node], ...]]]:
        """The derivative, in which what fields alone decide is parameters, and those that are more than a field, each
        with how it is computed. None unless with the values of fields it is ``plain``, that of the surrogate itself.
        """
        order, values = topological([derivative]), dict(self._fields)
        for node in order:
            known = all(arg in values or arg.op == "const" for arg in node.args)
            if known and not node.is_bool and any(arg in values for arg in node.args):
                numbers = [values[arg] if arg in values else float(arg.attr) for arg in node.args]  # type: ignore[arg-type]  # of a constant
                values[node] = (_ARITHMETIC.get(node.op) or partial(operations.apply, node.op))(*numbers)
        if substitute(derivative, {node: const(value) for node, value in values.items()}) != plain:
            return None
        new: Dict[Node, Node] = {}
        for node in order:
            if node not in values:
                args = list(node.args)
                if node.op == "div" and abs(values.get(args[0], 1.0)) < _SMALLEST:
                    args[0] = new[args[0]] = const(values[args[0]])
                args = [self._parameter(arg, values[arg]) if arg in values else new[arg] for arg in args]
                new[node] = Node(node.op, tuple(args), node.attr)
        derivative = self._parameter(derivative, values[derivative]) if derivative in values else new[derivative]
        read = {node for node in topological([derivative]) if node.op == "param"}
        recipes = [(leaf, recipe) for recipe, leaf in self._parameters.items() if leaf in read and recipe.args]
        return derivative, tuple(recipes)

    def _parameter(self, recipe: Node, value: float) -> Node:
        """The parameter for an expression of fields."""
        if recipe not in self._parameters:
            field = next(node for node in topological([recipe]) if node in self._fields)
            self._parameters[recipe] = Node("param", (), self._free(f"{field.attr}_1")) if recipe.args else field
        leaf = self._parameters[recipe]
        self.values.setdefault(str(leaf.attr), value)
        return leaf

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
        if not any(isinstance(value, Expr) for value in attributes.values()):
            return repr(surrogate)
        for name, value in attributes.items():
            value = value.node if isinstance(value, Expr) else value
            shown = str(value.attr) if isinstance(value, Node) and value in self._fields else repr(value)
            parts.append(name if shown == name else f"{name}={shown}")
        return f"{type(surrogate).__name__}({', '.join(parts)})"


def _attributes(surrogate: Any) -> Dict[str, Any]:
    """The attributes of a surrogate: fields, also in slots, then others."""
    names: List[str] = [field.name for field in fields(surrogate)] if is_dataclass(surrogate) else []
    attributes = {name: getattr(surrogate, name) for name in names if hasattr(surrogate, name)}
    attributes.update((name, value) for name, value in getattr(surrogate, "__dict__", {}).items() if name != "_in_use")
    return attributes
