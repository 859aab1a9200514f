"""Programs as text: one base printer, C-like, that a target changes only where it differs.

Rules of this module:

- Text keeps the order of evaluation of the graph. Parentheses stand wherever the target language would group otherwise.
- A value gets a line of its own if the definition named it, if it is used twice, if it is asked for, or if the text
  would be nested too deeply; the rest is written in place. Nothing unused is written.
- Names are symbols until the text is complete. Each identifier that comes from a user, or that is made up beside those,
  is an opaque mark that carries the name it would like to have. :meth:`Printer.named` finds every identifier that the
  complete text itself has, and gives each symbol its name, or that name with as few underscores as needed, such that it
  meets none of them, no word of the target and no other symbol. So nobody keeps a list of the names that a text uses.
- A target is a subclass with other class attributes; it overrides a method only for what no template can say.
"""

from __future__ import annotations

import keyword
import math
import re
import struct
import unicodedata
from collections import defaultdict
from functools import cached_property, lru_cache
from typing import (
    TYPE_CHECKING,
    Callable,
    DefaultDict,
    Dict,
    FrozenSet,
    Hashable,
    Iterable,
    List,
    Mapping,
    Sequence,
    Set,
    Tuple,
)

from spikecore._base.contract import Unsupported
from spikecore.lang._graph import topological
from spikecore.lang.dialects import C_WORDS as C_WORDS  # also these
from spikecore.lang.operations import ATOM as ATOM  # printers take these from here
from spikecore.lang.operations import PRODUCT as PRODUCT
from spikecore.lang.operations import ROWS, Templates
from spikecore.lang.operations import SUM as SUM
from spikecore.lang.operations import TERNARY as TERNARY
from spikecore.lang.operations import UNARY as UNARY

if TYPE_CHECKING:
    from spikecore.lang.node import Node

#: The text of each operation in C, in what compilers of Python have in common, and for people.
C_TEMPLATES: Templates = {row.name: row.c for row in ROWS}
PYTHON_TEMPLATES: Templates = {row.name: row.python for row in ROWS}
TEXT_TEMPLATES: Templates = {
    row.name: row.text or (ATOM, f"{row.name}({', '.join(f'{{{i}}}' for i in range(row.arity))})") for row in ROWS
}

#: Operators whose text may stand unparenthesised on the left of itself: a - b - c is (a - b) - c.
_LEFT_ASSOCIATIVE = frozenset(("add", "sub", "mul", "div", "and", "or"))

_FUNCTION_SUFFIX = {"float": "f", "double": ""}

#: Two capitals or more, or capitals before the first underscore: NULL, M_PI, M_PIf.
LIKE_A_MACRO = re.compile(r"(?=..)[A-Z][A-Z0-9]*(_\w*)?")

#: Nesting of operations in an expression at most. Python's parser takes 200 parentheses, compilers of C 256.
DEEPEST = 24


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
    if name.isascii() and name.isidentifier():
        return name
    name = name.replace("]", "")  # h[0] of a vector is h_0
    letters = (c if c.isascii() and c.isalnum() else "_" if c.isascii() else f"u{ord(c):x}" for c in name)
    name = "".join(letters)
    return f"u{name}" if not name or name[0].isdigit() else name


class Symbols:
    """The symbols of one text, in the order in which they choose their names."""

    def __init__(self) -> None:
        self._bases: List[str] = []
        self._known: Dict[Hashable, str] = {}

    def new(self, name: str) -> str:
        """A new symbol. ``name`` may contain symbols, in whose place the names chosen for them will stand."""
        self._bases.append(name)
        return f"\x02{len(self._bases) - 1}\x03"

    def of(self, key: Hashable, name: str) -> str:
        """The symbol of a key, which is made when it is first asked for. A name that is a symbol is used as it is."""
        if _SYMBOL.fullmatch(name):
            return name
        if key not in self._known:
            self._known[key] = self.new(name)
        return self._known[key]

    def wanted(self, text: str) -> str:
        """The text with each symbol as the name it was made with, whether that name is free or not."""
        return _written(text, lambda number: self.wanted(self._bases[int(number)]))

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
        used = {*reserved, *_IDENTIFIER.findall(_SYMBOL.sub(" ", text))}
        chosen: Dict[str, str] = {}

        def write(text: str) -> str:
            return _written(text, chosen.__getitem__)

        for number in sorted(self._used(text)):
            base = self._bases[number]
            name = legal(write(base) if "\x02" in base else spelled(base))
            while name in used:
                name += "_"
            used.add(name)
            chosen[str(number)] = name
        return write

    def _used(self, text: str) -> Set[int]:
        """The symbols of a text, and those in the names that they would like to have."""
        used: Set[int] = set()
        waiting = [text]
        while waiting:
            new = set(map(int, _SYMBOL.findall(waiting.pop()))) - used
            used |= new
            waiting += [self._bases[number] for number in new if "\x02" in self._bases[number]]
        return used


