"""Expressions as text for people, in the language's own notation: what ``print(node)`` shows."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Iterable, Tuple

from spikecore.lang._symbols import on_one_line
from spikecore.lang.render import ATOM, OPERATOR_TEMPLATES, PRODUCT, SUM, UNARY, Printer

if TYPE_CHECKING:
    from spikecore.lang.node import Node


def _call(name: str, arity: int) -> Tuple[int, str]:
    return ATOM, f"{name}({', '.join(f'{{{i}}}' for i in range(arity))})"


class TextPrinter(Printer):
    """The language's own notation."""

    templates = {
        **OPERATOR_TEMPLATES,
        **{
            op: _call(op, 1)
            for op in "exp log sqrt sin cos tanh sigmoid softplus atan erf abs sign floor round".split()
        },
        **{op: _call(op, 2) for op in ("power", "minimum", "maximum")},
        "clamp": _call("clamp", 3),
        "detach": _call("detach", 1),
        "where": _call("where", 3),
        "select": _call("select", 3),
        # in Python these bind more tightly than comparisons, which therefore stand in parentheses
        "and": (PRODUCT, "{0} & {1}"),
        "or": (SUM, "{0} | {1}"),
        "not": (UNARY, "~{0}"),
        "spike": (ATOM, "spike({0} {compare} 0)"),
    }
    reserved = frozenset()
    transparent = frozenset()
    declaration = "{name} = {value}"
    comment = "#"
    infinity, nan = "inf", "nan"
    wide = "{}"

    def __init__(self, others: Iterable[str] = ()) -> None:
        super().__init__("double")
        #: Names that values of another part of the text have, and no parameter gets.
        self.others = frozenset(others)

    def leaf(self, node: Node) -> str:
        """What a leaf would like to be called."""
        name = super().leaf(node)
        while node.op == "param" and name in self.others:
            name += "_"
        return name

    def literal(self, digits: str) -> str:
        """Whole numbers without a fraction."""
        return digits[:-2] if digits.endswith(".0") else digits

    def spelled(self, name: str) -> str:
        """The name as Python reads it."""
        return on_one_line(unicodedata.normalize("NFKC", name))

    def legal(self, name: str) -> str:
        """Any shape will do."""
        return name
