"""The language as C11: what a step of a program is in C, for kernels on the host and for programs without Python.

The order of evaluation is that of the program. A compiler must not contract a product and a sum: with ``-std=c11`` GCC
does not, and :data:`NO_CONTRACTION` asks the others.
"""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

from spikecore.lang.render import ATOM, C_TEMPLATES, Printer

#: Lines in front of any arithmetic. GCC has no such pragma and warns of it; ``-std=c11`` is its way to say the same.
NO_CONTRACTION: Tuple[str, ...] = ("#ifdef __clang__", "#pragma STDC FP_CONTRACT OFF", "#endif")

#: Functions that C's library lacks -> other ones of these that they call, arguments, value. ``{r}`` is the type of
#: arithmetic, ``{f}`` the suffix of functions of it.
_HELPERS: Dict[str, Tuple[Tuple[str, ...], str, str]] = {
    "minimum": ((), "ab", "a != a || a < b ? a : b"),
    "maximum": ((), "ab", "a != a || a > b ? a : b"),
    "clamp": (("minimum", "maximum"), "xlh", "minimum{f}(maximum{f}(x, l), h)"),
    "sign": ((), "x", "x > 0 ? ({r})1 : x < 0 ? ({r})-1 : ({r})0"),
    "wrapped": ((), "rd", "r != 0 && (r < 0) != (d < 0) ? r + d : r"),
    "modulo": (("wrapped",), "xd", "wrapped{f}(fmod{f}(x, d), d)"),
    "sigmoid": ((), "x", "({r})1 / (({r})1 + exp{f}(-x))"),
    "softplus": (("maximum",), "x", "maximum{f}(x, ({r})0) + log1p{f}(exp{f}(-fabs{f}(x)))"),
}


class C11Printer(Printer):
    """C11 for floating point. ``real`` is ``"float"`` or ``"double"``."""

    templates = {
        **C_TEMPLATES,
        **{
            name: (ATOM, f"{name}{{f}}({', '.join(f'{{{k}}}' for k in range(len(arguments)))})")
            for name, (_, arguments, _) in _HELPERS.items()
        },
        "remainder": (ATOM, "modulo{f}({0}, {1})"),
    }
    bool_type = "int"
    wide = "((double){})"


def helpers(text: str, real: str) -> List[str]:
    """The definitions of those functions that a text calls and C's library lacks."""
    suffix = "f" if real == "float" else ""
    called = [name for name in _HELPERS if re.search(rf"\b{name}{suffix}\(", text)]
    needed = {inner for name in called for inner in _HELPERS[name][0]} | set(called)
    lines = []
    for name in filter(needed.__contains__, _HELPERS):
        _, arguments, value = _HELPERS[name]
        head = ", ".join(f"const {real} {argument}" for argument in arguments)
        lines.append(f"static inline {real} {name}{suffix}({head}) {{ return {value.format(r=real, f=suffix)}; }}")
    return lines
