"""Ranges of parameters: declared with the class, checked where a value is given, kept while it is learnt.

Rules of this module:

- A learnt parameter is projected: at every call, and before it is saved, a value outside its range becomes the nearest
  value inside. A value inside keeps every bit, a gradient is never touched, and nothing waits for a device.
- Of a range above 0 a learnt value whose inverse square is near infinity counts as outside: derivatives with respect to
  a divisor have that factor, so that a width of 1e-25 gave NaN (0 times infinity) for gradients in float32.
- The projection is in place, in the parameter's own memory, at every call. Version counters cannot tell when it is
  needed: torch's fused optimisers, replayed CUDA graphs and weights read back from a device do not raise them.
- Where a parameter must not be changed in place (``torch.compile``, ``torch.func``, forward-mode differentiation,
  ``torch.jit.trace``, an IPU), the value that is computed with is the nearest one inside, with derivative 1, and the
  parameter keeps its value.
- NaN is in no range and stays NaN, so that it is seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from spikecore._shell.checks import shown
from spikecore.backend import Range
from spikecore.dtypes import compute_dtype
from spikecore.lang._plain import is_followed, is_plain

Named = Sequence[Tuple[str, Any]]


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
        """Whether a number is in the interval; for a tensor elementwise, compared in the precision of the tensor."""
        return value > self.low if self.open else (value >= self.low) & (value <= self.high)

    def nearest(self, value: Tensor) -> Tensor:
        """The value where it is inside, else the nearest one inside: one epsilon of its dtype beyond an open end."""
        # torch 2.0 clamps no float16 on a CPU
        wide = value.float() if value.dtype == torch.float16 else value
        if self.open:
            least = self._least(value.dtype)
            return torch.where(wide <= self._floor(value.dtype), wide.clamp(least), wide).to(value.dtype)
        low, high = _finite(self.low), _finite(self.high)
        # torch clamps to one end at least; a threshold above a v_reset that is learnt below 0 has none
        return value if low is None and high is None else wide.clamp(low, high).to(value.dtype)

    def project(self, value: Tensor) -> None:
        """As :meth:`nearest`, in place, in one operation but for float16 on a CPU."""
        if value.dtype == torch.float16 and value.is_cpu:
            value.copy_(self.nearest(value))
        elif self.open:
            torch.threshold_(value, self._floor(value.dtype), self._least(value.dtype))
        else:
            value.clamp_(self.low, self.high)

    def ends(self, dtype: torch.dtype) -> Range:
        """The range as backends take it, of a parameter of this dtype."""
        if self.open:
            return Range(self._floor(dtype), self.high, self._least(dtype))
        return Range(self.low, self.high, self.low)

    def _floor(self, dtype: torch.dtype) -> float:
        """The value down to which, itself included, learnt ones are outside an open range."""
        if self.low != 0.0:
            return self.low
        # 16-bit parameters are computed with in float32
        return 1e3 * math.sqrt(torch.finfo(compute_dtype(dtype)).tiny)

    def _least(self, dtype: torch.dtype) -> float:
        return self.low + torch.finfo(dtype).eps * max(1.0, abs(self.low))

    def straight_through(self, value: Tensor) -> Tensor:
        """As :meth:`nearest`, with derivative 1 at every finite value, so that one outside can come back."""
        fixed = value.detach()
        # plain operations: the backward of an autograd.Function never runs on an IPU. value - fixed is 0, but NaN for
        # an infinite value, which no finite gradient could bring back
        zero = torch.where(fixed.abs() < math.inf, value - fixed, torch.zeros_like(fixed))
        return self.nearest(fixed) + zero


Bounds = Mapping[str, Interval]

POSITIVE = Interval(0.0, open=True)


class Shown(Mapping[str, Interval]):
    """The ranges of a neuron, to be read. They can be changed only as a whole, and are checked then."""

    def __init__(self, found: Dict[str, Interval]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Interval:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return repr(self._found)

    def __setitem__(self, name: str, value: Any) -> None:
        raise TypeError(
            f"bounds of a neuron is changed as a whole, which checks it: neuron.bounds = {{{name!r}: (low, high)}}; "
            "ranges that it does not name are then those of the class"
        )

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"bounds of a neuron is changed as a whole: neuron.bounds = {{{name!r}: None}} lifts a range")


def _finite(end: float) -> Optional[float]:
    return end if math.isfinite(end) else None


def interval(owner: str, name: str, given: Any) -> Optional[Interval]:
    """A range as it is declared, ``(low, high)`` with None for no end, or None for none at all."""
    if isinstance(given, Interval) or given is None:
        return given
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(_is_end(end) for end in given):
        raise TypeError(
            f"{owner}: bounds has {name!r}: {given!r}; give (low, high), each a number or None, or None for no range"
        )
    low, high = (default if end is None else float(end) for end, default in zip(given, (-math.inf, math.inf)))
    if not low < high:
        raise ValueError(f"{owner}: bounds has {name!r}: {given!r}; the low end must be below the high end")
    return None if (low, high) == (-math.inf, math.inf) else Interval(low, high)


def _is_end(end: Any) -> bool:
    return end is None or (isinstance(end, Real) and not isinstance(end, bool))


def declaration(cls: Any) -> None:
    """Check ``bounds`` and ``positive`` of a class itself."""
    own = vars(cls)
    bounds, positive = own.get("bounds", {}), own.get("positive", ())
    if not isinstance(bounds, Mapping):
        raise TypeError(f"{cls.__name__}.bounds={bounds!r} must be a dict of parameter: (low, high)")
    if isinstance(positive, str):
        raise TypeError(f"{cls.__name__}.positive={positive!r} must hold names; for one name write ({positive!r},)")
    for kind, names in (("bounds", bounds), ("positive", positive)):
        for name in names:
            if name not in cls.params:
                known = ", ".join(cls.params) or "none"
                raise TypeError(f"{cls.__name__}.{kind} has {name!r}, which is no parameter; parameters: {known}")
    for name, given in bounds.items():
        interval(cls.__name__, name, given)


def declared(cls: Any) -> Dict[str, Interval]:
    """The ranges that a class and its bases declare; of two for one parameter, that of the derived class."""
    found: Dict[str, Optional[Interval]] = {}
    for base in reversed(cls.__mro__):
        own = vars(base)
        found.update(dict.fromkeys(own.get("positive", ()), POSITIVE))
        found.update({name: interval(cls.__name__, name, given) for name, given in own.get("bounds", {}).items()})
    return {name: one for name, one in found.items() if one is not None and name in cls.params}


def overridden(owner: str, params: Mapping[str, Any], bounds: Bounds, given: Any) -> Dict[str, Interval]:
    """Declared ranges with those that an instance is given: a dict replaces those it names, None lifts all."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{owner}: bounds={given!r} must be a dict of parameter: (low, high), or None for no ranges")
    found: Dict[str, Optional[Interval]] = dict(bounds)
    for name, one in given.items():
        if name not in params:
            raise ValueError(f"{owner}: bounds names {name!r}, which is no parameter; parameters: {', '.join(params)}")
        found[name] = interval(owner, name, one)
    return {name: one for name, one in found.items() if one is not None}


