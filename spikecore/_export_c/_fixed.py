"""A fixed-point program as C: integers, shifts and comparisons.

A value with ``frac`` fractional bits is the integer n of ``n * 2**-frac``. Where an operation takes values with other
fractional bits, the one with fewer is multiplied by a power of two: a left shift, which C11 leaves undefined for
negative numbers. ``>>`` of a negative number rounds down, as with every compiler that is known.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence, Tuple

from spikecore._export_c._graph import Refused
from spikecore._export_c._values import type_of
from spikecore.lang import Node
from spikecore.lang.c11 import C11Printer
from spikecore.lang.render import ATOM, TERNARY
from spikecore.quant import Format, power_of_two

#: Functions of integers, by name: what they are called with and what they give. ``{t}`` is the type.
HELPERS: Mapping[str, Tuple[str, str]] = {
    # ties to even, as IEEE 754 has it
    "rounded": ("const {t} n, const int shift", "(n + (({t})1 << (shift - 1)) - 1 + (n >> shift & 1)) >> shift"),
    "lesser": ("const {t} a, const {t} b", "a < b ? a : b"),
    "greater": ("const {t} a, const {t} b", "a > b ? a : b"),
    "magnitude": ("const {t} n", "n < 0 ? -n : n"),
    "sign": ("const {t} n", "(n > 0) - (n < 0)"),
}
_SYMBOLS = {"add": "+", "sub": "-", "ge": ">=", "gt": ">", "le": "<=", "lt": "<", "eq": "==", "ne": "!="}
_FUNCTIONS = {"minimum": "lesser", "maximum": "greater"}


class FixedPrinter(C11Printer):
    """C11 for the integers of a program. ``formats`` are those of its values."""

    def __init__(self, owner: str, formats: Mapping[Node, Format]) -> None:
        super().__init__("float")
        self._owner, self._formats = owner, formats

    def statement(self, node: Node, name: str, names: Mapping[Node, str]) -> str:
        """The line that computes a node under its name."""
        return self.declaration.format(type=self._type(node), name=name, value=self.expression(node, names))

    def _type(self, node: Node) -> str:
        return "int" if node.is_bool else "int64_t" if type_of(self._formats[node]) == "int64_t" else "int32_t"

    def _expression(self, node: Node, names: Mapping[Node, str], top: bool = True) -> Tuple[int, str]:
        if node in names and not (top and node.args):
            return ATOM, names[node]
        format = self._formats[node]
        if node.op == "const":
            return ATOM, f"{format.low}" if format.low >= 0 else f"({format.low})"
        if node.is_leaf:
            return ATOM, self.symbol(node)
        text = self._operation(node, [*node.args], names)
        return ATOM if text.isalnum() else TERNARY, text

    def _operation(self, node: Node, args: List[Node], names: Mapping[Node, str]) -> str:
        """The text of an operation, which is put in parentheses within another one."""
        op, frac = node.op, self._formats[node].frac or 0
        if op == "detach":
            return self._plain(args[0], names)
        if op in ("and", "or"):
            return f" {'&&' if op == 'and' else '||'} ".join(self._plain(arg, names) for arg in args)
        if op == "not":
            return f"!{self._plain(args[0], names)}"
        if op in ("select", "where"):
            chosen, (one, other) = self._plain(args[0], names), self._aligned(args[1:], names, frac)
            return f"{chosen} ? {one} : {other}"
        if op == "spike":
            sign = ">" if getattr(node.attr, "strict", False) else ">="
            return f"{self._plain(args[0], names)} {sign} 0 ? 1 : 0"
        if op in ("round", "floor"):
            return self._rounded(op, args[0], names)
        if op == "mul":
            return self._product(node, args, names)
        if op == "neg":
            return f"-{self._plain(args[0], names)}"
        if op in ("abs", "sign"):
            return self._call("magnitude" if op == "abs" else "sign", args, names)
        if op in _FUNCTIONS:
            return self._extremum(_FUNCTIONS[op], args, names)
        if op == "clamp":
            return self._clamped(args, names)
        if op == "sub" and self._formats[node] == Format(0, 0, 0):
            return "0"
        if op in _SYMBOLS:
            return f" {_SYMBOLS[op]} ".join(self._aligned(args, names, self._finest(args)))
        raise Refused(f"{self._owner}: there is no C for {op} of integers")

    # -- arguments

    def _plain(self, node: Node, names: Mapping[Node, str]) -> str:
        bound, text = self._expression(node, names, top=False)
        return text if bound == ATOM else f"({text})"

    def _finest(self, args: Sequence[Node]) -> int:
        return max(self._formats[arg].frac or 0 for arg in args)

    def _at(self, node: Node, frac: int) -> Format:
        return self._formats[node].at(frac)

    def _width(self, args: Sequence[Node]) -> str:
        """The bits of an operation that aligns its arguments."""
        frac = self._finest(args)
        return "64" if any(type_of(self._at(arg, frac)) == "int64_t" for arg in args) else "32"

    def _aligned(self, args: Sequence[Node], names: Mapping[Node, str], frac: int) -> List[str]:
        """The arguments with so many fractional bits."""
        texts = []
        for arg in args:
            format = self._formats[arg]
            shift, wide = frac - (format.frac or 0), type_of(self._at(arg, frac)) in ("int64_t", "")
            if type_of(self._at(arg, frac)) == "":
                raise Refused(f"{self._owner}: {arg!r} beside finer numbers needs more than 64 bits")
            if arg.op == "const":
                texts.append(f"{int(format.low) << shift}" + ("LL" if wide else ""))
                continue
            text = self._plain(arg, names)
            if wide and self._type(arg) != "int64_t":
                text = f"(int64_t){text}"
            texts.append(f"{text} * {_power(shift, wide)}" if shift else text)
        return texts

    def _call(self, name: str, args: Sequence[Node], names: Mapping[Node, str]) -> str:
        texts = self._aligned(args, names, self._finest(args))
        return f"{name}{self._width(args)}({', '.join(texts)})"

    # -- operations

    def _extremum(self, name: str, args: Sequence[Node], names: Mapping[Node, str]) -> str:
        """The smaller or the larger one; of an infinite bound it is the other."""
        finite = [arg for arg in args if not self._formats[arg].is_float]
        return self._call(name, args, names) if len(finite) == 2 else self._plain(finite[0], names)

    def _clamped(self, args: Sequence[Node], names: Mapping[Node, str]) -> str:
        finite = [arg for arg in args if not self._formats[arg].is_float]
        wide, texts = self._width(finite), self._aligned(finite, names, self._finest(finite))
        text = texts.pop(0)
        for arg, name in zip(args[1:], ("greater", "lesser")):
            if arg in finite:
                text = f"{name}{wide}({text}, {texts.pop(0)})"
        return text

    def _product(self, node: Node, args: Sequence[Node], names: Mapping[Node, str]) -> str:
        for other, value in ((1, 0), (0, 1)):
            if power_of_two(args[other]) is not None:
                return self._plain(args[value], names)
        texts = [self._plain(arg, names) for arg in args]
        if self._type(node) == "int64_t":
            texts[0] = f"(int64_t){texts[0]}"
        return " * ".join(texts)

    def _rounded(self, op: str, arg: Node, names: Mapping[Node, str]) -> str:
        format, text = self._formats[arg], self._plain(arg, names)
        shift = format.frac or 0
        if shift <= 0:
            return text
        # the sum within `rounded` may need a bit more
        wide = shift > 30 or type_of(Format(0, 2 * format.low, 2 * format.high)) == "int64_t"
        if shift > 62:
            raise Refused(f"{self._owner}: {op} takes off {shift} bits, and C has 64")
        if op == "floor":
            return f"{text} >> {shift}"
        return f"rounded{'64' if wide else '32'}({text}, {shift})"


def _power(shift: int, wide: bool) -> str:
    return f"{1 << shift}" + ("LL" if wide and shift > 30 else "")


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

