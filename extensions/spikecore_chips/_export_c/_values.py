"""Values of a step, their numbers in C, and weights on grids of powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.lang.c import CPrinter
from spikecore.lang.dialects import C11
from spikecore_chips._export_c._graph import Refused
from spikecore_chips.quant import Format
from spikecore_chips.quant._analysis import FLAG
from spikecore_chips.quant._layers import on_grids

#: Integer types, the narrowest first: name, lowest, highest.
_INTEGERS = (
    ("uint8_t", 0, 255),
    ("int8_t", -128, 127),
    ("int16_t", -(1 << 15), (1 << 15) - 1),
    ("int32_t", -(1 << 31), (1 << 31) - 1),
    ("int64_t", -(1 << 63), (1 << 63) - 1),
)
BYTES = {"uint8_t": 1, "int8_t": 1, "int16_t": 2, "int32_t": 4, "int64_t": 8, "float": 4}
#: Numbers of a line.
_WIDTH = 112
_printer = CPrinter(C11)


@dataclass(eq=False)
class Value:
    """An array of a step: one number for each element of a sample."""

    name: str
    shape: Tuple[int, ...]
    #: Its integers; None for float.
    format: Optional[Format]
    #: True if the next step reads it, too.
    lasts: bool = False
    #: The array in C, once memory is divided.
    place: str = ""
    #: The array that it is, in another shape.
    of: Optional[Value] = None
    #: The formats of its channels, where each has its own grid. ``format`` has the finest of these grids.
    channels: Tuple[Format, ...] = ()
    #: Number of channels that lie side by side, number p of channel c at ``p * innermost + c``; 1 in the shape's order.
    innermost: int = 1

    @property
    def root(self) -> Value:
        """The array itself."""
        return self if self.of is None else self.of.root

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(torch.Size(self.shape).numel())

    @property
    def type(self) -> str:
        """The type of a number in C."""
        return type_of(self.format)

    @property
    def bits(self) -> int:
        """The bits that a float needs to hold every number: each channel's, on its own grid."""
        formats = self.channels or (self.format,)
        return max(0 if format is None else format.bits for format in formats)

    @property
    def is_spikes(self) -> bool:
        """True if its numbers are 0 and 1."""
        return self.format == FLAG


def type_of(format: Optional[Format]) -> str:
    """The narrowest type that holds a format."""
    if format is None:
        return "float"
    fits = (name for name, low, high in _INTEGERS if low <= format.low and format.high <= high)
    return next(fits, "")


class Grid(NamedTuple):
    """Numbers as integers: ``integers[o] * 2**-fracs[o]`` for each output o."""

    integers: Tensor
    fracs: List[int]

    @property
    def is_narrow(self) -> bool:
        """True if each number fits four bits."""
        return bool(((self.integers >= -8) & (self.integers <= 7)).all())


def grid_of(what: str, numbers: Tensor, bits: int) -> Grid:
    """The integers of a weight or a bias ``[out, ...]``, with as few fractional bits as each output needs. Raises
    Refused where one has more than ``bits`` bits.
    """
    if not bool(torch.isfinite(numbers).all()):
        raise Refused(f"{what} is not finite")
    on_grid = on_grids(numbers, bits)
    if on_grid is None:
        raise Refused(
            f"{what} is on no grid of {bits} bits or fewer; train it with sc.quant.prepare(net)",
            in_c=", or export with dtype='float32'",
        )
    return Grid(*on_grid)


def integers_of(owner: str, numbers: Tensor, frac: int) -> Tensor:
    """Numbers as integers over ``2**frac``."""
    scaled = numbers.detach().double() * 2.0**frac
    if bool((scaled != scaled.round()).any()):
        raise Refused(f"{owner} is no multiple of 2**-{frac}, as fixed point needs it; sc.quant.prepare(net) rounds it")
    return scaled.to(torch.int64)


class Table(NamedTuple):
    """Constants of a program."""

    type: str
    name: str
    numbers: Sequence[Any]

    @property
    def bytes(self) -> int:
        """Its size."""
        return BYTES[self.type] * len(self.numbers)

    def lines(self) -> List[str]:
        """The definition."""
        lines, line = [f"static const {self.type} {self.name}[{len(self.numbers)}] = {{"], "   "
        for number in self.numbers:
            word = f" {number},"
            if len(line) + len(word) > _WIDTH:
                lines.append(line)
                line = "   "
            line += word
        return [*lines, line, "};"]


def table_of(name: str, numbers: Tensor, format: Optional[Format]) -> Table:
    """A table of floats, or of integers in the narrowest type."""
    flat = numbers.flatten().tolist()
    if format is None:
        return Table("float", name, [_printer.number(number) for number in flat])
    return Table(type_of(Format(0, min(flat, default=0), max(flat, default=0))), name, flat)


def packed(name: str, integers: Tensor) -> Table:
    """Integers of four bits, two in a byte, the first one in its lower half."""
    flat = [n & 15 for n in integers.flatten().tolist()]
    flat += [0] * (len(flat) % 2)
    return Table("uint8_t", name, [low | high << 4 for low, high in zip(flat[::2], flat[1::2])])