def require(owner: str, name: str, value: Any, held_to: Optional[Interval], follows: str = "") -> None:
    """Raise ValueError for a value outside its range, where that can be known without waiting for a device.

    ``follows`` says what the range is made of, if that is another parameter.
    """
    if held_to is None:
        return
    if isinstance(value, Tensor):
        # of a subclass, such as a DTensor, all ranks would have to ask
        plain = type(value) in (Tensor, nn.Parameter) and value.device.type == "cpu"
        fine = not plain or bool(held_to.holds(value.detach()).all())
    else:
        fine = bool(held_to.holds(value))
    if not fine:
        value = shown(value.detach() if isinstance(value, Tensor) else value)
        raise ValueError(
            f"{owner}: {name}={value} must be {held_to}{follows and f' ({follows})'}; bounds={{{name!r}: (low, high)}} "
            "sets another range, bounds=None none"
        )


def changed(
    buffers: Mapping[str, Optional[Tensor]], params: Mapping[str, Any], seen: Mapping[str, Tuple[Tensor, int]]
) -> Dict[str, Tuple[Tensor, int]]:
    """The parameters that are tensors on the CPU, each with its version, unless all are as they were ``seen``."""
    found = {
        name: (value, value._version)
        for name, value in buffers.items()
        if value is not None and name in params and value.is_cpu and is_plain(value) and not value.is_inference()
    }
    same = len(found) == len(seen) and all(
        name in seen and seen[name][0] is value and seen[name][1] == version for name, (value, version) in found.items()
    )
    return {} if same else found


def kept(named: Named, learnt: Mapping[str, Any], bounds: Bounds) -> List[Tuple[str, Any]]:
    """The parameters of a call, of which those that are learnt are now inside their ranges."""
    return [
        (name, inside(value, bounds[name])) if name in learnt and name in bounds else (name, value)
        for name, value in named
    ]


def inside(value: Tensor, held_to: Interval) -> Tensor:
    """A learnt parameter for a call: the parameter itself, now inside its range, or the nearest value there."""
    if not _may_change(value):
        return held_to.straight_through(value)
    # .data: a graph that holds the parameter already is one of the value inside, since each call projects first
    held_to.project(value.data)
    return value


def project(learnt: Mapping[str, Optional[Tensor]], bounds: Bounds) -> None:
    """Put learnt parameters inside their ranges, in place, but for those that must not be changed now."""
    for name, held_to in bounds.items():
        value = learnt.get(name)
        if value is not None and _may_change(value):
            held_to.project(value.data)


def _may_change(value: Tensor) -> bool:
    """Whether this is the stored parameter itself, and nothing that traces or transforms the call forbids a change."""
    return (
        (type(value) is nn.Parameter or isinstance(value, nn.Parameter))  # else of torch.func.functional_call
        and not is_followed()  # a compiled graph raises the version of what it changes, and breaks older graphs
        # PopTorch refuses changes of what the optimiser trains; is_cpu takes a tenth of the time of device
        and (value.is_cpu or value.is_cuda or value.device.type != "ipu")
        and not value.is_inference()
    )
