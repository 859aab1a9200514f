"""Tables of what is refused: calls, and words of their errors, in a text beside the test module whose names they use.

A row is a call, or several statements with ``;`` between them of which the last one raises, and on the next line, which
is indented, the error and words of its message, where ``...`` is any text and ``^`` and ``$`` are its ends::

    # Arguments of the constructor.
    sc.LIF(tau=0.5)
        ValueError: tau=0.5 must be above 1

A line that begins with ``#`` says what the rows below it have in common. A module runs its table by one line::

    test_refused = refusals.table(__file__, globals())
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

import pytest


class Row(NamedTuple):
    """A call and its error."""

    line: int
    call: str
    error: str
    words: str


def rows(path: Path) -> List[Row]:
    """The rows of a table."""
    read: List[Row] = []
    call = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            assert not call, f"{path.name}:{number}: the call above has no error"
            call = line
            continue
        error, _, words = line.strip().partition(": ")
        read.append(Row(number, call, error, words))
        call = ""
    return read


def pattern(words: str) -> str:
    """The regular expression of words."""
    begin, end = words.startswith("^"), words.endswith("$")
    parts = words[begin : len(words) - end].split("...")
    return f"(?s){'^' * begin}{'.*'.join(map(re.escape, parts))}{'$' * end}"


def table(file: str, names: Dict[str, Any], *_: object) -> Callable[..., None]:
    """The test of the table beside a module, with the names of that module. Names that the table alone uses are given
    as well, for linters.
    """
    path = Path(file).with_suffix(".txt")

    @pytest.mark.parametrize("row", rows(path), ids=lambda row: f"{row.line}: {row.call}".replace(" ", "-")[:80])
    def refused(row: Row) -> None:
        """The call raises, and its error has the words."""
        scope = {**names}
        with pytest.raises(eval(row.error, scope), match=pattern(row.words)):
            exec(compile(row.call, f"{path.name}:{row.line - 1}", "exec"), scope)

    return refused
