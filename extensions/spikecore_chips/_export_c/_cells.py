"""Neurons as a part of a step: their program, with its names, and the numbers of its coefficients."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import Tensor

from spikecore.core import parameters
from spikecore.lang import Node, Program, topological
from spikecore.lang.c import CPrinter
from spikecore.lang.dialects import C11
from spikecore.lang.eager import StraightLine, number
from spikecore_chips._export_c._fixed import FixedPrinter
from spikecore_chips._export_c._graph import Refused, identifier
from spikecore_chips._export_c._parts import Field, Part
from spikecore_chips._export_c._values import Value, integers_of, table_of, type_of
from spikecore_chips.quant import Format, analyse
from spikecore_chips.quant._analysis import FLAG, coefficients_of


class Cells(Part):
    """The neurons of a layer: a step of their program, with its names."""

    def __init__(
        self,
        name: str,
        title: str,
        inputs: Sequence[Value],
        neuron: Any,
        fixed: Optional[torch.dtype],
        output: int = 0,
    ) -> None:
        super().__init__(name, title, inputs, inputs[0].shape)
        if len(neuron.inputs) != len(inputs):
            names = ", ".join(neuron.inputs)
            raise Refused(f"{title} takes {names}, and @language@ is written for one number of a neuron")
        shapes = [str([*value.shape]) for value in inputs]
        if len({*shapes}) > 1:
            raise Refused(
                f"{title} takes inputs of shapes {' and '.join(shapes)}, and @language@ is written for one shape; give "
                "a value for each neuron, such as that of nn.Linear(C, C)"
            )
        self._neuron, program = neuron, neuron.program
        self.program: Program = program
        #: Values that are the same at each step, of steps and initial states: of each neuron.
        self.values: Dict[Node, Tensor] = {}
        #: Roots of a step: the output, and the next states.
        self.roots = [program.outputs[output], *program.next]
        self.formats: Dict[Node, Format] = {}
        if fixed is not None:
            of_inputs = {n: v.format for n, v in zip(program.inputs, inputs) if v.format is not None}
            try:
                self.formats = analyse(program, of_inputs, fixed)
            except ValueError as error:
                raise Refused(f"{title} is not fixed point: {error}") from error
            self.output.format = self.formats[self.roots[0]]
        elif is_spike(self.roots[0]):
            self.output.format = FLAG
        self._printer: Any = FixedPrinter(title, self.formats) if fixed else CPrinter(C11)
        #: Node that depends on parameters alone -> its text.
        self.constants = self._evaluated(torch.float64 if fixed is torch.float64 else torch.float32)
        for state, initial in zip(program.states, program.initial):
            leaf = Node("state", (), state)
            format = self.formats.get(leaf)
            rest = self._text(f"{self.name}_{state}_rest", initial, format, f"i % {self.x.innermost}")
            self.fields.append(Field(type_of(format), self._field(state), self.output.count, rest, format))
        # a factor of what is always 0 is in no line
        text = "\n".join([*self.lines(), *(field.rest for field in self.fields)])
        self.tables = [table for table in self.tables if f"{table.name}[" in text]

    def _field(self, state: str) -> str:
        names: List[str] = []
        for each in self.program.states:  # h[0] of a vector and a state h_0 are two
            names.append(identifier(each, names))
        return f"{self.name}_{names[self.program.states.index(state)]}"

    def _evaluated(self, dtype: torch.dtype) -> Dict[Node, str]:
        """The values that steps and initial states read of what depends on parameters alone, as numbers or tables."""
        program, roots = self.program, self.roots
        order = topological([*roots, *program.initial])
        fixed = coefficients_of(order)
        read_by_steps = {arg for node in order if node not in fixed for arg in node.args if arg in fixed}
        read_by_steps |= {root for root in roots if root in fixed}
        front = [node for node in order if node in read_by_steps or node in program.initial]
        like = torch.empty((), dtype=dtype)
        named = [*self._neuron.named_values().items()]
        shape = (1, *self.shape)
        values, _ = parameters.place(self.title, named, shape, self._neuron.channel_dim)
        params = program.leaves[len(program.inputs) + len(program.states) :]
        tensors = [v.detach().to(dtype) if isinstance(v, Tensor) else number(v, like) for v in values]
        results = StraightLine(params, front)(tensors, like)
        self.values = {node: value.expand(shape)[0] for node, value in zip(front, results)}
        labels = {node: node.attr if node.op == "param" else f"k{k}" for k, node in enumerate(front)}
        labels.update(program.labels)
        steps = [node for node in front if node in read_by_steps]
        return {node: self._text(f"{self.name}_{labels[node]}", node, self.formats.get(node), "c") for node in steps}

    def integers(self, node: Node, format: Format) -> Tensor:
        """The integers of a value that is the same at each step, of each neuron."""
        return integers_of(f"{node!r} of {self.title}", self.values[node], int(format.frac or 0))

    def _text(self, name: str, node: Node, format: Optional[Format], channel: str) -> str:
        """The text of a value that is the same at each step, as a number of this format or as a table of them.

        channel: where channels lie side by side, the text of the channel of neuron i.
        """
        if format is not None and format.frac is None:
            return "0"  # an infinite bound, which no text reads
        values = self.values[node] if format is None else self.integers(node, format)
        flat = values.flatten()
        if bool((flat == flat[0]).all()) or bool(torch.isnan(flat.double()).all()):
            return str(int(flat[0])) if format is not None else str(self._printer.number(float(flat[0])))
        name = identifier(f"{name}_values", [table.name for table in self.tables])
        channels, inner = self.x.innermost, _run(values)
        at = f"i / {inner}" if inner > 1 else "i"
        if channels > 1:
            rows = flat.view(channels, -1)
            (flat, at) = (rows[:, 0], channel) if bool((rows == rows[:, :1]).all()) else (rows.t().flatten(), "i")
            inner = 1
        self.tables.append(table_of(name, flat[::inner], format))
        return f"{name}[{at}]"

    def lines(self) -> List[str]:
        program, printer, roots = self.program, self._printer, self.roots
        names: Dict[Node, str] = dict(self.constants)
        real = "int32_t" if self.formats else "float"
        lines = []
        order = topological(roots)
        for k, name in enumerate(program.inputs):
            leaf = Node("input", (), name)
            names[leaf] = printer.symbol(leaf)
            if leaf in order:
                wide = "int64_t" if self.inputs[k].type == "int64_t" else real
                lines.append(f"const {wide} {names[leaf]} = in{k if len(self.inputs) > 1 else ''}[i];")
        for name in program.states:
            leaf = Node("state", (), name)
            names[leaf] = printer.symbol(leaf)
            if leaf in order:
                wide = "int64_t" if type_of(self.formats.get(leaf)) == "int64_t" else real
                lines.append(f"const {wide} {names[leaf]} = s->{self._field(name)}[i];")
        lines += printer.block(roots, names, program.labels, name_roots=False)
        texts = [
            self._stored(root, names, field) for root, field in zip(roots, [self.output.format, *self._next_formats()])
        ]
        targets = ["out[i]", *(f"s->{self._field(name)}[i]" for name in program.states)]
        # every state was loaded before the first store
        lines += [f"{target} = {text};" for target, text in zip(targets, texts)]
        lines = _read(lines)
        arrays = [f"in{k if len(self.inputs) > 1 else ''}" for k in range(len(self.inputs))]
        unread = [f"(void){array};" for array in arrays if f" {array}[i]" not in "\n".join(lines)]
        each, used = f"for (int i = 0; i < {self.output.count}; ++i) {{", "out s i"
        if any("[c]" in text for text in self.constants.values()):
            each = f"for (int i = 0; i < {self.output.count};) for (int c = 0; c < {self.x.innermost}; ++c, ++i) {{"
            used += " c"
        write = printer.named([" ".join(arrays), used, *lines])
        return [
            *unread,
            each,
            *(f"    {write(line)}" for line in lines),
            "}",
        ]

    def _next_formats(self) -> List[Optional[Format]]:
        return [self.formats.get(Node("state", (), name)) for name in self.program.states]

    def _stored(self, root: Node, names: Dict[Node, str], format: Optional[Format]) -> str:
        """A value as it is stored: with the fractional bits of its place, in its type."""
        text = names.get(root) or self._printer.expression(root, names)
        if format is None:
            return text
        have = self.formats.get(root)
        shift = (format.frac or 0) - (have.frac or 0) if have is not None and (have.low or have.high) else 0
        simple = text.startswith("\x02") and text.endswith("\x03") and text.count("\x02") == 1
        text = text if simple else f"({text})"
        return f"({type_of(format)})({text} * {1 << shift})" if shift else f"({type_of(format)}){text}"


def is_spike(node: Node) -> bool:
    """True if a value is a spike, 0 or 1."""
    return is_spike(node.args[0]) if node.op == "detach" else node.op == "spike"


def _read(lines: Sequence[str]) -> List[str]:
    """The lines without constants that no other line reads, as those of a difference that is always 0."""
    lines = [*lines]
    for line in lines[::-1]:
        if line.startswith("const") and "\n".join(lines).count(line.split()[2]) == 1:
            lines.remove(line)
    return lines


def _run(values: Tensor) -> int:
    """Number of neighbouring neurons that share a value: those of a channel, or one."""
    rows = values.flatten(1) if values.ndim > 1 else values.unsqueeze(1)
    return int(rows.shape[1]) if bool((rows == rows[:, :1]).all()) else 1