def _written(text: str, name_of: Callable[[str], str]) -> str:
    """The text with a name in the place of each symbol, by the symbol's number."""
    parts = _SYMBOL.split(text)
    parts[1::2] = map(name_of, parts[1::2])
    return "".join(parts)


def on_one_line(text: str) -> str:
    """The text as a comment can hold it: what cannot be printed is escaped, and it does not end with a backslash."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return f"{text}." if text.endswith("\\") else text


class Printer:
    """C-like text. ``real`` is the arithmetic type: ``"float"`` or ``"double"``."""

    templates: Templates = C_TEMPLATES
    #: Words that no name may be although a text need not have them: those of the language, and macros.
    reserved: FrozenSet[str] = C_WORDS
    declaration = "const {type} {name} = {value};"
    #: Beginning of a comment, as a regular expression.
    comment = "//"
    bool_type = "bool"
    infinity, nan = "INFINITY", "NAN"
    #: Text of the two in float64: C's own are float, and templates want both arguments of one type.
    wide = "double({})"
    #: Python's module of functions, for the templates of Python.
    math = "math"
    #: Operations that the target has no text for because their value is their argument's.
    transparent: FrozenSet[str] = frozenset(("detach",))

    def __init__(self, real: str = "float") -> None:
        if real not in _FUNCTION_SUFFIX:
            raise ValueError(f"real={real!r}: the arithmetic type is 'float' or 'double'")
        self.real = real
        self.function_suffix = _FUNCTION_SUFFIX[real]
        self.symbols = Symbols()
        self._temporaries: Set[str] = set()

    # -- numbers

    def number(self, value: float) -> str:
        """A literal that reads back as exactly the value that arithmetic uses."""
        if not math.isfinite(value):
            text = self.nan if math.isnan(value) else self.infinity if value > 0 else f"-{self.infinity}"
            return self.wide.format(text) if self.real == "double" else text
        digits = shortest(value, single=self.real == "float")
        # beyond the largest float32, the value that arithmetic uses is infinite
        return digits.replace("inf", self.infinity) if "inf" in digits else self.literal(digits)

    def literal(self, digits: str) -> str:
        """A finite number, given its decimal digits."""
        return digits + _FUNCTION_SUFFIX[self.real]

    # -- names

    def leaf(self, node: Node) -> str:
        """Preferred name of a leaf."""
        return {"out_grad": "grad_out{}", "next_grad": "grad_next_{}"}.get(node.op, "{}").format(node.attr)

    def symbol(self, node: Node) -> str:
        """The symbol of a leaf, the same wherever it is asked for."""
        return self.symbols.of(node, self.leaf(node))

    def label(self, node: Node, name: str) -> str:
        """The symbol of a value that has a name, the same wherever it is asked for, detached or not."""
        while node.op in self.transparent:
            (node,) = node.args
        return self.symbols.of(("label", node), name)

    def spelled(self, name: str) -> str:
        """A user's name with the letters that the target has."""
        return ascii_name(name)

    def legal(self, name: str) -> str:
        """A name in the shape that the target wants; here one that no macro has.

        Macros begin with an underscore or with capitals, but for those among the reserved words.
        """
        name = re.sub("__+", "_", name.lstrip("_"))
        name = name if name[:1].isalpha() else f"u{name}"
        return f"{name.rstrip('_')}_" if LIKE_A_MACRO.fullmatch(name) else name

    def named(self, texts: Iterable[str]) -> Callable[[str], str]:
        """The function that writes names for symbols, for texts that are all of a complete one but its comments."""
        return self.symbols.named(texts, self.spelled, self.legal, (*self.reserved, *keyword.kwlist), self.comment)

    def read(self, node: Node) -> str:
        """An expression with the names of its leaves."""
        text = self.expression(node)
        return self.named([text])(text)

    # -- expressions

    def expression(self, node: Node, names: Mapping[Node, str] = {}) -> str:  # never written to
        """One expression, with the named nodes by their names."""
        return self._expression(node, names)[1]

    def _expression(self, node: Node, names: Mapping[Node, str], top: bool = True) -> Tuple[int, str]:
        if node in names and not (top and node.args):
            return ATOM, names[node]
        if node.op == "const":
            text = self.number(float(node.attr))  # type: ignore[arg-type]  # of a constant it is a number
            return (UNARY if text.startswith("-") else ATOM), text
        if node.is_leaf:
            return ATOM, self.symbol(node)
        binding, template = self.template(node)
        args = []
        for position, arg in enumerate(node.args):
            bound, text = self._expression(arg, names, top=False)
            loose = bound < binding or (bound == binding and not (position == 0 and node.op in _LEFT_ASSOCIATIVE))
            args.append(f"({text})" if loose and binding < ATOM else text)
        if node.op in self.transparent:
            return self._expression(node.args[0], names, top=False)
        return binding, template.format(*args, **self.words(node))

    def template(self, node: Node) -> Tuple[int, str]:
        """Precedence of the text of a node, and its template. Raises :class:`Unsupported` if there is none."""
        template = self.templates.get(node.op)
        if template is None:
            raise Unsupported(f"{type(self).__name__} has no text for the operation {node.op!r}")
        return template

    def words(self, node: Node) -> Dict[str, str]:
        """Values of the named places of templates."""
        strict = getattr(node.attr, "strict", False)  # only the rule of a spike has it
        return {**self._words, "compare": ">" if strict else ">="}

    @cached_property
    def _words(self) -> Dict[str, str]:
        numbers = {"zero": self.number(0.0), "one": self.number(1.0)}
        return {"f": self.function_suffix, "math": self.math, **numbers}

    # -- statements

    def statement(self, node: Node, name: str, names: Mapping[Node, str]) -> str:
        """The line that computes a node under its name."""
        kind = self.bool_type if node.is_bool else self.real
        return self.declaration.format(type=kind, name=name, value=self.expression(node, names))

    def block(
        self,
        roots: Sequence[Node],
        names: Dict[Node, str],
        labels: Mapping[Node, str] = {},
        name_roots: bool = True,
    ) -> List[str]:
        """Lines that compute the roots. ``names`` has what is named already, and gets what these lines name."""
        order = topological(roots, known=names)
        labels = self._through_transparent(order, labels)
        named = set(roots) if name_roots else set()
        uses: DefaultDict[Node, int] = defaultdict(int)
        for root in roots:
            uses[root] += 1
        for node in reversed(order):
            through = node.op in self.transparent
            for arg in node.args:
                uses[arg] += uses[node] if through else 1
            if through and node in named:
                named.add(node.args[0])
        counter = len(self._temporaries.intersection(names.values()))
        lines = []
        depth: DefaultDict[Node, int] = defaultdict(int)
        for node in order:
            if node.is_leaf:
                continue
            depth[node] = 1 + max(map(depth.__getitem__, node.args))
            if node.op in self.transparent:
                if node.args[0] in names:
                    names[node] = names[node.args[0]]
                    depth[node] = 0
            elif node in named or node in labels or uses[node] > 1 or depth[node] == DEEPEST:
                if node in labels:
                    name = self.label(node, labels[node])
                else:
                    counter += 1
                    name = self._temporary(counter, node.is_bool)
                lines.append(self.statement(node, name, names))
                names[node] = name
                depth[node] = 0
        return lines

    def _temporary(self, number: int, is_bool: bool) -> str:
        """The symbol of a value that nobody named, for those of one scope that are numbered from 1. A name has one type
        in all scopes of a text: Numba, which takes a function for one scope, would convert.
        """
        name = self.symbols.of(("temporary", number, is_bool), f"t{number}")
        self._temporaries.add(name)
        return name

    def _through_transparent(self, order: Sequence[Node], labels: Mapping[Node, str]) -> Mapping[Node, str]:
        """Labels of transparent nodes handed on to what they stand for."""
        inherited = {n.args[0]: labels[n] for n in order if n.op in self.transparent and n in labels}
        return {**inherited, **labels}


