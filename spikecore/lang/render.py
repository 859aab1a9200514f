"""Programs as text: one base printer, C-like, that a target changes only where it differs.

Rules of this module:

- Text keeps the order of evaluation of the graph. Parentheses stand wherever the target language would group otherwise.
- A value gets a line of its own if the definition named it, if it is used twice, if it is asked for, or if the text
  would be nested too deeply; the rest is written in place. Nothing unused is written.
- Names are symbols (:mod:`spikecore.lang._symbols`) until the text is complete: :meth:`Printer.named` chooses them.
- A target is a subclass with other class attributes; it overrides a method only for what no template can say.
"""

from __future__ import annotations

import keyword
import math
import re
import struct
from collections import Counter
from typing import TYPE_CHECKING, Callable, Dict, FrozenSet, Iterable, List, Mapping, Sequence, Set, Tuple

from spikecore._base.errors import Unsupported
from spikecore.lang._graph import topological
from spikecore.lang._symbols import Symbols, ascii_name
from spikecore.lang._symbols import on_one_line as on_one_line  # printers take these two from here
from spikecore.lang._words import C_WORDS as C_WORDS

if TYPE_CHECKING:
    from spikecore.lang.node import Node

#: How tightly operators bind, loosest first. A template's arguments are put in parentheses when they bind less tightly.
TERNARY, OR, AND, EQUALITY, ORDER, SUM, PRODUCT, UNARY, ATOM = range(9)

#: op -> (how tightly the text binds, template).
Templates = Mapping[str, Tuple[int, str]]

#: What C and Python write alike. A target takes these, and has a row of its own for everything else: a function that
#: one language has would otherwise be written for all.
OPERATOR_TEMPLATES: Dict[str, Tuple[int, str]] = {
    "add": (SUM, "{0} + {1}"),
    "sub": (SUM, "{0} - {1}"),
    "mul": (PRODUCT, "{0} * {1}"),
    "div": (PRODUCT, "{0} / {1}"),
    "neg": (UNARY, "-{0}"),
    "ge": (ORDER, "{0} >= {1}"),
    "gt": (ORDER, "{0} > {1}"),
    "le": (ORDER, "{0} <= {1}"),
    "lt": (ORDER, "{0} < {1}"),
    "eq": (EQUALITY, "{0} == {1}"),
    "ne": (EQUALITY, "{0} != {1}"),
    "detach": (ATOM, "{0}"),
}

C_TEMPLATES: Dict[str, Tuple[int, str]] = {
    **OPERATOR_TEMPLATES,
    "and": (AND, "{0} && {1}"),
    "or": (OR, "{0} || {1}"),
    "not": (UNARY, "!{0}"),
    "where": (TERNARY, "{0} ? {1} : {2}"),
    "exp": (ATOM, "exp{f}({0})"),
    "log": (ATOM, "log{f}({0})"),
    "sqrt": (ATOM, "sqrt{f}({0})"),
    "sin": (ATOM, "sin{f}({0})"),
    "cos": (ATOM, "cos{f}({0})"),
    "tanh": (ATOM, "tanh{f}({0})"),
    "atan": (ATOM, "atan{f}({0})"),
    "erf": (ATOM, "erf{f}({0})"),
    "abs": (ATOM, "fabs{f}({0})"),
    "floor": (ATOM, "floor{f}({0})"),
    "round": (ATOM, "rint{f}({0})"),
    "power": (ATOM, "pow{f}({0}, {1})"),
    # the plain templates of these would write an argument twice, so they are small functions of the target
    "sigmoid": (ATOM, "sigmoid({0})"),
    "softplus": (ATOM, "softplus({0})"),
    "sign": (ATOM, "sign({0})"),
    "minimum": (ATOM, "minimum({0}, {1})"),
    "maximum": (ATOM, "maximum({0}, {1})"),
    "clamp": (ATOM, "clamp({0}, {1}, {2})"),
    "select": (TERNARY, "{0} != {zero} ? {1} : {2}"),
    "spike": (TERNARY, "{0} {compare} {zero} ? {one} : {zero}"),
}

#: Operators whose text may stand unparenthesised on the left of itself: a - b - c is (a - b) - c.
_LEFT_ASSOCIATIVE = frozenset(("add", "sub", "mul", "div", "and", "or"))

