"""A fixed-point program as C: integers, shifts and comparisons.

A value with ``frac`` fractional bits is the integer n of ``n * 2**-frac``. Where an operation takes values with other
fractional bits, the one with fewer is multiplied by a power of two: a left shift, which C11 leaves undefined for
negative numbers. ``>>`` of a negative number rounds down, as with every compiler that is known.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

from spikecore.lang import Node
from spikecore.lang.c import CPrinter
from spikecore.lang.dialects import C11
from spikecore.lang.operations import AND, ATOM, EQUALITY, OR, ORDER, PRODUCT, SUM, TERNARY, UNARY
from spikecore_chips._export_c._graph import Refused
from spikecore_chips._export_c._values import type_of
from spikecore_chips.quant import Format
from spikecore_chips.quant._analysis import ZERO, power_of_two

#: Functions of integers, by name: what they are called with and what they give. ``{t}`` is the type.
HELPERS: Mapping[str, Tuple[str, str]] = {
    # ties to even, as IEEE 754 has it
    "rounded": ("const {t} n, const int shift", "(n + (({t})1 << (shift - 1)) - 1 + (n >> shift & 1)) >> shift"),
    "lesser": ("const {t} a, const {t} b", "a < b ? a : b"),
    "greater": ("const {t} a, const {t} b", "a > b ? a : b"),
    "magnitude": ("const {t} n", "n < 0 ? -n : n"),
    "sign": ("const {t} n", "(n > 0) - (n < 0)"),
}
_SYMBOLS = {
    "add": (SUM, "+"),
    "sub": (SUM, "-"),
    "ge": (ORDER, ">="),
    "gt": (ORDER, ">"),
    "le": (ORDER, "<="),
    "lt": (ORDER, "<"),
    "eq": (EQUALITY, "=="),
    "ne": (EQUALITY, "!="),
    "and": (AND, "&&"),
    "or": (OR, "||"),
}
_FUNCTIONS = {"minimum": "lesser", "maximum": "greater", "abs": "magnitude", "sign": "sign"}
#: Precedence of a text, and the text.
_Text = Tuple[int, str]


class FixedPrinter(CPrinter):
    """C11 for the integers of a program. ``formats`` are those of its values."""

    def __init__(self, owner: str, formats: Mapping[Node, Format]) -> None:
        super().__init__(C11)
        self._owner, self._formats = owner, formats

    def statement(self, node: Node, name: str, names: Mapping[Node, str]) -> str:
        """The line that computes a node under its name."""
        return self.declaration.format(type=self._type(node), name=name, value=self.expression(node, names))

    def _type(self, node: Node) -> str:
        return "int" if node.is_bool else "int64_t" if is_wide(self._formats[node]) else "int32_t"

    def _expression(self, node: Node, names: Mapping[Node, str], top: bool = True) -> _Text:
        if node in names and not (top and node.args):
            return ATOM, names[node]
        if node.op == "const":
            return _integer(int(self._formats[node].low))
        if node.is_leaf:
            return ATOM, self.symbol(node)
        return self._operation(node, node.args, names)

    def _operation(self, node: Node, args: Sequence[Node], names: Mapping[Node, str]) -> _Text:
        op = node.op
        if op == "detach":
            return self._expression(args[0], names, top=False)
        if op == "not":
            return UNARY, f"!{self._arg(args[0], names, ATOM)}"
        if op == "neg":
            return UNARY, f"-{self._arg(args[0], names, ATOM)}"
        if op in ("select", "where"):
            chosen, otherwise = self._aligned(args[1:], names, int(self._formats[node].frac or 0), OR)
            return TERNARY, f"{self._arg(args[0], names, OR)} ? {chosen} : {otherwise}"
        if op == "spike":
            sign = ">" if getattr(node.attr, "strict", False) else ">="
            return TERNARY, f"{self._arg(args[0], names, SUM)} {sign} 0 ? 1 : 0"
        if op in ("round", "floor"):
            return self._rounded(op, args[0], names)
        if op == "mul":
            return self._product(node, args, names)
        if op == "clamp":
            return self._clamped(node, args, names)
        if op in _FUNCTIONS:
            return self._call(_FUNCTIONS[op], args, names)
        if op in ("add", "sub"):
            return self._sum(node, args, names)
        if op in _SYMBOLS:
            bound, symbol = _SYMBOLS[op]
            texts = [self._arg(arg, names, ORDER) for arg in args]
            return bound, f" {symbol} ".join(texts if args[0].is_bool else self._aligned(args, names, None, SUM))
        raise Refused(f"{self._owner}: there is no @language@ for {op} of integers")

    # -- arguments

    def _arg(self, node: Node, names: Mapping[Node, str], least: int) -> str:
        """An argument, in parentheses if it binds less tightly."""
        bound, text = self._expression(node, names, top=False)
        return text if bound >= least else f"({text})"

    def _finest(self, args: Sequence[Node]) -> int:
        return max(int(self._formats[arg].frac or 0) for arg in args)

    def _width(self, args: Sequence[Node]) -> int:
        """The bits of an operation that aligns its arguments."""
        frac = self._finest(args)
        return 64 if any(is_wide(self._formats[arg].at(frac)) for arg in args) else 32

    def _aligned(self, args: Sequence[Node], names: Mapping[Node, str], frac: Optional[int], least: int) -> List[str]:
        """The arguments with so many fractional bits, by default the most that one of them has."""
        frac = self._finest(args) if frac is None else frac
        texts = []
        for arg in args:
            format = self._formats[arg].at(frac)
            if type_of(format) == "":
                raise Refused(f"{self._owner}: {arg!r} beside finer numbers needs more than 64 bits")
            shift = frac - int(self._formats[arg].frac or 0)
            if arg.op == "const":
                bound, text = _integer(int(format.low))
            elif shift == 0 or format == Format(frac, 0, 0):
                bound, text = self._expression(arg, names, top=False)
            else:
                cast = "(int64_t)" if is_wide(format) and self._type(arg) != "int64_t" else ""
                text = self._arg(arg, names, ATOM if cast else PRODUCT)
                bound, text = PRODUCT, f"{cast}{text} * {_integer(1 << shift)[1]}"
            texts.append(text if bound >= least else f"({text})")
        return texts

    # -- operations

    def _call(self, name: str, args: Sequence[Node], names: Mapping[Node, str]) -> _Text:
        """A function of aligned arguments. An infinite bound is none."""
        finite = [arg for arg in args if not self._formats[arg].is_float]
        if len(finite) < len(args):
            return self._expression(finite[0], names, top=False)
        return ATOM, f"{name}{self._width(args)}({', '.join(self._aligned(args, names, None, TERNARY))})"

    def _clamped(self, node: Node, args: Sequence[Node], names: Mapping[Node, str]) -> _Text:
        finite, frac = [arg for arg in args if not self._formats[arg].is_float], int(self._formats[node].frac or 0)
        width = 64 if any(is_wide(self._formats[arg].at(frac)) for arg in finite) else 32
        texts = self._aligned(finite, names, frac, TERNARY)
        text = texts.pop(0)
        for arg, name in zip(args[1:], ("greater", "lesser")):
            if arg in finite:
                text = f"{name}{width}({text}, {texts.pop(0)})"
        return (ATOM if len(finite) > 1 else TERNARY), text

    def _sum(self, node: Node, args: Sequence[Node], names: Mapping[Node, str]) -> _Text:
        """A sum or a difference. What is always 0, as the difference of a value with itself, is left out."""
        if self._formats[node] == ZERO:
            return ATOM, "0"
        if self._formats[args[1]] == ZERO:
            return self._expression(args[0], names, top=False)
        frac = int(self._formats[node].frac or 0)
        (left,), (right,) = self._aligned(args[:1], names, frac, SUM), self._aligned(args[1:], names, frac, PRODUCT)
        if is_wide(self._formats[node]) and self._type(args[0]) != "int64_t" and not left.startswith("(int64_t)"):
            (left,) = self._aligned(args[:1], names, frac, ATOM)
            left = f"(int64_t){left}"
        return SUM, f"{left} {_SYMBOLS[node.op][1]} {right}"

    def _product(self, node: Node, args: Sequence[Node], names: Mapping[Node, str]) -> _Text:
        """A product. One with a power of two is the same integer, with other fractional bits."""
        for power, value in ((1, 0), (0, 1)):
            if power_of_two(args[power]) is not None:
                return self._expression(args[value], names, top=False)
        wide = self._type(node) == "int64_t" and "int64_t" not in map(self._type, args)
        left, right = self._arg(args[0], names, ATOM if wide else PRODUCT), self._arg(args[1], names, ATOM)
        return PRODUCT, f"{'(int64_t)' if wide else ''}{left} * {right}"

    def _rounded(self, op: str, arg: Node, names: Mapping[Node, str]) -> _Text:
        format = self._formats[arg]
        shift = int(format.frac or 0)
        if shift <= 0:
            return self._expression(arg, names, top=False)
        if shift > 62:
            raise Refused(f"{self._owner}: {op} takes off {shift} bits, and integers have 64")
        if op == "floor":
            return ORDER, f"{self._arg(arg, names, ATOM)} >> {shift}"
        wide = shift > 30 or is_wide(Format(0, format.low, int(format.high) + (1 << (shift - 1))))
        return ATOM, f"rounded{64 if wide else 32}({self._arg(arg, names, TERNARY)}, {shift})"


def is_wide(format: Format) -> bool:
    """True if an integer needs more than 32 bits."""
    return type_of(format) in ("int64_t", "")


def _integer(n: int) -> _Text:
    """A literal. The lowest number of 64 bits has none, and no format has it."""
    return (ATOM if n >= 0 else UNARY), f"{n}{'LL' if abs(n) >= 1 << 31 else ''}"


def helpers(text: str) -> List[str]:
    """The definitions of those functions that a text calls."""
    lines = []
    for name, (arguments, value) in HELPERS.items():
        for bits in ("32", "64"):
            if f"{name}{bits}(" in text:
                kind = f"int{bits}_t"
                head = f"static inline {kind} {name}{bits}({arguments.format(t=kind)})"
                lines.append(f"{head} {{ return {value.format(t=kind)}; }}")
    return lines
