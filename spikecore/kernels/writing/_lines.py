"""Lines of text: indented, filled, commented."""

from __future__ import annotations

import textwrap
from typing import Iterable, List

import torch

_IN = "    "


def indented(lines: Iterable[str]) -> List[str]:
    """The lines, one level further in."""
    return [f"{_IN}{line}" for line in lines]


def filled(words: Iterable[str], width: int) -> List[str]:
    """The words on as many indented lines as it takes. None is broken: a long name is longer than a line."""
    # textwrap breaks at spaces, so those within a word are another character until it is done
    text = " ".join(word.replace(" ", "\0") for word in words)
    lines = textwrap.wrap(
        text, width, initial_indent=_IN, subsequent_indent=_IN, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def commented(text: str, mark: str) -> List[str]:
    """The lines of a text as lines of comment, each behind the mark of a target's comments."""
    return [f"{mark} {line}".rstrip() for line in text.splitlines()]


def dtype_name(dtype: torch.dtype) -> str:
    """What a comment calls a dtype: its name without the library's."""
    return str(dtype).partition(".")[2]
