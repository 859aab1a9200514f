"""Programs as text for people: what ``print(program)`` shows."""

from __future__ import annotations

import re
import unicodedata
from typing import Dict, Iterable, List, Tuple

from spikecore.lang.node import Node, SpikeRule
from spikecore.lang.program import Program, once
from spikecore.lang.render import ATOM, C_TEMPLATES, PRODUCT, SUM, UNARY, Printer
from spikecore.lang.symbols import on_one_line


def _call(name: str, arity: int) -> Tuple[int, str]:
    return ATOM, f"{name}({', '.join(f'{{{i}}}' for i in range(arity))})"


class TextPrinter(Printer):
    """The language's own notation."""

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
    comment = "#"
    infinity, nan = "inf", "nan"
    wide = "{}"

    def __init__(self, others: Iterable[str] = ()) -> None:
        super().__init__("double")
        #: Names that values of another part of the text have, and no parameter gets.
        self.others = frozenset(others)

    def leaf(self, node: Node) -> str:
        """What a leaf would like to be called."""
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

    def program(self, program: Program) -> str:
        """A whole program: signature, rest, what is computed once, the step, its results, the surrogate derivatives and
        what the host computes for them.
        """
        names: Dict[Node, str] = {leaf: self.symbol(leaf) for leaf in program.leaves}

        def inline(node: Node) -> str:
            return names.get(node) or self.expression(node, names)

        own = [name for name in program.params if name not in program.numbers]
        inputs, states, params = (
            [self.symbol(Node(op, (), name)) for name in known]
            for op, known in (("input", program.inputs), ("state", program.states), ("param", own))
        )
        lines = [("", f"({', '.join(inputs)}; {', '.join(states)}; {', '.join(params)})")]
        lines += [("  rest  ", f"{state} = {inline(node)}") for state, node in zip(states, program.rest)]
        lines += [("  once  ", line) for line in self.block(once(program.nodes), names, program.labels)]
        results = [*program.outputs, *program.next]
        lines += [("  step  ", line) for line in self.block(results, names, program.labels, name_roots=False)]
        lines += [("  next  ", f"{state} = {inline(node)}") for state, node in zip(states, program.next)]
        lines += [("  out   ", inline(node)) for node in program.outputs]
        # "next", "out" and the like at the beginning of a line are not identifiers: values may have these names
        write = self.named([line for _, line in lines])
        spikes = {node.attr.label: node.attr for node in program.nodes if isinstance(node.attr, SpikeRule)}
        texts = [on_one_line(program.name) + write(lines[0][1]), *(word + write(line) for word, line in lines[1:])]
        others = re.findall(r"\w+", "\n".join(texts))
        for label, rule in spikes.items():
            *computed, text = TextPrinter(others).derivative(rule)
            texts += [*(f"  host  {line}" for line in computed), f"  grad  {text}  # {on_one_line(label)}"]
        return "\n".join(texts)

    def derivative(self, rule: SpikeRule) -> List[str]:
        """What the host computes of the numbers of a surrogate, and the derivative, with names of their own."""
        lines = [f"{self.symbol(leaf)} = {self.expression(recipe)}" for leaf, recipe in rule.recipes]
        names: Dict[Node, str] = {}
        steps = self.block([rule.derivative], names, name_roots=False)
        argument = self.symbol(Node("argument", (), "u"))
        lines.append(f"spike'({argument}) = {'; '.join([*steps, self.expression(rule.derivative, names)])}")
        write = self.named(lines)
        return [write(line) for line in lines]
