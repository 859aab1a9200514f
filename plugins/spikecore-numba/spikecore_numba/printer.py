"""The language as Numba's Python: what differs from C."""

from __future__ import annotations

from typing import Dict

import torch

from spikecore.lang import Node
from spikecore.lang.render import ATOM, OPERATOR_TEMPLATES, PRODUCT, SUM, TERNARY, UNARY, Printer


class NumbaPrinter(Printer):
    """Python that Numba compiles without reordering, contraction or Python objects."""

    templates = {
        **OPERATOR_TEMPLATES,
        # `and` and `or` would branch; these bind more tightly than comparisons, which therefore stand in parentheses
        "and": (PRODUCT, "{0} & {1}"),
        "or": (SUM, "{0} | {1}"),
        "not": (UNARY, "(not {0})"),
        "where": (TERNARY, "{1} if {0} else {2}"),
        "select": (TERNARY, "{1} if {0} != {zero} else {2}"),
        "spike": (TERNARY, "{one} if {0} {compare} {zero} else {zero}"),
        **{op: (ATOM, f"math.{op}({{0}})") for op in ("log", "sqrt", "sin", "cos", "tanh", "atan")},
        "exp": (ATOM, "{exp}({0})"),
        "sigmoid": (PRODUCT, "{one} / ({one} + {exp}(-{0}))"),
        "abs": (ATOM, "abs({0})"),
        "sign": (ATOM, "sign{f}({0})"),
        "minimum": (ATOM, "lesser({0}, {1})"),
        "maximum": (ATOM, "greater({0}, {1})"),
        "clamp": (ATOM, "lesser(greater({0}, {1}), {2})"),
        "floor": (ATOM, "np.floor({0})"),
        "round": (ATOM, "np.rint({0})"),
        "power": (ATOM, "math.pow({0}, {1})"),
    }
    reserved = frozenset()
    declaration = "{name} = {value}"
    comment = "#"
    infinity, nan = "np.inf", "np.nan"
    wide = "{}"

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__("double" if compute == torch.float64 else "float")

    def number(self, value: float) -> str:
        """A number of the type of arithmetic: Python's own are float64."""
        text = super().number(value)
        return text if self.real == "double" else f"float32({text})"

    def words(self, node: Node) -> Dict[str, str]:
        """The base's, and the exponential that becomes vector instructions where there is one."""
        return {**super().words(node), "exp": "math.exp" if self.real == "double" else "expf"}

    def literal(self, digits: str) -> str:
        """Plain digits."""
        return digits

    def legal(self, name: str) -> str:
        """Python has no macros: any shape will do."""
        return name

    def leaf(self, node: Node) -> str:
        """What a leaf would like to be called: cotangents are called after what they belong to."""
        return {"out_grad": "grad_out{}", "next_grad": "grad_{}"}.get(node.op, "{}").format(node.attr)
