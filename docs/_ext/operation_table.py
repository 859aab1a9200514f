"""The operations of the language in a table, written from their rows: the directive ``operation-table``."""

from __future__ import annotations

from inspect import cleandoc, signature
from typing import Any, Callable, Dict, List

import gallery

from spikecore.lang import Expr, Node, Program
from spikecore.lang.node import const, substitute
from spikecore.lang.operations import COMPOSED, ROWS, Operation


def _text(node: Node) -> str:
    return f"``{node!r}``"


def _cells(row: Operation) -> List[str]:
    names = row.arguments.split(", ") if row.is_function else ["a", "b"][: row.arity]
    numbers = [Node("input", (), name) for name in names]
    shown = Node(row.name, tuple(numbers))
    if row.name == "spike":
        return ["``spike(u)``", row.doc, "``g`` times the surrogate's derivative at ``u``"]
    if row.kind in ("comparison", "logic"):
        return [_text(shown), "a truth value", "none"]
    # the choice is by a truth value, for which the name stands
    compared = [Node("gt", (numbers[0], const(0.0))), *numbers[1:]] if row.kind == "choice" else numbers
    program = Program("", inputs=names, states=(), outputs=[Node(row.name, tuple(compared))], next=(), initial=())
    g = {Node("out_grad", (), 0): Node("input", (), "g")}
    parts = [_text(substitute(part, g)).replace("condition > 0", "condition") for part in program.adjoint().inputs]
    return [_text(shown), row.doc or "as IEEE 754 rounds it", ", ".join(parts)]


def _composed(name: str, formula: Callable[..., Any]) -> List[str]:
    names = list(signature(formula).parameters)
    root = formula(*[Expr(Node("input", (), argument)) for argument in names]).node
    doc = cleandoc(formula.__doc__ or "")
    return [f"``{name}({', '.join(names)})``", f"{doc} The formula is {_text(root)}.", "by the rules of its operations"]


class OperationTable(gallery.Written):
    """Every operation."""

    def lines(self) -> List[str]:
        """The table."""
        return gallery.table(
            ["operation", "value", "what its arguments get of its cotangent g"],
            [*map(_cells, ROWS), *(_composed(name, formula) for name, formula in COMPOSED.items())],
        )


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("operation-table", OperationTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
