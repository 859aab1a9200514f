"""The operations of the language in a table, written from their rows: the directive ``operation-table``."""

from __future__ import annotations

from typing import Any, Dict, List

import gallery

from spikecore.lang import Node, Program
from spikecore.lang.node import const, substitute
from spikecore.lang.operations import ROWS, Operation


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


class OperationTable(gallery.Written):
    """Every operation."""

    def lines(self) -> List[str]:
        """The table."""
        return gallery.table(
            ["operation", "value", "what its arguments get of its cotangent g"], list(map(_cells, ROWS))
        )


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("operation-table", OperationTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