@lru_cache(maxsize=1024, typed=True)
def _digits_of(bits: bytes) -> str:
    """The fewest decimal digits that read back as this float32."""
    (value,) = struct.unpack("f", bits)
    if not math.isfinite(value):
        return repr(value)
    digits = 1
    while struct.pack("f", float(f"{value:.{digits}g}")) != bits:
        digits += 1
    text = f"{value:.{digits}g}"
    return text if any(mark in text for mark in ".e") else text + ".0"


def shortest(value: float, single: bool) -> str:
    """The fewest decimal digits that read back as this float32 (``single``) or float64 value."""
    return _digits_of(struct.pack("f", value)) if single else repr(value)


class TextPrinter(Printer):
    """The language's own notation."""

    templates = TEXT_TEMPLATES
    reserved = frozenset()
    transparent = frozenset()
    declaration = "{name} = {value}"
    comment = "#"
    infinity, nan = "inf", "nan"
    wide = "{}"

    def __init__(self, others: Iterable[str] = ()) -> None:
        super().__init__("double")
        #: Names that values of another part of the text have, and no parameter gets.
        self.others = frozenset(others)

    def leaf(self, node: Node) -> str:
        """Preferred name of a leaf."""
        name = super().leaf(node)
        while node.op == "param" and name in self.others:
            name += "_"
        return name

    def literal(self, digits: str) -> str:
        """Whole numbers without a fraction."""
        return digits[:-2] if digits.endswith(".0") else digits

    def spelled(self, name: str) -> str:
        """The name as Python reads it."""
        return on_one_line(unicodedata.normalize("NFKC", name))

    def legal(self, name: str) -> str:
        """Any shape will do."""
        return name
