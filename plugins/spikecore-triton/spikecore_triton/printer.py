"""The language as Triton's: what differs from C."""

from __future__ import annotations

import math
from typing import Collection, Dict, Mapping, Tuple

from spikecore.kernels.writing import KernelPrinter, PythonSyntax, negated_choice
from spikecore.lang import Node, topological
from spikecore.lang.render import ATOM, PRODUCT, PYTHON_TEMPLATES, UNARY

#: Names that are in no text of ours: Triton makes a function that takes a kernel's arguments and has names of its own,
#: and a launch gives options by name.
LAUNCH = frozenset(
    "BLOCK JITCallable JITFunction args backend debug device device_type dynamic_func enable_fp_fusion "
    "enable_reflect_ftz fpsan_homomorphic_casts grid instrumentation_mode kwargs mangle_type maxnreg num_ctas "
    "num_stages num_warps options params sanitize_overflow self specialization specialize_impl stream warmup".split()
)

#: Operations that are Python's on two Python numbers, which knows no float32.
_OPERATORS = frozenset("add sub mul neg ge gt le lt eq ne".split())
_SMALLEST_NORMAL = 2.0**-126


class TritonPrinter(PythonSyntax, KernelPrinter):
    """Triton that rounds as IEEE says. Only divisions in ``approximate`` may be off in the last digit."""

    templates = {
        **PYTHON_TEMPLATES,
        # Triton's own minus is 0 - x, which loses the sign of zero; this one becomes a change of sign
        "neg": (PRODUCT, "-1.0 * {0}"),
        "div": (ATOM, "{divide}({0}, {1})"),
        "not": (UNARY, "~{0}"),
        "where": (ATOM, "tl.where({0}, {1}, {2})"),
        # tl.sqrt is approximate; this one rounds correctly, as IEEE wants
        "sqrt": (ATOM, "tl.sqrt_rn({0})"),
        "abs": (ATOM, "tl.abs({0})"),
        "floor": (ATOM, "tl.floor({0})"),
        "round": (ATOM, "libdevice.nearbyint({0})"),
        "select": (ATOM, "tl.where({0} != 0.0, {1}, {2})"),
        "spike": (ATOM, "tl.where({0} {compare} 0.0, 1.0, 0.0)"),
    }
    reserved = LAUNCH
    math = "libdevice"
    infinity, nan = 'float("inf")', 'float("nan")'

    def __init__(self, approximate: Collection[Node] = ()) -> None:
        super().__init__("float")
        self.approximate = frozenset(approximate)

    def number(self, value: float) -> str:
        """A plain number, which Triton makes float32 of; -0, and one below float32's normal numbers, must say so."""
        negative_zero = value == 0.0 and math.copysign(1.0, value) < 0.0
        return self.value(value) if negative_zero or 0.0 < abs(value) < _SMALLEST_NORMAL else super().number(value)

    def value(self, value: float) -> str:
        """A number as a value of Triton's. Triton makes +0 of every number that equals 0."""
        if value == 0.0 and math.copysign(1.0, value) < 0.0:
            return "negative_zero()"
        return f"float32({super().number(value)})"

    def typed(self, node: Node, names: Mapping[Node, str]) -> str:
        """An expression that is a value of Triton's even where it is a mere number."""
        while node.op in self.transparent and node not in names:
            (node,) = node.args
        text = names.get(node) or self.expression(node, names)
        return self.value(_number(node)) if node.op == "const" else text

    def expression(self, node: Node, names: Mapping[Node, str] = {}) -> str:  # never written to
        """The base's; numbers that meet no other value are written as Triton's."""
        constants = {
            inner.args[0]: self.value(_number(inner.args[0]))
            for inner in topological([node], known=[known for known in names if known != node])
            if inner.op in _OPERATORS and all(arg.op == "const" for arg in inner.args)
        }
        return super().expression(node, {**names, **constants})

    def template(self, node: Node) -> Tuple[int, str]:
        binding, text = super().template(node)
        index = negated_choice(node)
        # held, since the compiler computes 0 or 1 as an integer, whose negation has no -0
        return binding, text if index is None else text.replace(f"{{{index}}}", f"hold({{{index}}})")

    def words(self, node: Node) -> Dict[str, str]:
        """The base's, and how a node divides."""
        return {**super().words(node), "divide": "tl.fdiv" if node in self.approximate else "tl.div_rn"}


def _number(const: Node) -> float:
    return float(const.attr)  # type: ignore[arg-type]  # of a constant it is a number
