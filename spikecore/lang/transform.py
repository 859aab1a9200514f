"""Transforms: values that make a program of another one, as fixed point does, or what an online rule keeps of one.

- A transform is frozen, and compared by value: equal ones make equal programs, so that what was made is found again.
- It sees a program, and no neuron: what it needs of a neuron it holds.
- States and own parameters keep their names. Parameters that it adds are those of calls, which give them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from torch import Tensor

from spikecore._base.bits import Whole
from spikecore.lang._program import (
    Derived,
    Program,
    added_to_normalised,
    changed,
    corrected,
    cotangents,
    gradient_of_normalised,
    moments,
    normalised,
    repeated,
)
from spikecore.lang._trace import detach_spikes
from spikecore.lang.node import const

__all__ = [
    "Derived",
    "Normalised",
    "Recorded",
    "Repeated",
    "Transform",
    "added_to_normalised",
    "changed",
    "corrected",
    "cotangents",
    "detach_spikes",
    "gradient_of_normalised",
    "moments",
]


class Transform:
    """Map from a program to another one. A subclass is a frozen dataclass; one on a neuron is pickled with it."""

    def apply(self, program: Program) -> Derived:
        """The program, and the parameters that it has beside those of ``program``."""
        raise NotImplementedError(f"{type(self).__name__} must define apply(self, program)")

    def refuses(self, dtype: Any) -> str:
        """Reason why calls with inputs of this dtype cannot be computed, and the way out; "" if they can."""
        return ""

    def following(
        self, neuron: Any, values: Mapping[str, Any], ranges: Mapping[str, Any], stored: Optional[Tensor] = None
    ) -> Tuple[Transform, Dict[str, Any]]:
        """The transform for these values of the neuron's parameters, which are in these ranges, and the ranges in which
        it holds for what is learnt; the stored transform, where a checkpoint has one.

        Raises ValueError where there is none. By default a transform depends on no values.
        """
        return self, dict(ranges)

    def stored(self) -> Optional[Tensor]:
        """The entry of a ``state_dict``, None for none. At most one transform of a neuron has an entry."""
        return None


@dataclass(frozen=True)
class Normalised(Transform):
    """Batch normalisation in front; see :func:`spikecore.lang._program.normalised` for the fields."""

    shortcut: str
    statistics: Tuple[bool, ...]
    whole: Optional[Whole] = None

    def apply(self, program: Program) -> Derived:
        """The program, and the names of the normalisations' parameters behind the neuron's own."""
        return normalised(program, self.shortcut, self.statistics, self.whole and Whole(*self.whole))


@dataclass(frozen=True)
class Recorded(Transform):
    """Values that the definition names are states behind the others, which start at 0 and which nothing reads."""

    names: Tuple[str, ...]

    def apply(self, program: Program) -> Derived:
        """The program, which has no other parameters."""
        values = [program.named[name] for name in self.names]
        states, initial = (*program.states, *self.names), (*program.initial, *[const(0.0)] * len(values))
        return Derived(changed(program, {}, states=states, initial=initial, next=(*program.next, *values)))


@dataclass(frozen=True)
class Repeated(Transform):
    """Inputs that are the same at every step are parameters, in front of the others; "" for one that is not read."""

    inputs: Tuple[str, ...]

    def apply(self, program: Program) -> Derived:
        """The program, and the names of the parameters in the place of inputs."""
        return repeated(program, self.inputs)
