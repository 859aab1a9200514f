"""Programs as text for people: what ``print(program)`` shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, List

from spikecore.lang._symbols import on_one_line
from spikecore.lang._text import TextPrinter
from spikecore.lang.node import Node, SpikeRule, loop_invariant

if TYPE_CHECKING:
    from spikecore.lang._program import Program


class ListingPrinter(TextPrinter):
    """The language's own notation, of whole programs."""

    def program(self, program: Program) -> str:
        """A whole program: signature, initial values, what is computed once, the step, its results, the surrogate
        derivatives and what the host computes for them.
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
        lines += [("  rest  ", f"{state} = {inline(node)}") for state, node in zip(states, program.initial)]
        lines += [("  once  ", line) for line in self.block(loop_invariant(program.nodes), names, program.labels)]
        results = [*program.outputs, *program.next]
        lines += [("  step  ", line) for line in self.block(results, names, program.labels, name_roots=False)]
        lines += [("  next  ", f"{state} = {inline(node)}") for state, node in zip(states, program.next)]
        lines += [("  out   ", inline(node)) for node in program.outputs]
        # "next", "out" and the like at the beginning of a line are not identifiers: values may have these names
        write = self.named([line for _, line in lines])
        spikes = {node.attr.label: node.attr for node in program.nodes if isinstance(node.attr, SpikeRule)}
        texts = [on_one_line(program.name) + write(lines[0][1]), *(word + write(line) for word, line in lines[1:])]
        # a derivative may read parameters of the neuron, which are called in it as they are above
        others = set(re.findall(r"\w+", "\n".join(texts))) - set(map(write, params))
        for label, rule in spikes.items():
            *computed, text = ListingPrinter(others).derivative(rule)
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
