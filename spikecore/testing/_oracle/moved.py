"""Condition of a number: the oracle computes it again, with every operation moved by what it may be off.

A backend rounds in float32 where the oracle has float64, and its ``exp`` is off by some units in the last place. That
is no error of it, and the equations may amplify it: a gradient that is a small difference of large terms hangs on the
last digits of these. How much, is measured. The contract:

- A moved run is the oracle's run in :data:`COPIES` copies at once, along an axis in front of the neurons. In the first
  nothing is moved. In each other one every result that is rounded is moved up or down by units in the last place of the
  dtype of the backend's arithmetic: values by :data:`OFF`, cotangents by :data:`OFF_BACK`, and sums over neurons by as
  much as adding one after the other may cost. Signs are drawn, and are the same in every run of the suite. Nothing that
  was given is moved. Where every bit is fixed, as in fixed point, cotangents alone are.
- The copies take the decisions of the first: a spike, a comparison, ``floor``, a side of ``minimum``. What is measured
  is how rounding grows along the path that the oracle takes, a tie stays a tie, and spikes are compared to the bit.
  Inputs keep decisions a margin from others (:mod:`spikecore.testing._inputs`). If a copy has crossed that margin all
  the same, so may a sound backend: that neuron's spread is infinite, from this step on and in all gradients.
- The spread of a number is the largest distance of a copy from the first one. A number may be off by :data:`MULTIPLE`
  of its spread where that is more than its tolerance. Of well-conditioned numbers it is some units in the last place,
  far below every tolerance, so it excuses nothing there. What is not finite has no spread.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Dict, Iterator, Optional, Sequence, Tuple

import numpy as np

from spikecore.testing._oracle.rules import ROUNDED, Array

#: The run that is not moved, and those that are.
COPIES = 1 + 16
#: Operation -> by how many units in the last place its value is moved, and the cotangents of its arguments. A kernel
#: may divide approximately in its backward pass. What is not named here is exact, as the cotangents of a sum are.
OFF: Dict[str, float] = {**dict.fromkeys(("add", "sub", "mul", "div", "sqrt"), 1.0), **dict.fromkeys(ROUNDED, 4.0)}
OFF_BACK: Dict[str, float] = {**OFF, "add": 0.0, "sub": 0.0, "select": 2.0, "div": 4.0, "sqrt": 4.0, "spike": 4.0}
#: Spreads that a number may be off.
MULTIPLE = 2.0
#: Operations whose value is a decision; those whose derivative is that of one of their arguments.
_DECISIONS = frozenset(("ge", "gt", "le", "lt", "eq", "ne", "sign", "floor", "round", "spike"))
_SIDES = frozenset(("minimum", "maximum", "clamp", "abs"))


class Moves:
    """Moves of the operations on arrays ``[COPIES, *N]``, or on arrays that broadcast against them; ``dims`` of N.

    unit: the distance of 1 from the next number of the dtype. values: whether those of operations are moved, or
    cotangents alone.
    """

    #: Those of the run that is computed now.
    now: Optional[Moves] = None

    def __init__(self, dims: int, unit: float, values: bool = True) -> None:
        self.dims, self.unit, self.values = dims, unit, values
        self._rng = np.random.default_rng(0)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block, every operation of the oracle is moved."""
        Moves.now = self
        try:
            yield
        finally:
            Moves.now = None

    def signs(self, shape: Sequence[int]) -> Array:
        """-1 and 1 for each copy of an array, 0 for the first."""
        own = tuple(shape)[max(0, len(shape) - self.dims) :]
        drawn = self._rng.integers(0, 2, (COPIES, *(1,) * (self.dims - len(own)), *own), np.int8) * 2.0 - 1.0
        drawn[0] = 0.0
        return np.asarray(drawn)

    def by(self, units: float, array: Array) -> Array:
        """The array with each number moved."""
        return np.asarray(array * (1.0 + units * self.unit * self.signs(np.shape(array))))

    def value(self, op: str, array: Array) -> Array:
        """The value of an operation: moved if it is rounded, and of the first copy if it decides."""
        if op in _DECISIONS:
            return self.first(array)
        return self.by(OFF[op], array) if op in OFF and self.values else array

    def part(self, op: str, array: Array) -> Array:
        """The cotangent of an argument of an operation."""
        return self.by(OFF_BACK[op], array) if OFF_BACK.get(op) else array

    def arguments(self, op: str, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arguments for the rule of an operation: of the first copy if it reads from them which side it takes."""
        return [self.first(array) for array in arrays] if op in _SIDES else arrays

    @classmethod
    def plus(cls, a: Array, b: Array) -> Array:
        """A sum of two cotangents, moved if a run is."""
        return np.asarray(a + b) if cls.now is None else cls.now.by(OFF["add"], a + b)

    def total(self, terms: Array, axes: Tuple[int, ...], total: Array) -> Array:
        """A sum over some axes: each partial sum is rounded, in an order that is the backend's."""
        count = math.prod(terms.shape[axis] for axis in axes)
        size = np.sqrt(count * np.square(terms).sum(axis=axes, keepdims=True))
        return np.asarray(total + OFF["add"] * self.unit * size * self.signs(total.shape))

    def first(self, array: Array) -> Array:
        """The first copy of an array that has copies."""
        return array[:1] if np.ndim(array) > self.dims else array


def spread(copies: Array) -> Array:
    """By how much the copies ``[..., COPIES, *N]`` of a number, that are the first axis, differ from the first."""
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(copies[1:] - copies[:1]).max(axis=0))


def crossed(distances: Sequence[Array], shape: Sequence[int]) -> Array:
    """The neurons of which a copy is beyond a decision that the first one is not at; of distances ``[COPIES, *N]``."""
    beyond = np.zeros(tuple(shape), bool)
    for distance in distances:
        copies = np.broadcast_to(distance, (COPIES, *shape))
        beyond |= ((copies * copies[:1] <= 0) & (copies[:1] != 0)).any(axis=0)
    return beyond
