"""The core: parts one after the other, the memories between them, and the order of a step."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from spikecore_chips._export_c._cells import Cells
from spikecore_chips._export_c._parts import Conv, Copy, DelayedLinear, DelayLine, Linear, Part, Pool
from spikecore_chips._export_c._program import Built
from spikecore_chips._export_c._values import Value
from spikecore_chips._export_verilog._circuit import bits_of, comment, literal, width
from spikecore_chips._export_verilog._neuron import ends_of, plain, stepped
from spikecore_chips._export_verilog._passes import Module, delay_line, pass_of
from spikecore_chips._export_verilog._products import products, reads_zeros, sum_bits

_PRODUCTS = (Linear, Conv, Pool, DelayedLinear)


def bits(value: Value) -> int:
    """The width of an array's numbers."""
    return width(*ends_of(value.format))


class Core:
    """The text of a network: ``lines``, and ``files`` of numbers."""

    def __init__(self, name: str, built: Built, lanes: int, budget: Optional[float]) -> None:
        self.name, self.built, self.input = name, built, built.input
        self.files: Dict[str, str] = {}
        #: Clocks that the neurons of a layer take, beside one for each.
        self.latency: Dict[str, int] = {}
        self.parts, self.output = _parts(built)
        self.modules = [self._module(part, lanes, budget) for part in self.parts]
        self.memory = sum(module.memory for module in self.modules)
        self.weights = sum(module.weights for module in self.modules)
        #: Clocks of a step at most, which it takes if no number is 0.
        self.clocks = 2 + sum(module.clocks for module in self.modules)
        #: True if the caller has to write inputs that are 0, too.
        self.needs_zeros = self._is_array(self.input) or any(map(reads_zeros, self._readers(self.input, True)))
        self.lines = [*self._top(), *(line for module in self.modules for line in module.lines)]

    def _module(self, part: Part, lanes: int, budget: Optional[float]) -> Module:
        name = f"{self.name}_{part.name}"
        if isinstance(part, _PRODUCTS):
            return products(name, part, lanes, self.files)
        if isinstance(part, DelayLine) and int(part.delays.max()):
            return delay_line(name, part, self.files)
        step = stepped(part, budget) if isinstance(part, Cells) else plain(part, budget)
        module = pass_of(name, part, step, self.files)
        self.latency[part.name] = module.latency
        return module

    # -- readers of an array

    def _readers(self, value: Value, products: bool) -> List[Part]:
        """The parts that read an array as a list of what is not 0, or one number after the other."""
        return [
            part
            for part in self.parts
            if isinstance(part, _PRODUCTS) == products and value in [each.root for each in part.inputs]
        ]

    def _is_array(self, value: Value) -> bool:
        return bool(self._readers(value, False)) or value is self.output

    def _chosen(self, readers: Sequence[Part], port: str, last: str = "") -> str:
        """The port of the reader whose turn it is."""
        texts = [f"p{self.parts.index(part)}_{port}" for part in readers] or ["1'b0"]
        turns = [f"turn == {self.parts.index(part)} ? {text} : " for part, text in zip(readers, texts)]
        return "".join(turns) + last if last else "".join(turns[:-1]) + texts[-1]

    # -- texts

    def _top(self) -> List[str]:
        x, y, parts = self.input, self.output, self.parts
        turns = bits_of(len(parts) + 1)
        lines = [
            f"    reg [{turns - 1}:0] turn;",
            "    reg fresh;",
            *self._wires(),
            *self._memories(x, "in_write", "in_at", "in_value", "done"),
        ]
        order, start = [], "step"
        for k, part in enumerate(parts):
            lines += ["", f"    {comment(part.title)}"]
            lines += self._products(k, part, start) if isinstance(part, _PRODUCTS) else self._pass(k, part, start)
            order.append(f"        if ({start}) turn <= {k};")
            start = f"p{k}_done"
        zeros = "all of them" if self.needs_zeros else "those that are not 0"
        return [
            f"// {self.name}: a spiking network, one time step at a pulse of step.",
            f"// Before it write the inputs, {zeros}: in_at and in_value at each clock with in_write.",
            "// Behind it wait for done. Outputs are then at out_value, a clock after their place is at out_at.",
            "// A clock with reset brings the network to rest, before the first step.",
            f"module {self.name}(",
            "    input clk, input reset,",
            f"    input in_write, input [{bits_of(x.count) - 1}:0] in_at, input signed [{bits(x) - 1}:0] in_value,",
            "    input step, output reg done,",
            f"    input [{bits_of(y.count) - 1}:0] out_at, output signed [{bits(y) - 1}:0] out_value",
            ");",
            *lines,
            "",
            f"    assign out_value = {self._array(y)}_q;",
            "    always @(posedge clk) begin",
            f"        done <= {start} && !reset;",
            *order,
            f"        if ({start} || reset) turn <= {len(parts)};",
            f"        if ({start}) fresh <= 0;",
            "        if (reset) fresh <= 1;",
            "    end",
            "endmodule",
            "",
        ]

    def _wires(self) -> List[str]:
        """The wires between parts and memories."""
        lines = []
        for k, part in enumerate(self.parts):
            y = part.output
            if isinstance(part, _PRODUCTS):
                lines += [
                    f"    wire p{k}_done;",
                    f"    wire [{bits_of(part.x.count)}:0] p{k}_list;",
                    f"    wire signed [{sum_bits(part) - 1}:0] y{k}_q;",
                ]
            else:
                lines += [
                    f"    wire p{k}_done, p{k}_write, p{k}_reading;",
                    f"    wire [{bits_of(y.count) - 1}:0] p{k}_at, p{k}_to;",
                    f"    wire signed [{bits(y) - 1}:0] p{k}_value;",
                ]
        for value in [self.input, *(part.output for part in self.parts if not isinstance(part, _PRODUCTS))]:
            name, size, place = self._array(value), bits(value), bits_of(value.count)
            lines += [f"    wire signed [{size - 1}:0] {name}_q;"] if self._is_array(value) else []
            if self._readers(value, True):
                lines += [f"    wire [{place + size - 1}:0] {name}_list_q;", f"    wire [{place}:0] {name}_list_count;"]
        return lines

    def _memories(self, value: Value, write: str, at: str, number: str, clear: str) -> List[str]:
        """The array, or the list of what is not 0, as its readers need it."""
        name, size, place = self._array(value), bits(value), bits_of(value.count)
        lines = []
        if self._is_array(value):
            readers = self._readers(value, False)
            read = self._chosen(readers, "at", "out_at" if value is self.output else "")
            self.memory += size * value.count
            lines += [
                f"    {self.name}__array #(.COUNT({value.count}), .BITS({size}), .PLACE({place})) {name}(",
                f"        .clk(clk), .write({write}), .write_at({at}), .value({number}), .at({read}), .q({name}_q));",
            ]
        lists = self._readers(value, True)
        if lists:
            self.memory += (size + place) * value.count
            every = int(any(map(reads_zeros, lists)))
            lines += [
                f"    {self.name}__list #(.COUNT({value.count}), .BITS({size}), .PLACE({place}), .ZEROS({every})) "
                f"{name}_list(",
                f"        .clk(clk), .clear(reset || {clear}), .write({write}), .write_at({at}), .value({number}),",
                f"        .at({self._chosen(lists, 'list')}), .q({name}_list_q), .count({name}_list_count));",
            ]
        return lines

    def _products(self, k: int, part: Part, start: str) -> List[str]:
        readers, x, y = self._readers(part.output.root, False), self._array(part.x.root), f"y{k}"
        return [
            f"    {self.name}_{part.name} p{k}(",
            f"        .clk(clk), .reset(reset), .fresh(fresh), .start({start}), .done(p{k}_done),",
            f"        .list_at(p{k}_list), .list_q({x}_list_q), .list_count({x}_list_count),",
            f"        .reading({self._chosen(readers, 'reading')}), .read_at({self._chosen(readers, 'at')}), "
            f".read_q({y}_q));",
        ]

    def _pass(self, k: int, part: Part, start: str) -> List[str]:
        inputs = ""
        for n, value in enumerate(part.inputs):
            text = f"{self._array(value.root)}_q"
            # what the last step left: nothing before the first one
            is_before = value.root.lasts and self._maker(value.root) >= k
            inputs += f" .in{n}({f'fresh ? {literal(0)} : {text}' if is_before else text}),"
        return [
            f"    {self.name}_{part.name} p{k}(",
            f"        .clk(clk), .reset(reset), .fresh(fresh), .start({start}), .done(p{k}_done),",
            f"        .reading(p{k}_reading), .at(p{k}_at),{inputs}",
            f"        .write(p{k}_write), .write_at(p{k}_to), .value(p{k}_value));",
            *self._memories(part.output.root, f"p{k}_write", f"p{k}_to", f"p{k}_value", start),
        ]

    def _maker(self, value: Value) -> int:
        return next(k for k, part in enumerate(self.parts) if part.output.root is value)

    def _array(self, value: Value) -> str:
        """The name of an array."""
        return "x" if value is self.input else f"y{self._maker(value)}"


def _parts(built: Built) -> Tuple[List[Part], Value]:
    """The parts, with a copy behind products that other products, or the caller, read; and the output."""
    parts: List[Part] = []
    copies: Dict[Value, Value] = {}
    for part in built.parts:
        if isinstance(part, _PRODUCTS):
            part.inputs = tuple(_of_copy(value, copies) for value in part.inputs)
        parts.append(part)
        value = part.output.root
        readers = [each for each in built.parts if value in [x.root for x in each.inputs]]
        if isinstance(part, _PRODUCTS) and (value is built.output or any(isinstance(r, _PRODUCTS) for r in readers)):
            parts.append(Copy(f"{value.name}__copy", value))
            copies[value] = parts[-1].output
    return parts, copies.get(built.output, built.output)


def _of_copy(value: Value, copies: Mapping[Value, Value]) -> Value:
    """A value, or its copy in the same shape."""
    copy = copies.get(value.root)
    return value if copy is None else Value(copy.name, value.shape, copy.format, of=copy)
