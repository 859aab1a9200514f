"""What printers for kernels share, and what those that print Python share beside it."""

from __future__ import annotations

from typing import Dict, FrozenSet, Tuple

from spikecore.lang import Node
from spikecore.lang.render import ATOM, OPERATOR_TEMPLATES, PRODUCT, SUM, Printer


class KernelPrinter(Printer):
    """A printer of expressions for kernels, forward and backward."""

    def leaf(self, node: Node) -> str:
        """What a leaf would like to be called: cotangents are called after what they belong to."""
        return {"out_grad": "grad_out{}", "next_grad": "grad_{}"}.get(node.op, "{}").format(node.attr)


#: What compilers of Python have in common; a target adds the other operations.
PYTHON_TEMPLATES: Dict[str, Tuple[int, str]] = {
    **OPERATOR_TEMPLATES,
    # `and` and `or` would branch; these bind more tightly than comparisons, which therefore stand in parentheses
    "and": (PRODUCT, "{0} & {1}"),
    "or": (SUM, "{0} | {1}"),
    # Python's min and max differ from the language in ties and NaNs, so these are small functions of the target
    "minimum": (ATOM, "lesser({0}, {1})"),
    "maximum": (ATOM, "greater({0}, {1})"),
    "clamp": (ATOM, "lesser(greater({0}, {1}), {2})"),
}


class PythonSyntax:
    """How Python declares, comments and spells, for a printer that derives from this class first."""

    reserved: FrozenSet[str] = frozenset()
    declaration = "{name} = {value}"
    comment = "#"
    wide = "{}"

    def literal(self, digits: str) -> str:
        """Plain digits."""
        return digits

    def legal(self, name: str) -> str:
        """Python has no macros: any shape will do."""
        return name
