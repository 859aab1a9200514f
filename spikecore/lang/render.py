"""Programs as text: one base printer, C-like, that a target changes only where it differs.

Rules of this module:

- Text keeps the order of evaluation of the graph. Parentheses stand wherever the target language would group otherwise.
- A value gets a line of its own if the definition named it, if it is used twice, or if it is asked for; the rest is
  written in place. Nothing unused is written.
- A target is a subclass with other class attributes; it overrides a method only for what no template can say.
"""

from __future__ import annotations

import keyword
import math
import struct
from collections import Counter
from typing import Dict, Iterable, List, Mapping, Sequence, Tuple

from spikecore.lang.node import Node, SpikeRule, topological
from spikecore.lang.program import Program, once

#: How tightly operators bind, loosest first. A template's arguments are put in parentheses when they bind less tightly.
TERNARY, OR, AND, EQUALITY, ORDER, SUM, PRODUCT, UNARY, ATOM = range(9)

#: op -> (how tightly the text binds, template).
Templates = Mapping[str, Tuple[int, str]]

C_TEMPLATES: Dict[str, Tuple[int, str]] = {
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
    "and": (AND, "{0} && {1}"),
    "or": (OR, "{0} || {1}"),
    "not": (UNARY, "!{0}"),
    "where": (TERNARY, "{0} ? {1} : {2}"),
    "detach": (ATOM, "{0}"),
    "exp": (ATOM, "exp{f}({0})"),
    "log": (ATOM, "log{f}({0})"),
    "sqrt": (ATOM, "sqrt{f}({0})"),
    "sin": (ATOM, "sin{f}({0})"),
    "cos": (ATOM, "cos{f}({0})"),
    "tanh": (ATOM, "tanh{f}({0})"),
    "atan": (ATOM, "atan{f}({0})"),
    "abs": (ATOM, "fabs{f}({0})"),
    "floor": (ATOM, "floor{f}({0})"),
    "round": (ATOM, "rint{f}({0})"),
    "power": (ATOM, "pow{f}({0}, {1})"),
    # the plain templates of these would write an argument twice, so they are small functions of the target
    "sigmoid": (ATOM, "sigmoid({0})"),
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

C_RESERVED = frozenset(
    "auto bool break case char const continue default do double else enum extern false float for goto if inline int "
    "long register return short signed sizeof static struct switch this true typedef union unsigned void volatile "
    "while "
    "and asm catch class compl concept constexpr delete explicit export friend mutable namespace new noexcept not "
    "nullptr operator or private protected public requires template throw try typeid typename using virtual xor "
    "alignas alignof and_eq bitand bitor char16_t char32_t const_cast decltype dynamic_cast not_eq or_eq "
    "reinterpret_cast static_assert static_cast thread_local wchar_t xor_eq NAN INFINITY "
    "expf logf sqrtf sinf cosf tanhf atanf fabsf floorf rintf powf "
    "exp log sqrt sin cos tanh atan fabs floor rint pow sigmoid sign minimum maximum clamp half t T N i".split()
)


class Printer:
    """C-like text. ``real`` is the arithmetic type: ``"float"`` or ``"double"``."""

    templates: Templates = C_TEMPLATES
    reserved: frozenset = C_RESERVED  # type: ignore[type-arg]  # not subscriptable on Python 3.8
    declaration = "const {type} {name} = {value};"
    bool_type = "bool"
    infinity, nan = "INFINITY", "NAN"
    #: Operations that the target has no text for because their value is their argument's.
    transparent: frozenset = frozenset(("detach",))  # type: ignore[type-arg]

    def __init__(self, real: str = "float") -> None:
        if real not in _FUNCTION_SUFFIX:
            raise ValueError(f"real={real!r}: the arithmetic type is 'float' or 'double'")
        self.real = real

    # -- numbers and names

    def number(self, value: float) -> str:
        """A literal that reads back as exactly the value that arithmetic uses."""
        if math.isnan(value):
            return self.nan
        if math.isinf(value):
            return self.infinity if value > 0 else f"-{self.infinity}"
        digits = shortest(value, single=self.real == "float")
        # beyond the largest float32, the value that arithmetic uses is infinite
        return digits.replace("inf", self.infinity) if "inf" in digits else self.literal(digits)

    def literal(self, digits: str) -> str:
        """A finite number, given its decimal digits."""
        return digits + _FUNCTION_SUFFIX[self.real]

    def leaf(self, node: Node) -> str:
        """The name of a leaf that nobody named."""
        return {"out_grad": "grad_out{}", "next_grad": "grad_next_{}"}.get(node.op, "{}").format(node.attr)

    def identifier(self, name: str, taken: Iterable[str]) -> str:
        """The name, changed as little as needed to be free and legal in the target."""
        taken = set(taken)
        name = "".join(letter if letter.isascii() else f"u{ord(letter):x}" for letter in name)
        while name in taken or name in self.reserved or keyword.iskeyword(name):
            name += "_"
        return name

    # -- expressions

    def expression(self, node: Node, names: Mapping[Node, str] = {}) -> str:  # never written to
        """One expression, with the named nodes by their names."""
        return self._expression(node, names)[1]

    def _expression(self, node: Node, names: Mapping[Node, str], top: bool = True) -> Tuple[int, str]:
        if node in names and not (top and node.args):
            return ATOM, names[node]
        if node.op == "const":
            text = self.number(float(node.attr))  # type: ignore[arg-type]
            return (UNARY if text.startswith("-") else ATOM), text
        if node.is_leaf:
            return ATOM, self.leaf(node)
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
        """How tightly the text of a node binds, and its template."""
        return self.templates[node.op]

    def words(self, node: Node) -> Dict[str, str]:
        """What the named places of templates stand for."""
        strict = isinstance(node.attr, SpikeRule) and node.attr.strict
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
        # leaves that nobody named are written as they are, so no line may take their names
        leaves = {self.leaf(node) for node in order if node.is_leaf and node.op != "const"}
        for node in reversed(order):
            for arg in node.args:
                uses[arg] += uses[node] if node.op in self.transparent else 1
                if node.op in self.transparent and node in named:
                    named.add(arg)
        counter = sum(name[:1] == "t" and name[1:].isdigit() for name in names.values())
        lines = []
        for node in order:
            if node.is_leaf:
                continue
            if node.op in self.transparent:
                if node.args[0] in names:
                    names[node] = names[node.args[0]]
            elif node in named or node in labels or uses[node] > 1:
                counter += node not in labels
                name = self.identifier(labels.get(node, f"t{counter}"), {*names.values(), *leaves})
                lines.append(self.statement(node, name, names))
                names[node] = name
        return lines

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


def _call(name: str, arity: int) -> Tuple[int, str]:
    return ATOM, f"{name}({', '.join(f'{{{i}}}' for i in range(arity))})"


class TextPrinter(Printer):
    """The language's own notation, for people: what ``print(program)`` shows."""

    templates = {
        **C_TEMPLATES,
        **{op: _call(op, 1) for op in ("exp", "log", "sqrt", "sin", "cos", "tanh", "atan", "abs", "floor", "round")},
        "power": _call("power", 2),
        "detach": _call("detach", 1),
        "where": _call("where", 3),
        "select": _call("select", 3),
        # in Python these bind more tightly than comparisons, which therefore stand in parentheses
        "and": (PRODUCT, "{0} & {1}"),
        "or": (SUM, "{0} | {1}"),
        "not": (UNARY, "~{0}"),
        "spike": (ATOM, "spike({0} {compare} 0)"),
    }
    reserved = frozenset()
    transparent = frozenset()
    declaration = "{name} = {value}"
    infinity, nan = "inf", "nan"

    def __init__(self) -> None:
        super().__init__("double")

    def literal(self, digits: str) -> str:
        """Whole numbers without a fraction."""
        return digits[:-2] if digits.endswith(".0") else digits

    def program(self, program: Program) -> str:
        """A whole program: signature, rest, what is computed once, the step, its results, the surrogate derivatives."""
        names: Dict[Node, str] = {leaf: self.leaf(leaf) for leaf in program.leaves}

        def inline(node: Node) -> str:
            return names.get(node) or self.expression(node, names)

        head = f"{program.name}({', '.join(program.inputs)}; {', '.join(program.states)}; {', '.join(program.params)})"
        lines = [head, *(f"  rest  {state} = {inline(node)}" for state, node in zip(program.states, program.rest))]
        lines += [f"  once  {line}" for line in self.block(once(program.nodes), names, program.labels)]
        results = [*program.outputs, *program.next]
        lines += [f"  step  {line}" for line in self.block(results, names, program.labels, name_roots=False)]
        lines += [f"  next  {state} = {inline(node)}" for state, node in zip(program.states, program.next)]
        lines += [f"  out   {inline(node)}" for node in program.outputs]
        spikes = {node.attr.label: node.attr for node in program.nodes if isinstance(node.attr, SpikeRule)}
        for label, rule in spikes.items():
            inner: Dict[Node, str] = {}
            steps = [*self.block([rule.derivative], inner, name_roots=False), self.expression(rule.derivative, inner)]
            lines.append(f"  grad  spike'(u) = {'; '.join(steps)}  # {label}")
        return "\n".join(lines)
