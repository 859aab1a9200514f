"""The language as C: what a step of a program is in a dialect, for kernels and for programs without Python.

The order of evaluation is that of the program. A compiler must not contract a product and a sum, which
``Dialect.no_contraction`` asks for.
"""

from __future__ import annotations

import re
from typing import Dict, List

from spikecore.lang.dialects import Dialect, Helper
from spikecore.lang.render import ATOM, C_TEMPLATES, Printer

#: Functions that C's library lacks.
_HELPERS: Dict[str, Helper] = {
    "minimum": ((), "ab", "a != a || a < b ? a : b"),
    "maximum": ((), "ab", "a != a || a > b ? a : b"),
    "clamp": (("minimum", "maximum"), "xlh", "{minimum}({maximum}(x, l), h)"),
    "sign": ((), "x", "x > 0 ? ({r})1 : x < 0 ? ({r})-1 : ({r})0"),
    "wrapped": ((), "rd", "r != 0 && (r < 0) != (d < 0) ? r + d : r"),
    "modulo": (("wrapped",), "xd", "{wrapped}(fmod{f}(x, d), d)"),
    "sigmoid": ((), "x", "({r})1 / (({r})1 + exp{f}(-x))"),
    "softplus": (("maximum",), "x", "{maximum}(x, ({r})0) + log1p{f}(exp{f}(-fabs{f}(x)))"),
}


class CPrinter(Printer):
    """A dialect of C for floating point. ``real`` is ``"float"`` or ``"double"``."""

    def __init__(self, dialect: Dialect, real: str = "float") -> None:
        super().__init__(real)
        self.reserved, self.bool_type, self.wide = dialect.words, dialect.boolean, dialect.wide
        self.function_suffix = dialect.suffix(real)
        self.templates = dict(C_TEMPLATES)
        for name, (_, arguments, _) in _table(dialect).items():
            call = f"{dialect.helper(name, real)}({', '.join(f'{{{k}}}' for k in range(len(arguments)))})"
            self.templates["remainder" if name == "modulo" else name] = ATOM, call


def _table(dialect: Dialect) -> Dict[str, Helper]:
    """All functions that a dialect's library lacks; none calls a later one."""
    own = dialect.helpers
    return {**{name: helper for name, helper in _HELPERS.items() if name not in own}, **own}


def helpers(text: str, real: str, dialect: Dialect) -> List[str]:
    """The definitions of those functions that a text calls and the dialect's library lacks."""
    table = _table(dialect)
    names = {name: dialect.helper(name, real) for name in table}
    called = [name for name in table if re.search(rf"\b{names[name]}\(", text)]
    needed = {inner for name in called for inner in table[name][0]} | set(called)
    lines = []
    for name in filter(needed.__contains__, table):
        _, arguments, value = table[name]
        head = ", ".join(f"const {real} {argument}" for argument in arguments)
        value = value.format(r=real, f=dialect.suffix(real), **names)
        lines.append(f"{dialect.function} {real} {names[name]}({head}) {{ return {value}; }}")
    return lines