_FUNCTION_SUFFIX = {"float": "f", "double": ""}

#: Capitals, or capitals before the first underscore: NULL, M_PI, M_PIf.
_LIKE_A_MACRO = re.compile(r"[A-Z][A-Z0-9]*(_\w*)?")

#: How many operations an expression nests. Python's parser takes 200 parentheses, compilers of C 256.
DEEPEST = 24


class Printer:
    """C-like text. ``real`` is the arithmetic type: ``"float"`` or ``"double"``."""

    templates: Templates = C_TEMPLATES
    #: Words that no name may be although a text need not have them: those of the language, and macros.
    reserved: FrozenSet[str] = C_WORDS
    declaration = "const {type} {name} = {value};"
    #: What a comment begins with, as a regular expression.
    comment = "//"
    bool_type = "bool"
    infinity, nan = "INFINITY", "NAN"
    #: How the two are written in float64: C's own are float, and templates want both arguments of one type.
    wide = "double({})"
    #: Operations that the target has no text for because their value is their argument's.
    transparent: FrozenSet[str] = frozenset(("detach",))

    def __init__(self, real: str = "float") -> None:
        if real not in _FUNCTION_SUFFIX:
            raise ValueError(f"real={real!r}: the arithmetic type is 'float' or 'double'")
        self.real = real
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
        """What a leaf would like to be called."""
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
        name = re.sub("__+", "_", name.lstrip("_")) or "u"
        return f"{name.rstrip('_')}_" if len(name) > 1 and _LIKE_A_MACRO.fullmatch(name) else name

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
        """How tightly the text of a node binds, and its template. Raises :class:`Unsupported` where there is none."""
        found = self.templates.get(node.op)
        if found is None:
            raise Unsupported(f"{type(self).__name__} has no text for the operation {node.op!r}")
        return found

    def words(self, node: Node) -> Dict[str, str]:
        """What the named places of templates stand for."""
        strict = getattr(node.attr, "strict", False)  # only the rule of a spike has it
        return {
            "f": _FUNCTION_SUFFIX[self.real],
            "zero": self.number(0.0),
            "one": self.number(1.0),
            "compare": ">" if strict else ">=",
        }

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
        uses: Counter[Node] = Counter(roots)
        named = set(roots) if name_roots else set()
        for node in reversed(order):
            for arg in node.args:
                uses[arg] += uses[node] if node.op in self.transparent else 1
                if node.op in self.transparent and node in named:
                    named.add(arg)
        counter = sum(name in self._temporaries for name in set(names.values()))
        lines = []
        depth: Dict[Node, int] = {}
        for node in order:
            if node.is_leaf:
                continue
            depth[node] = 1 + max(depth.get(arg, 0) for arg in node.args)
            if node.op in self.transparent:
                if node.args[0] in names:
                    names[node] = names[node.args[0]]
                    depth[node] = 0
            elif node in named or node in labels or uses[node] > 1 or depth[node] == DEEPEST:
                if node in labels:
                    name = self.label(node, labels[node])
                else:
                    counter += 1
                    name = self._temporary(counter)
                lines.append(self.statement(node, name, names))
                names[node] = name
                depth[node] = 0
        return lines

    def _temporary(self, number: int) -> str:
        """The symbol of a value that nobody named, for those of one scope that are numbered from 1."""
        name = self.symbols.of(("temporary", number), f"t{number}")
        self._temporaries.add(name)
        return name

    def _through_transparent(self, order: Sequence[Node], labels: Mapping[Node, str]) -> Mapping[Node, str]:
        """Labels of transparent nodes handed on to what they stand for."""
        inherited = {n.args[0]: labels[n] for n in order if n.op in self.transparent and n in labels}
        return {**inherited, **labels}


def shortest(value: float, single: bool) -> str:
    """The fewest decimal digits that read back as this float32 (``single``) or float64 value."""
    if not single:
        return repr(value)
    single_value = struct.unpack("f", struct.pack("f", value))[0]
    if math.isinf(single_value):
        return repr(single_value)
    texts = (f"{single_value:.{digits}g}" for digits in range(1, 10))
    text = next(text for text in texts if struct.unpack("f", struct.pack("f", float(text)))[0] == single_value)
    return text if any(mark in text for mark in ".e") else text + ".0"
