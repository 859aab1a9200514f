"""Base of surrogates: a value with a formula."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any, ClassVar, Tuple

from torch import Tensor

from spikecore.lang import Expr


def is_given(value: Any) -> bool:
    """True for a number of a surrogate that ``dynamics`` gives it: traced, or a tensor in a call by hand."""
    return isinstance(value, (Expr, Tensor))


class Surrogate:
    """Base class. A subclass writes :meth:`derivative`; a frozen dataclass gives it equality and a readable name."""

    #: Parameters that must be above zero.
    positive: ClassVar[Tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        declared: Any = fields(self) if is_dataclass(self) else ()
        # a field whose default is not a number may have any value: only the subclass uses it
        for field in [field for field in declared if isinstance(field.default, (int, float))]:
            name, value = field.name, getattr(self, field.name)
            if is_given(value) and isinstance(field.default, float):
                continue  # an expression of parameters, whose ranges are those that the neuron gives them
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{type(self).__name__}: {name}={value!r} must be a finite number")
            if not math.isfinite(value):
                raise ValueError(f"{type(self).__name__}: {name}={value!r} must be a finite number")
            if name in self.positive and value <= 0:
                raise ValueError(f"{type(self).__name__}: {name}={value!r} must be above 0")
            # floats are arguments of kernels: another value compiles nothing; whole numbers are part of a program
            if isinstance(field.default, float):
                object.__setattr__(self, name, float(value))

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_in_use"):
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot change, since programs were made from it; "
                "give the neuron a new one: neuron.surrogate = ..."
            )
        super().__setattr__(name, value)

    def derivative(self, u: Any) -> Any:
        """The stand-in for ``dz/du``, in the language."""
        raise NotImplementedError(f"{type(self).__name__} must define derivative(self, u)")

    def primitive(self, u: Tensor) -> Tensor:
        """A function of a tensor whose derivative is :meth:`derivative`."""
        raise NotImplementedError(f"{type(self).__name__} has no primitive in closed form")
