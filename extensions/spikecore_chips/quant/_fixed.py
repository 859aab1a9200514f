"""Arithmetic in fixed point as a value that a neuron holds, and the function that makes such neurons.

Rules of this module:

- The grids of coefficients are those of the values of parameters: the least and the greatest of one that is not learnt,
  and the range of a learnt one, which ends at half and at twice its value, or where ``bounds`` that were given to the
  neuron end. A parameter that is set gets new grids, so that no coefficient saturates.
- A ``state_dict`` has the arithmetic, grids included. Another neuron takes it if its words are the same: what arguments
  say, and neither data nor values of parameters.
- What the program is then, :mod:`spikecore_chips.quant._rewriting` says.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore.core import parameters
from spikecore.core.dispatch import equations
from spikecore.core.neuron import Neuron
from spikecore.core.ranges import Interval
from spikecore.dtypes import NAMES, compute_dtype
from spikecore.functional import to_rest
from spikecore.lang import Program
from spikecore.lang.node import const
from spikecore.lang.operations import OPERATION
from spikecore.lang.transform import Derived, Transform
from spikecore.words import shown
from spikecore_chips.quant._analysis import SIGNIFICAND, Format, power_of_two, signed
from spikecore_chips.quant._rewriting import FUNCTIONS, ROUNDINGS, Ends, default_frac, rewritten

#: (low, high, size): the range in which a table is exact at its ends, and its number of segments, a power of two.
Table = Tuple[float, float, int]


@dataclass(frozen=True)
class FixedPoint(Transform):
    """Fixed point, as a transform of a neuron's program: :func:`fixed` puts it behind the neuron's other transforms.

    word, frac: bits of inputs, states and outputs, and how many of them are fractional. factors: significant bits of a
    coefficient as a factor. rounding: of inputs and products. dtype: the dtype whose significand is enough. tables:
    operation -> :data:`Table`. values: the ends of each parameter's values, for which there are grids.
    """

    word: int
    frac: int
    factors: int
    rounding: str = "nearest"
    dtype: torch.dtype = torch.float32
    tables: Tuple[Tuple[str, Table], ...] = ()
    values: Tuple[Tuple[str, Ends], ...] = ()

    @property
    def format(self) -> Format:
        """The format of inputs, states and outputs."""
        return signed(self.word, self.frac)

    def apply(self, program: Program) -> Derived:
        """The program in fixed point, proven to be exact in :attr:`dtype`."""
        return Derived(rewritten(self, program))

    def refuses(self, dtype: torch.dtype) -> str:
        """The reason to refuse inputs of this dtype, in whose arithmetic results would not be exact."""
        if SIGNIFICAND[compute_dtype(dtype)] >= SIGNIFICAND[self.dtype]:
            return ""
        return f"{self!r} is not exact for inputs in {NAMES[dtype]}; give inputs in float64"

    def following(
        self, neuron: Any, values: Mapping[str, Any], ranges: Mapping[str, Interval], stored: Any = None
    ) -> Tuple[FixedPoint, Dict[str, Interval]]:
        """The grids for these values, and the ranges in which they are exact; see :class:`Transform`."""
        if stored is None:
            how = replace(self, values=_grids(self, neuron, values, ranges))
        else:
            content = unpacked(stored, self._words)
            ends = tuple([(name, (float(low), float(high))) for name, (low, high) in content["values"].items()])
            how = replace(self, frac=content["frac"], values=ends)
            fault = how.outside(values)
            if fault:
                raise ValueError(f"{fault} in the checkpoint; build the network with the values of the saved one")
        ranges = {**ranges, **{name: Interval(*ends) for name, ends in how.values if _learns(neuron, name, values)}}
        how.apply(_program(neuron, ranges))
        return how, ranges

    def outside(self, values: Mapping[str, Any]) -> str:
        """The fault of values of parameters for which there are no grids, "" if there is none."""
        for name, (low, high) in self.values:
            least, most = _ends(values.get(name)) or (low, high)
            if not low <= least <= most <= high:
                value = f"{least:g}" if least == most else f"from {least:g} to {most:g}"
                where = f"values from {low:g} to {high:g}" if low < high else f"{low:g}"
                return f"{name} is {value}, and its grids are for {where}"
        return ""

    def stored(self) -> Tensor:
        """All fields, as a tensor; see :func:`packed`."""
        return packed({**self._words, "frac": self.frac, "values": dict(self.values)})

    @property
    def _words(self) -> Dict[str, Any]:
        """The fields that arguments decide, and data do not."""
        rest = {"dtype": str(self.dtype), "tables": [[op, [*table]] for op, table in self.tables]}
        return {"word": self.word, "factors": self.factors, "rounding": self.rounding, **rest}

    def __repr__(self) -> str:
        parts = [f"word={self.word}", f"frac={self.frac}", f"factors={self.factors}", f"rounding={self.rounding!r}"]
        parts += ["dtype=float64"] if self.dtype == torch.float64 else []
        parts += [f"tables={dict(self.tables)}"] if self.tables else []
        return f"FixedPoint({', '.join(parts)})"


def packed(content: Mapping[str, Any]) -> Tensor:
    """A format for a ``state_dict``: a tensor, since some files have nothing else, of the bytes of a text in JSON."""
    return torch.tensor([*json.dumps(content).encode()], dtype=torch.uint8, device="cpu")


def unpacked(stored: Any, words: Mapping[str, Any]) -> Dict[str, Any]:
    """The content of a packed format. Raises ValueError where ``words``, which arguments decide, are others in it."""
    try:
        content: Dict[str, Any] = json.loads(bytes(stored.to(torch.uint8).tolist()))
        others = [name for name in words if content[name] != words[name]]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError("what the checkpoint has for its format is none of sc.quant") from None
    if others:
        name = others[0]
        raise ValueError(
            f"{name} is {content[name]!r} in the checkpoint, and {words[name]!r} here; prepare the network with the "
            "arguments that the saved one had"
        )
    return content


def _ends(value: Any) -> Optional[Ends]:
    """The least and the greatest value of a parameter; None where it has none that can be known."""
    if not isinstance(value, Tensor):
        return None if value is None else (float(value), float(value))
    value = value.detach()
    return None if value.is_meta or not value.numel() else (float(value.min()), float(value.max()))


def _learns(neuron: Any, name: str, values: Mapping[str, Any]) -> bool:
    return name in neuron._parameters or isinstance(values.get(name), nn.Parameter)


def _grids(
    how: FixedPoint, neuron: Any, values: Mapping[str, Any], ranges: Mapping[str, Interval]
) -> Tuple[Tuple[str, Ends], ...]:
    """The ends of values for which there are grids: of these, with room for what is learnt; of others, as before."""
    grids = dict(how.values)
    for name, value in values.items():
        ends = _ends(value)
        if ends is not None and math.isnan(sum(ends)):
            raise ValueError(f"sc.quant.fixed: {type(neuron).__name__}: {name} has values that are NaN")
        if ends is not None and _learns(neuron, name, values):
            ends = _room(ends, ranges.get(name, Interval()), name in (neuron._given_bounds or ()))
        grids[name] = ends or grids.get(name, (0.0, 0.0))
    return tuple(grids.items())


def _room(ends: Ends, within: Interval, is_own: bool) -> Ends:
    """The range of a learnt parameter of these values; its own, where it was given and ends."""
    (low, high), most = ends, 2 * max(map(abs, ends)) or 1.0
    low = low / 2 if low > 0 else -most
    high = high / 2 if high < 0 else most
    return (
        within.low if is_own and math.isfinite(within.low) else max(low, within.low),
        within.high if is_own and math.isfinite(within.high) else min(high, within.high),
    )


def fixed(
    neuron: Neuron,
    word: int = 16,
    frac: Optional[int] = None,
    *,
    rounding: str = "nearest",
    factors: Optional[int] = None,
    tables: Mapping[str, Table] = {},
    dtype: torch.dtype = torch.float32,
) -> Neuron:
    """The neuron with arithmetic in fixed point: a copy, of the same class, which every backend runs and trains.

    ::

        lif = sc.quant.fixed(sc.LIF(tau=2.0), word=16, frac=12)
        print(lif.program)

    Inputs, states and outputs are ``n * 2**-frac`` for integers n of ``word`` bits; spikes are 0 and 1. The program
    shows which values are rounded and saturated, by the rules of :mod:`spikecore_chips.quant._rewriting`. All of a
    step are whole multiples of powers of two that ``dtype`` holds exactly: ``sc.quant.analyse`` proves it, so that
    every backend, and integer arithmetic, has the same bits. Derivatives pass a rounding unchanged, and are 0 beyond
    a saturation. Parameters stay floats, and are rounded where they are read. One that is set gets new grids, with
    the same ``frac``; a learnt one has a range in :attr:`~spikecore.Neuron.bounds`: from half to twice its value, or
    that which was given to the neuron. ``state_dict`` has the arithmetic, too.

    word: bits of inputs, states and outputs, 2 to 24 (to 53 for float64), the sign included.
    frac: how many of them are fractional; None: as many as leave eight times the largest threshold, or other number
        that is added or compared, or 1.
    rounding: "nearest", ties to even, or "floor".
    factors: significant bits of a coefficient that is a factor, such as ``1 / tau``; None: what dtype has beside a
        word, 15 at most: 8 for 16 bits in float32.
    tables: of functions of values that change from step to step: ``{"exp": (low, high, size)}`` has ``size`` linear
        pieces from low to high and is constant beyond; ``(high - low) / size`` must be a power of two.
    dtype: of the arithmetic, ``torch.float32`` or ``torch.float64``. With float64, inputs must be float64.

    Raises TypeError for what is no neuron, ValueError for a wrong argument, an operation that integers do not have, a
    parameter beyond the range, and a program that is not exact (``sc.quant.Inexact``), with what to change.
    """
    _check(neuron, word, frac, rounding, factors, dtype)
    new = copy.deepcopy(neuron)
    in_floats(new)
    to_rest([new], carried=True)
    factors = max(1, min(15, SIGNIFICAND[dtype] - word)) if factors is None else factors
    values = parameters.current(new)
    ranges = parameters.ranges_with(new, values)
    how = FixedPoint(word, frac or 0, factors, rounding, dtype, _checked_tables(tables))
    if frac is None:
        how = replace(how, values=_grids(how, new, values, ranges))
        how = replace(how, frac=default_frac(how, _program(new, ranges)))
    how, ranges = how.following(new, values, ranges)
    parameters.adopt(new, ranges)
    new.transforms = (*new.transforms, how)
    return new


def fixed_point_of(module: nn.Module) -> Optional[FixedPoint]:
    """The fixed point of a neuron; None for a neuron in floats, and for another module."""
    transforms = module.transforms if isinstance(module, Neuron) else ()
    return next((each for each in transforms if isinstance(each, FixedPoint)), None)


def in_floats(neuron: Any) -> None:
    """Take fixed point, and the ranges of what it learns, off a neuron, in place."""
    neuron.transforms = _others(neuron)
    parameters.adopt(neuron, parameters.ranges_with(neuron, parameters.current(neuron)))


def _others(neuron: Neuron) -> Tuple[Transform, ...]:
    return tuple(each for each in neuron.transforms if not isinstance(each, FixedPoint))


def _program(neuron: Neuron, ranges: Mapping[str, Interval]) -> Program:
    """The program of a neuron in floats: what fixed point is applied to."""
    program, _ = equations(neuron, ranges)
    for transform in _others(neuron):
        program = transform.apply(program).program
    return program


def _checked_tables(tables: Mapping[str, Table]) -> Tuple[Tuple[str, Table], ...]:
    for op, table in tables.items():
        if op not in FUNCTIONS or OPERATION[op].arity != 1:
            known = ", ".join(name for name in FUNCTIONS if OPERATION[name].arity == 1)
            raise ValueError(f"sc.quant.fixed: tables has {op!r}; there are tables of: {known}")
        low, high, size = table
        if size < 1 or power_of_two(const((high - low) / size)) is None:
            raise ValueError(
                f"sc.quant.fixed: tables={{{op!r}: {table}}}: a segment is {(high - low) / size:g} wide, and must be a "
                "power of two, as in (-4.0, 4.0, 16)"
            )
    return tuple((op, (float(low), float(high), int(size))) for op, (low, high, size) in tables.items())


def _check(neuron: Any, word: Any, frac: Any, rounding: Any, factors: Any, dtype: Any) -> None:
    """Raise TypeError or ValueError for a wrong argument of :func:`fixed`."""
    if not isinstance(neuron, Neuron):
        raise TypeError(
            f"sc.quant.fixed: neuron={shown(neuron)} is no neuron; for a network, sc.quant.prepare(net, x) makes all "
            "of its neurons fixed"
        )
    if neuron.vectors:
        raise ValueError(
            f"sc.quant.fixed: {type(neuron).__name__} has vectors, {', '.join(neuron.vectors)}, of whose values no "
            "grid is known; declare a state and a parameter for each value, h0, h1, ..."
        )
    if neuron.gradient != "surrogate":
        raise ValueError(
            f"sc.quant.fixed: {type(neuron).__name__} has gradient={neuron.gradient!r}, which divides by slopes that "
            "change from step to step, and there is no such operation on integers; set gradient='surrogate'"
        )
    if parametrize.is_parametrized(neuron):
        raise ValueError(
            f"sc.quant.fixed: {type(neuron).__name__} has a parametrisation, of whose values no range is known; take "
            "learn=(name,), or torch.nn.utils.parametrize.remove_parametrizations"
        )
    if dtype not in SIGNIFICAND:
        raise ValueError(f"sc.quant.fixed: dtype={dtype} must be torch.float32 or torch.float64")
    most = SIGNIFICAND[dtype]
    if not isinstance(word, int) or not 2 <= word <= most:
        raise ValueError(f"sc.quant.fixed: word={shown(word)} must be a whole number of bits from 2 to {most}")
    for name, value in (("frac", frac), ("factors", factors)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"sc.quant.fixed: {name}={shown(value)} must be a whole number of bits, or None")
    if factors is not None and factors < 1:
        raise ValueError(
            f"sc.quant.fixed: factors={factors} must be a number of significant bits, 1 or more, or None for what "
            "dtype has beside a word"
        )
    if rounding not in ROUNDINGS:
        raise ValueError(f"sc.quant.fixed: rounding={rounding!r} must be one of {', '.join(map(repr, ROUNDINGS))}")
