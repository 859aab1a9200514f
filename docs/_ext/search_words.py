"""Both spellings of a word for the search: a page that says ``quantisation`` is found by ``quantization``, too."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List

#: Parts of words, as they are written in Britain and in America.
SPELLINGS = (
    ("alis", "aliz"), ("imis", "imiz"), ("ntis", "ntiz"), ("aris", "ariz"), ("oris", "oriz"), ("tris", "triz"),
    ("ronis", "roniz"), ("etis", "etiz"), ("eighbour", "eighbor"), ("colour", "color"), ("behaviour", "behavior"),
    ("centre", "center"), ("labelled", "labeled"), ("modelli", "modeli"), ("modelled", "modeled"),
    ("learnt", "learned"), ("licence", "license"),
)  # fmt: skip
#: Words with such a part that have one spelling.
_ONE = re.compile(r"(comparis|paris|arise|promis|symmetris|otis)")


def others(words: Iterable[str]) -> List[str]:
    """The other spellings of words, but for those that are among the words."""
    known = {word.lower() for word in words}
    found = set()
    for word in known:
        if _ONE.search(word):
            continue
        for pair in SPELLINGS:
            for one, other in (pair, pair[::-1]):
                # the ending is one of a verb: optimise, optimiser, optimising, optimisation
                ending = r"(?=e|ing|ation|$)" if one[-1] in "sz" else ""
                found.add(re.sub(one + ending, other, word))
    return sorted(found - known)


def added(app: Any, doctree: Any) -> None:
    """Called by Sphinx for each page that it has read."""
    from docutils import nodes

    words = others(re.findall(r"[^\W\d_]+", doctree.astext()))
    if words:
        doctree.insert(0, nodes.meta("", name="keywords", content=", ".join(words)))


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", added)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
