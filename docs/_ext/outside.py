"""Links of pages to files outside docs: to the repository where its address is known, else to copies in the site.

A folder, which cannot be copied as one file, is text without a link then; so is a page that the site does not have.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List

#: ``[text](target)``, where target is neither absolute nor an anchor of the same page.
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def with_links(text: str, page: Path, docs: Path, url: str) -> str:
    """The text of a page of the folder ``docs``, with its links to other files changed; blocks of code stay."""

    def replaced(link: re.Match[str]) -> str:
        words, target, anchor = link.group(1), link.group(2), link.group(3) or ""
        to = (page.parent / target).resolve()
        if docs in to.parents and to.is_file() and to.suffix in (".md", ".rst"):
            return link.group()
        if url:
            return f"[{words}]({url}/blob/HEAD/{to.relative_to(docs.parent).as_posix()}{anchor})"
        if to.is_file():
            return f"{{download}}`{words.replace('`', '')} <{target}>`"
        return words

    parts = re.split(r"(?ms)(^```.*?^```$)", text)
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def relinked(app: Any, docname: str, source: List[str]) -> None:
    """Change the links of one page before it is read."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        source[0] = with_links(source[0], page, Path(app.srcdir), app.config.spikecore_url)


def setup(app: Any) -> Dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("spikecore_url", "", "env", [str])
    app.connect("source-read", relinked)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
