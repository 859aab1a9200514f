"""Lists of arguments in docstrings, ``name: what it is`` a line each, as the definition lists that Sphinx reads."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Tuple

#: Headings of such lists, which no page of the site needs: the list says it.
_HEADINGS = {"Parameters", "Attributes"}
_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")
#: Formulas within a sentence. Without MathJax Sphinx shows their LaTeX, so they become code, with these names.
_FORMULA = re.compile(r":math:`([^`]*)`")
_NAMES = {"vartheta": "threshold"}


def with_lists(lines: List[str]) -> List[str]:
    """The lines, where each paragraph that is such a list became one of Sphinx's."""
    listed: List[str] = []
    for paragraph in _paragraphs(lines):
        listed += [*(_listed(paragraph) if _is_list(paragraph) else paragraph), ""]
    return listed


def split(lines: List[str]) -> Tuple[List[str], Dict[str, str]]:
    """The lines without such lists, and what the lists say of each argument."""
    text: List[str] = []
    arguments: Dict[str, str] = {}
    for paragraph in _paragraphs(lines):
        if not _is_list(paragraph):
            text += [*paragraph, ""]
            continue
        names: List[str] = []
        for line in paragraph:
            entry = None if line.startswith(" ") else _ENTRY.fullmatch(line)
            if entry:
                names = entry.group(1).replace("*", "").split(", ")
                arguments.update(dict.fromkeys(names, entry.group(2)))
            else:
                arguments.update({name: f"{arguments[name]} {line.strip()}" for name in names})
    return text, arguments


def _paragraphs(lines: List[str]) -> Iterator[List[str]]:
    paragraph: List[str] = []
    for line in map(_with_code, [*lines, ""]):
        if paragraph and paragraph[-1] in _HEADINGS and set(line) == {"-"}:
            paragraph.pop()
        elif line.strip():
            paragraph.append(line)
        else:
            yield paragraph
            paragraph = []


def _with_code(line: str) -> str:
    def code(formula: re.Match[str]) -> str:
        text = re.sub(r"\\(\w+)", lambda name: _NAMES.get(name[1], name[1]), formula[1])
        return f"``{text}``"

    return _FORMULA.sub(code, line)


def _is_list(paragraph: List[str]) -> bool:
    heads = [line for line in paragraph if not line.startswith(" ")]
    if not heads or paragraph[0] != heads[0] or not all(_ENTRY.fullmatch(line) for line in heads):
        return False
    # one sentence with a colon is no list, unless it begins with a name as code has it
    return len(heads) > 1 or heads[0][0].islower()


def _listed(paragraph: List[str]) -> List[str]:
    listed: List[str] = []
    for line in paragraph:
        entry = _ENTRY.fullmatch(line)
        if entry and not line.startswith(" "):
            listed += [f"``{entry.group(1)}``", f"    {entry.group(2)}"]
        else:
            listed.append(f"    {line.strip()}")
    return listed


def changed(app: Any, what: str, name: str, obj: Any, options: Any, lines: List[str]) -> None:
    """Called by autodoc for every docstring."""
    lines[:] = with_lists(lines)


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", changed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
