"""Names in the tables of docs/api.md as links to their entries in the reference."""

from __future__ import annotations

import importlib
import re
from typing import Any, Dict

from docutils import nodes
from sphinx import addnodes


def linked(app: Any, doctree: nodes.document) -> None:
    """Called by Sphinx for each page that it has read; a name without an entry stays text."""
    if app.env.docname != "api":
        return
    first: Dict[int, str] = {}  # a thing is documented where the list names it first
    for section in doctree.findall(nodes.section):
        module = re.fullmatch(r"([a-z_.]+)(, imported as sc)?", section[0].astext())
        tables = [child for child in section.children if isinstance(child, nodes.table)] if module else []
        for cell in (row[0] for table in tables for row in table.findall(nodes.row)):
            for name in [*cell.findall(nodes.literal)]:
                if re.fullmatch(r"\w+", name.astext()) and not isinstance(name.parent, nodes.reference):
                    target = f"{module[1]}.{name.astext()}"  # type: ignore[index]  # there are tables
                    value = getattr(importlib.import_module(module[1]), name.astext(), None)  # type: ignore[index]
                    if callable(value):
                        target = first.setdefault(id(value), target)
                    to = {"refdomain": "py", "reftype": "obj", "reftarget": target, "refexplicit": True}
                    link = addnodes.pending_xref("", refdoc="api", refwarn=False, **to)
                    name.replace_self(link)
                    link += name


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", linked)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
