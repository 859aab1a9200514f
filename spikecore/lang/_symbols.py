"""Names of a text that are chosen when the text is complete.

While a text is written, each identifier that comes from a user, or that is made up beside those, is a *symbol*: an
opaque mark that carries the name it would like to have. When the text is complete, :meth:`Symbols.named` finds every
identifier that the text itself has, and gives each symbol its name, or that name with as few underscores as needed,
such that it meets none of them, no word of the target and no other symbol.

So nobody keeps a list of the names that a kernel's text uses: kernels once counted neurons with ``j``, the list missed
it, and a parameter named ``j`` was the number of the neuron.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Callable, Dict, Hashable, Iterable, List, Set

_SYMBOL = re.compile("\x02([0-9]+)\x03")
#: A symbol beside a letter or another symbol: a name put together in the text, which nobody would check.
_JOINED = re.compile("\\w\x02|\x03\\w|\x03\x02")
#: An identifier, but for those that follow a point and are looked up in what is before it, as in ``threadIdx.x``.
_IDENTIFIER = re.compile(r"(?<![\w.])[^\W\d]\w*")

#: A kernel shows so many letters of a user's name: file systems and compilers have limits.
LONGEST = 60


def ascii_name(name: str) -> str:
    """The name as an identifier of ASCII letters that every target can have, and not a long one.

    Python reads identifiers in Unicode's form NFKC, so that is what is converted. Names of classes made with ``type()``
    can hold anything.
    """
    name = unicodedata.normalize("NFKC", name)[:LONGEST]
    letters = (c if c.isascii() and c.isalnum() else "_" if c.isascii() else f"u{ord(c):x}" for c in name)
    name = "".join(letters)
    return f"u{name}" if not name or name[0].isdigit() else name


class Symbols:
    """The symbols of one text, in the order in which they choose their names."""

    def __init__(self) -> None:
        self._wanted: List[str] = []
        self._known: Dict[Hashable, str] = {}

    def new(self, name: str) -> str:
        """A new symbol. ``name`` may contain symbols, in whose place the names chosen for them will stand."""
        self._wanted.append(name)
        return f"\x02{len(self._wanted) - 1}\x03"

    def of(self, key: Hashable, name: str) -> str:
        """The symbol of a key, which is made when it is first asked for. A name that is a symbol is used as it is."""
        if _SYMBOL.fullmatch(name):
            return name
        if key not in self._known:
            self._known[key] = self.new(name)
        return self._known[key]

    def wanted(self, text: str) -> str:
        """The text with the names that its symbols would like to have."""
        return _SYMBOL.sub(lambda match: self.wanted(self._wanted[int(match[1])]), text)

    def named(
        self,
        texts: Iterable[str],
        spelled: Callable[[str], str],
        legal: Callable[[str], str],
        reserved: Iterable[str],
        comment: str,
    ) -> Callable[[str], str]:
        """The function that writes names for the symbols of these texts, which are all that a text will hold.

        ``spelled`` writes a user's name with the target's letters; ``legal`` gives any name the shape that the target
        wants; ``reserved`` are the target's words that need not be in the text; ``comment`` is what a comment begins
        with, whose words are no identifiers.
        """
        text = re.sub(f"{comment}[^\n]*", "", "\n".join(texts))
        joined = _JOINED.search(text)
        if joined:
            around = text[max(0, joined.start() - 40) : joined.end() + 40]
            raise ValueError(f"a symbol is part of a longer name, which must be a symbol of its own: {around!r}")
        taken = {*reserved, *_IDENTIFIER.findall(_SYMBOL.sub(" ", text))}
        chosen: Dict[int, str] = {}

        def write(text: str) -> str:
            return _SYMBOL.sub(lambda match: chosen[int(match[1])], text)

        for number in sorted(self._used(text)):
            wanted = self._wanted[number]
            name = legal(write(wanted) if "\x02" in wanted else spelled(wanted))
            while name in taken:
                name += "_"
            taken.add(name)
            chosen[number] = name
        return write

    def _used(self, text: str) -> Set[int]:
        """The symbols of a text, and those in the names that they would like to have."""
        found: Set[int] = set()
        waiting = [text]
        while waiting:
            new = {int(number) for number in _SYMBOL.findall(waiting.pop())} - found
            found |= new
            waiting.extend(self._wanted[number] for number in new)
        return found


def on_one_line(text: str) -> str:
    """The text as a comment can hold it: what cannot be printed is escaped, and it does not end with a backslash."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return f"{text}." if text.endswith("\\") else text
