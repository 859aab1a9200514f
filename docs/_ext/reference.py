"""The reference: a page for each module that docs/api.md lists, and the list of all modules.

Both are written from docstrings, before Sphinx reads.
A thing is documented where api.md names it first, or on its page of the gallery; elsewhere a line leads there.
docs/api.md stays the list of what is public, which a test compares with the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Collection, Dict, List, Optional, Tuple

import gallery
import module_list
from docutils import nodes

#: Module -> its sentence, and its names, each with one.
Listed = Dict[str, Tuple[str, Dict[str, str]]]


def listed(page: Path) -> Listed:
    """The modules of api.md: a heading of its name, a sentence, and tables of names."""
    found: Listed = {}
    parts = re.split(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    for heading, body in zip(parts[1::2], parts[2::2]):
        name = re.fullmatch(r"`([a-z_.]+)`(?:, imported as `sc`)?", heading)
        if name:
            names: Dict[str, str] = {}
            for cell, sentence in re.findall(r"(?m)^\| (`.*?`) \| (.*) \|$", body):
                names.update(dict.fromkeys(re.findall(r"`(\w+)`", cell), sentence))
            for table, sentence in re.findall(r"(?m)^\| all of `([\w.]+)` \| (.*) \|$", body):
                names.update(dict.fromkeys(_all_of(table, name.group(1)), sentence))
            found[name.group(1)] = (" ".join(body.strip().partition("\n\n")[0].split()), names)
    return found


def _all_of(table: str, module: str) -> List[str]:
    """The keys of a table, ``package.TABLE``, that the module has under these names."""
    where, _, name = table.rpartition(".")
    keys = getattr(importlib.import_module(where), name)
    return [key for key in keys if hasattr(importlib.import_module(module), key)]


def _entry(module: str, name: str, value: Any) -> List[str]:
    if inspect.isclass(value):
        return [f".. autoclass:: {module}.{name}", "   :members:", "   :show-inheritance:", ""]
    if callable(value):
        return [f".. autofunction:: {module}.{name}", ""]
    return [f".. autodata:: {module}.{name}", "   :no-value:", ""]


def page(module: str, sentence: str, names: Dict[str, str], seen: Dict[int, str], pages: Collection[str] = ()) -> str:
    """The page of a module.

    seen: what was documented before, by identity, and where.
    pages: names that have a page in the gallery.
    """
    there = importlib.import_module(module)
    lines = [module, "=" * len(module), "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence).replace("`", "``"), ""]
    lines += [f".. module:: {module}", ""]
    for name, what in names.items():
        value = getattr(there, name) if hasattr(there, name) else importlib.import_module(f"{module}.{name}")
        if inspect.ismodule(value):
            lines += [f"``{name}``", f"   The module :mod:`{value.__name__}`.", ""]
            continue
        first = seen.setdefault(id(value), f"{module}.{name}") if value is not None else f"{module}.{name}"
        documented = inspect.isclass(value) or callable(value)
        if first in pages:
            lines += [f":class:`{name} <{first}>`", f"   {gallery.summary(value)}", ""]
        elif first != f"{module}.{name}" and documented:
            lines += [f"``{name}``", f"   :obj:`{first}`.", ""]
        elif documented:
            lines += _entry(module, name, value)
        else:
            what = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", what).replace("`", "``")
            lines += [f".. data:: {name}", "", f"   {what}", ""]
    return "\n".join(lines)


def write(app: Any) -> None:
    """Write the pages into docs/reference, where git ignores them; one that did not change keeps its date."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    kinds = gallery.classes(Path(app.srcdir))
    seen = {id(kind): f"spikecore.{path}" for kind, path in kinds.items()}
    pages = set(seen.values())
    wanted = {folder / "modules.rst": module_list.page(Path(app.srcdir).parent)}
    for module, (sentence, names) in listed(Path(app.srcdir) / "api.md").items():
        wanted[folder / f"{module}.rst"] = page(module, sentence, names, seen, pages)
    for path in folder.glob("*.rst"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def found_elsewhere(app: Any, env: Any, node: Any, content: Any) -> Optional[nodes.Node]:
    """A name that another module documents: docstrings name their neighbours, and readers reach these elsewhere."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip("~.")
    if any(part.startswith("_") for part in target.split(".")[:-1]):
        target = target.rpartition(".")[2]
    domain = env.get_domain("py")
    ends = [name for name in domain.objects if name == target or name.endswith(f".{target.rpartition('.')[2]}")]
    # a class has a name of its public module and one of its file, which lead to the same place
    places = {(domain.objects[name].docname, domain.objects[name].node_id) for name in ends}
    if len(places) != 1:
        return None
    ((docname, node_id),) = places
    from sphinx.util.nodes import make_refnode

    return make_refnode(app.builder, node["refdoc"], docname, node_id, content, ends[0])


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", write)
    app.connect("missing-reference", found_elsewhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
