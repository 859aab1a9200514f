"""Vectors: several values of each neuron under one name, as they are declared and as they are traced.

A vector is unrolled when a definition is traced: state ``h`` of 16 values is the states ``h[0]`` to ``h[15]`` of the
program, each one number per neuron. So programs, adjoints and backends know numbers alone.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Sequence, Tuple, Union

from torch import Tensor

from spikecore.lang._expr import Elements, Expr, TraceError, here, lift
from spikecore.lang._graph import topological
from spikecore.lang.node import Node


@dataclass(frozen=True)
class Vector:
    """Declaration of a vector; :func:`vector` makes it."""

    n: Union[int, str]
    initial: Any = 0.0


def vector(n: Union[int, str], initial: Any = 0.0) -> Vector:
    """Declaration of ``n`` values for each neuron, in ``states``, ``params`` or ``inputs`` of a neuron.

    n: the number of values, 1 or more, or a name in ``sizes`` of the class: ``sizes = {"branches": 4}`` is an argument
        of the constructor.
    initial: of a state a number, or the name of a parameter, a vector or not; of a parameter its default: a number for
        all values, or a sequence of n numbers.
    """
    return Vector(n, tuple(initial) if isinstance(initial, (list, tuple)) else initial)


def elements(name: str, declared: Any) -> Tuple[str, ...]:
    """The names that a program has for what is declared, a vector or not."""
    return tuple([f"{name}[{k}]" for k in range(int(declared.n))]) if isinstance(declared, Vector) else (name,)


def leaf(op: str, name: str, declared: Any) -> Any:
    """The traced value of a declared state, parameter or input."""
    leaves = [Expr(Node(op, (), each)) for each in elements(name, declared)]
    return VectorExpr(leaves) if isinstance(declared, Vector) else leaves[0]


def parts(name: str, value: Any) -> List[Tuple[str, Expr]]:
    """The names that a program has for a traced value, and the values."""
    return list(zip(elements(name, Vector(len(value))), value)) if isinstance(value, VectorExpr) else [(name, value)]


def total(values: Any) -> Any:
    """The sum of a vector, a list or the last dimension of a tensor: ``((v[0] + v[1]) + v[2]) + ...``"""
    if isinstance(values, Tensor):
        values = values.unbind(-1)
    elif not isinstance(values, (Elements, list, tuple)):
        raise TraceError(f"sum takes a vector{here()}, and {values!r} is one number per neuron; leave sum out")
    return functools.reduce(operator.add, values)


def by_element(function: Callable[..., Any], *args: Any) -> VectorExpr:
    """The vector of what a function gives for each element of vectors and lists; a number stands for all elements."""
    are_vectors = [isinstance(arg, (Elements, list, tuple)) for arg in args]
    vectors = [arg for arg, is_vector in zip(args, are_vectors) if is_vector]
    sizes = sorted(set(map(len, vectors)))
    if len(sizes) > 1:
        texts = [repr(arg) if isinstance(arg, Elements) else f"a list of {len(arg)}" for arg in vectors]
        raise TraceError(
            f"{' and '.join(texts)} are of different sizes{here()}; declare them with one n, take a part, as in "
            f"h[:{sizes[0]}], or write sc.ops.sum(h) for one number"
        )
    columns = [arg if is_vector else [arg] * sizes[0] for arg, is_vector in zip(args, are_vectors)]
    return VectorExpr([function(*row) for row in zip(*columns)])


class VectorExpr(Elements):
    """A traced vector: traced values with Python's operators, which go by element."""

    __slots__ = ("_elements",)

    def __init__(self, values: Sequence[Any]) -> None:
        self._elements = tuple([value if isinstance(value, Expr) else Expr(lift(value)) for value in values])

    def __repr__(self) -> str:
        read = [str(node.attr).partition("[") for node in topological([self._elements[0].node]) if node.is_leaf]
        names = dict.fromkeys(name for name, bracket, _ in read if bracket)
        return f"a vector of {len(self)} values" + (f" (of {', '.join(names)})" if names else "")

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[Expr]:
        return iter(self._elements)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, (int, slice)):
            raise TraceError(f"[{index!r}] of {self!r} is not part of the language{here()}; give a number or a slice")
        if isinstance(index, slice):
            part = self._elements[index]
            if not part:
                raise TraceError(f"{index} of {self!r} is empty{here()}; take 1 value or more")
            return VectorExpr(part)
        if not -len(self) <= index < len(self):
            raise TraceError(f"[{index}] of {self!r} does not exist{here()}; the last one is [{len(self) - 1}]")
        return self._elements[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._elements[0], name)  # which refuses it

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> VectorExpr:
        return by_element(functools.partial(ufunc, **kwargs), *inputs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> VectorExpr:
        return by_element(functools.partial(func, **(kwargs or {})), *args)


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *others: by_element(getattr(Expr, name), self, *others)


#: Operators of a traced value, among them those that it refuses.
_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow ge gt le lt eq ne and rand or ror neg pos invert abs round "
    "bool float int index mod floordiv matmul setitem"
)
for _name in _OPERATORS.split():
    setattr(VectorExpr, f"__{_name}__", _operator(f"__{_name}__"))
