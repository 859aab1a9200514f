"""Numbers that remember the operations that made them, so that a step is written once and derived by rule.

A step of a neuron is Python arithmetic on :class:`Value`; :func:`cotangents` goes back through what it computed, with
the rules of :mod:`spikecore.testing._oracle.rules`. Nothing here is of the language: operations are NumPy's.
"""
# the operators of Python say what they are

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple, Union

import numpy as np

from spikecore.testing._oracle.moved import Moves
from spikecore.testing._oracle.rules import BACK, VALUE, Array

_count = itertools.count()


def _operator(op: str) -> Callable[..., Value]:
    """The method of an operator of Python."""
    return lambda *args: apply(op, *args)


def _reflected(op: str) -> Callable[[Value, Any], Value]:
    """Reflected method of an operator whose left operand is a number."""
    return lambda right, left: apply(op, left, right)


class Value:
    """An array, the operation that made it, and the arguments of that; a leaf has no operation.

    ``rule``: the derivative of a spike by its argument.
    """

    __slots__ = ("args", "array", "number", "op", "rule")
    __hash__ = object.__hash__

    def __init__(self, array: Any, op: str = "", args: Tuple[Value, ...] = (), rule: Any = None) -> None:
        self.array: Array = np.asarray(array)
        self.op, self.args, self.rule = op, args, rule
        self.number = next(_count)

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __neg__, __abs__, __invert__ = _operator("neg"), _operator("abs"), _operator("not")
    __ge__, __gt__ = _operator("ge"), _operator("gt")
    __le__, __lt__ = _operator("le"), _operator("lt")
    __eq__, __ne__ = _operator("eq"), _operator("ne")  # type: ignore[assignment]  # values, and no truth value
    __and__, __or__ = _operator("and"), _operator("or")


def apply(op: str, *args: Union[Value, float]) -> Value:
    """The operation of these arguments. A number takes the dtype of the arrays beside it."""
    dtype = next(_dtype(arg) for arg in reversed(args) if isinstance(arg, Value))
    values = tuple(arg if isinstance(arg, Value) else Value(np.asarray(arg, dtype)) for arg in args)
    array = VALUE[op](*(value.array for value in values))
    return Value(array if Moves.now is None else Moves.now.value(op, array), op, values)


def _dtype(value: Value) -> Any:
    """The dtype of a value, or of what a condition compares."""
    return value.array.dtype if value.array.dtype != bool or not value.args else _dtype(value.args[0])


def spike(u: Value, derivative: Any, strict: bool = False) -> Value:
    """1 where ``u >= 0`` (``u > 0`` if ``strict``), else 0; NaN does not fire. ``derivative(u)`` is its derivative."""
    with np.errstate(invalid="ignore"):
        fires = np.asarray(u.array > 0 if strict else u.array >= 0)
    fires = fires if Moves.now is None else Moves.now.value("spike", fires)
    return Value(fires.astype(u.array.dtype), "spike", (u,), derivative)


class _Functions:
    """Functions by the names of the language: ``ops.exp(x)``."""

    def __getattr__(self, op: str) -> Callable[..., Value]:
        if op not in VALUE:
            raise AttributeError(op)
        return partial(apply, op)

    def clamp(self, x: Value, low: Any = -np.inf, high: Any = np.inf) -> Value:
        """``x`` within bounds."""
        return apply("clamp", x, low, high)

    def round(self, x: Value, straight_through: bool = False) -> Value:
        """The nearest whole number, and the derivative of ``x``."""
        return apply("round", x) + (x - apply("detach", x)) if straight_through else apply("round", x)

    def floor(self, x: Value, straight_through: bool = False) -> Value:
        """The whole number below, and the derivative of ``x``."""
        return apply("floor", x) + (x - apply("detach", x)) if straight_through else apply("floor", x)


ops: Any = _Functions()


#: op -> how far its arguments are from where it decides otherwise.
_DISTANCES: Dict[str, Callable[..., Tuple[Array, ...]]] = {
    **dict.fromkeys(("ge", "gt", "le", "lt", "eq", "ne", "minimum", "maximum"), lambda a, b: (a - b,)),
    **dict.fromkeys(("sign", "abs", "relu"), lambda x: (x,)),
    **dict.fromkeys(("floor", "ceil", "trunc"), lambda x: (x - np.rint(x),)),
    "remainder": lambda x, divisor: (x / divisor - np.rint(x / divisor),),
    "round": lambda x: (x - np.floor(x) - 0.5,),
    "clamp": lambda x, low, high: (x - low, x - high, high - low),
}


@np.errstate(all="ignore")  # where a potential is infinite, a derivative's formula may be NaN
def distances(roots: Iterable[Value]) -> List[Array]:
    """For every decision that the roots depend on, spikes and their derivatives among them: 0 where it changes."""
    near: List[Array] = []
    seen, waiting = set(), list(roots)
    while waiting:
        value = waiting.pop()
        if value.number in seen:
            continue
        seen.add(value.number)
        waiting.extend(value.args)
        arrays = [arg.array for arg in value.args]
        if value.op == "spike":
            near += [arrays[0], *value.rule.distances(arrays[0])]
        elif value.op in _DISTANCES:
            near += _DISTANCES[value.op](*arrays)
    return near


def cotangents(roots: Iterable[Tuple[Value, Array]], through_spikes: bool = True) -> Dict[int, Array]:
    """The cotangent of every value that the roots depend on, by its number.

    Cotangents have the shape that arrives: one of a parameter is not summed over the neurons that share it.
    """
    sums: Dict[int, Array] = {}
    waiting: Dict[int, Value] = {}

    def arrives(value: Value, g: Any) -> None:
        sums[value.number] = Moves.plus(sums[value.number], g) if value.number in sums else np.asarray(g)
        waiting[value.number] = value

    for root, g in roots:
        arrives(root, g)
    while waiting:
        value = waiting.pop(max(waiting))
        for arg, part in zip(value.args, _parts(value, sums[value.number], through_spikes)):
            if part is not None:
                arrives(arg, part if Moves.now is None else Moves.now.part(value.op, part))
    return sums


def _parts(value: Value, g: Array, through_spikes: bool) -> Tuple[Any, ...]:
    """The cotangents of a value's arguments; None for one that has none."""
    moves = Moves.now
    arrays: Sequence[Array] = [arg.array for arg in value.args]
    if value.op == "spike":
        u = arrays[0] if moves is None else moves.part("spike", arrays[0])
        return (g * value.rule(u),) if through_spikes else (None,)
    if value.op not in BACK:
        return (None,) * len(value.args)
    arrays = arrays if moves is None else moves.arguments(value.op, arrays)
    return BACK[value.op](g, value.array, *arrays)
