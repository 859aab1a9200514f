"""Lines of text: indented, folded, in loops."""

from __future__ import annotations

import textwrap
from typing import Any, Iterable, List, Sequence

_IN = "    "
#: A long name is longer than a line, and stays whole.
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def indented(lines: Iterable[str]) -> List[str]:
    """The lines, further in."""
    return [f"{_IN}{line}" for line in lines]


def over_neurons(lines: Sequence[str]) -> List[str]:
    """A loop over the neurons of a thread."""
    head = ["#pragma unroll", "for (int j = 0; j < V; ++j)"]
    if len(lines) == 1:
        return [*head, f"    {lines[0]}"]
    return [head[0], f"{head[1]} {{", *indented(lines), "}"]


def over_steps(fixed: bool, lines: Sequence[str], backwards: bool = False) -> List[str]:
    """A loop over the steps of a chunk, unrolled where their number is known."""
    count, unroll = ("T", "#pragma unroll") if fixed else ("count", "#pragma unroll U")
    head = f"int t = {count} - 1; t >= 0; --t" if backwards else f"int t = 0; t < {count}; ++t"
    if len(lines) == 1:
        return [unroll, f"for ({head}) {lines[0]}"]
    now = [] if fixed else ["const int k = whole ? t : 0;"]
    return [unroll, f"for ({head}) {{", *indented([*now, *lines]), "}"]


def wrapped(words: Iterable[str]) -> List[str]:
    """Words between commas, as lines."""
    text = ", ".join(word.replace(" ", "\0") for word in words)
    lines = textwrap.wrap(text, 112, initial_indent=_IN, subsequent_indent=_IN, **_WHOLE_WORDS)
    return [line.replace("\0", " ") for line in lines]


def commented(text: str) -> List[str]:
    """Lines of a comment."""
    return [f"// {line}".rstrip() for line in text.splitlines()]


def folded(line: str) -> List[str]:
    """A line that is too long for a page, as several."""
    if len(line) <= 120 or line.startswith("//"):
        return [line]
    begin = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), 120, initial_indent=begin, subsequent_indent=begin + _IN, **_WHOLE_WORDS)
