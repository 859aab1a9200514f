"""Ranges of parameters: declared with the class, checked where a value is set, equations where it is learnt.

Rules of this module:

- A number, or a tensor that is not learnt, is checked when it is set or loaded, where that takes no wait for a device.
- The program reads a learnt parameter p with a range as ``detach(nearest(p)) + (p - detach(p))``: the nearest value
  inside, with derivative 1, so that one outside can come back. A value inside keeps every bit, but for a -0.0, which
  counts as 0.0. A value that is not finite gives NaN. No call changes a parameter.
- :func:`project` puts stored values inside: after the update of a training step, in
  :func:`spikecore.functional.project`, and before they are saved, since what is saved must load again.
- Of a range above 0 a learnt value whose inverse square is near infinity counts as outside: derivatives with respect to
  a divisor have that factor, so that a width of 1e-25 gave NaN (0 times infinity) for gradients in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Callable, Collection, Dict, Iterable, Mapping, Optional, Tuple

import torch
from torch import Tensor

from spikecore.context import PLAIN
from spikecore.core.checks import is_a
from spikecore.dtypes import compute_dtype
from spikecore.lang import ops
from spikecore.words import shown


@dataclass(frozen=True)
class Interval:
    """All numbers from ``low`` to ``high``, ends included; with ``open``, all above ``low``."""

    low: float = -math.inf
    high: float = math.inf
    open: bool = False

    def __str__(self) -> str:
        if self.open:
            return f"above {self.low:g}"
        if self.high == math.inf:
            return f"at least {self.low:g}"
        if self.low == -math.inf:
            return f"at most {self.high:g}"
        return f"in [{self.low:g}, {self.high:g}]"

    def holds(self, value: Any) -> Any:
        """True if a number is in the interval; for a tensor elementwise, compared in the precision of the tensor."""
        return value > self.low if self.open else (value >= self.low) & (value <= self.high)

    def nearest(self, value: Tensor) -> Tensor:
        """The value where it is inside, else the nearest one inside: one epsilon of its dtype beyond an open end."""
        # torch 2.0 clamps no float16 on a CPU
        wide = value.float() if value.dtype == torch.float16 else value
        if self.open:
            return torch.threshold(wide, *self._ends(value.dtype)).to(value.dtype)
        return wide.clamp(self.low, self.high).to(value.dtype)

    def equation(self, value: Any, dtype: torch.dtype) -> Any:
        """The value in range of a learnt parameter of this dtype, a traced value or a tensor: see the rules above."""
        if isinstance(value, Tensor):
            return self.nearest(value.detach()) + (value - value.detach())
        if self.open:
            floor, least = self._ends(dtype)
            nearest = ops.where(value <= floor, least, value)
        else:
            nearest = value if self.high == math.inf else ops.minimum(value, self.high)
            nearest = nearest if self.low == -math.inf else ops.maximum(nearest, self.low)
        return ops.detach(nearest) + (value - ops.detach(value))

    def _ends(self, dtype: torch.dtype) -> Tuple[float, float]:
        """Of an open range: the value down to which learnt ones, itself included, are outside, and the least inside."""
        least = self.low + torch.finfo(dtype).eps * max(1.0, abs(self.low))
        # 16-bit parameters are computed with in float32
        return self.low or 1e3 * math.sqrt(torch.finfo(compute_dtype(dtype)).tiny), least


POSITIVE = Interval(0.0, open=True)


def interval(owner: str, name: str, bounds: Any) -> Optional[Interval]:
    """A range as it is declared, ``(low, high)`` with None for no end, or None for none at all."""
    if isinstance(bounds, Interval) or bounds is None:
        return bounds
    ends = bounds if isinstance(bounds, (tuple, list)) else ()
    if len(ends) != 2 or not all(is_a(end, Real, type(None)) for end in ends):
        raise TypeError(
            f"{owner}: bounds has {name!r}: {bounds!r}; give (low, high), each a number or None, or None for no range"
        )
    low, high = [default if end is None else float(end) for end, default in zip(ends, (-math.inf, math.inf))]
    if not low < high:
        raise ValueError(f"{owner}: bounds has {name!r}: {bounds!r}; the low end must be below the high end")
    return None if (low, high) == (-math.inf, math.inf) else Interval(low, high)


def declaration(cls: Any) -> None:
    """Check ``bounds`` and ``positive`` of a class itself."""
    bounds, positive = vars(cls).get("bounds", {}), vars(cls).get("positive", ())
    if not isinstance(bounds, Mapping):
        raise TypeError(f"{cls.__name__}.bounds={bounds!r} must be a dict of parameter: (low, high)")
    if isinstance(positive, str):
        raise TypeError(f"{cls.__name__}.positive={positive!r} must hold names; for one name write ({positive!r},)")
    for kind, names in (("bounds", bounds), ("positive", positive)):
        for name in names:
            if name not in cls.params:
                known = ", ".join(cls.params) or "none"
                raise TypeError(f"{cls.__name__}.{kind} has {name!r}, which is no parameter; parameters: {known}")
    for name, ends in bounds.items():
        interval(cls.__name__, name, ends)


def declared(cls: Any) -> Dict[str, Interval]:
    """The ranges that a class and its bases declare; of two for one parameter, that of the derived class."""
    ranges: Dict[str, Optional[Interval]] = {}
    for base in reversed(cls.__mro__):
        ranges.update(dict.fromkeys(vars(base).get("positive", ()), POSITIVE))
        bounds = vars(base).get("bounds", {})
        ranges.update({name: interval(cls.__name__, name, ends) for name, ends in bounds.items()})
    return {name: within for name, within in ranges.items() if within is not None and name in cls.params}


def overridden(
    owner: str, params: Mapping[str, Any], bounds: Mapping[str, Interval], overrides: Any
) -> Dict[str, Interval]:
    """Declared ranges with those that an instance is given: a dict replaces those it names, None lifts all."""
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise TypeError(
            f"{owner}: bounds={overrides!r} must be a dict of parameter: (low, high), or None for no ranges"
        )
    require_parameters(owner, "bounds", overrides, params)
    ranges = {**bounds, **{name: interval(owner, name, ends) for name, ends in overrides.items()}}
    return {name: within for name, within in ranges.items() if within is not None}


def require_parameters(owner: str, argument: str, names: Iterable[Any], params: Collection[str]) -> None:
    """Raise ValueError for a name in an argument that is no parameter."""
    for name in names:
        if name not in params:
            known = ", ".join(params)
            raise ValueError(f"{owner}: {argument} names {name!r}, which is no parameter; parameters: {known}")


def require(owner: str, name: str, value: Any, within: Optional[Interval], follows: str = "") -> None:
    """Raise ValueError for a value outside its range, where that can be known without waiting for a device.

    ``follows`` is said beside the range, such as the other parameter that it follows.
    """
    if within is not None and not fits(value, within.holds):
        value = shown(value.detach() if isinstance(value, Tensor) else value)
        raise ValueError(
            f"{owner}: {name}={value} must be {within}{follows and f' ({follows})'}; bounds={{{name!r}: (low, high)}} "
            "sets another range, bounds=None none"
        )


def fits(value: Any, holds: Callable[[Any], Any]) -> bool:
    """True unless it is known without waiting for a device that a value, or one of a tensor, does not hold."""
    if not isinstance(value, Tensor):
        return bool(holds(value))
    # of a subclass, such as a DTensor, all ranks would have to ask
    return type(value) not in PLAIN or value.device.type != "cpu" or bool(holds(value.detach()).all())


def project(learnt: Mapping[str, Optional[Tensor]], ranges: Mapping[str, Interval]) -> None:
    """Put learnt parameters that left their ranges back to the nearest values inside, in place."""
    for name, within in ranges.items():
        value = learnt.get(name)
        if value is not None and not value.is_inference():
            # .data: a graph that holds the parameter is one of the value inside all the same
            value.data.copy_(within.nearest(value.data))
