"""Passes: modules that go through arrays, one number at a clock, and keep the states of neurons in one memory."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence

from spikecore_chips._export_c._parts import DelayLine, Part
from spikecore_chips._export_verilog._circuit import Port, bits_of, comment, literal, width
from spikecore_chips._export_verilog._neuron import Column, Stepped, ends_of


class Module(NamedTuple):
    """A part of a step in Verilog."""

    lines: List[str]
    #: Clocks from its start to its end at most.
    clocks: int
    #: Clocks from reading a number to writing one.
    latency: int = 0
    #: Bits that change while it runs, and bits of constants.
    memory: int = 0
    weights: int = 0


def hexed(words: Sequence[Sequence[int]], bits: Sequence[int]) -> str:
    """Words of a memory in hexadecimal, the first number of each in the lowest bits. The last line ends, too: some
    simulators lose it else.
    """
    lines = []
    for numbers in words:
        word, at = 0, 0
        for n, size in zip(numbers, bits):
            word |= (n & ((1 << size) - 1)) << at
            at += size
        lines.append(f"{word:x}\n")
    return "".join(lines)


def pass_of(name: str, part: Part, step: Stepped, files: Dict[str, str]) -> Module:
    """The module that takes the step of a circuit at each place of its arrays."""
    circuit, count = step.circuit, part.output.count
    columns = [*step.coefficients]
    rests = []
    for port, rest in zip(step.states, step.rest):
        if all(n == rest[0] for n in rest):
            rests.append(literal(rest[0]))
        else:
            rests.append(f"c_{port.name}_rest")
            columns.append(Column(Port(f"{port.name}_rest", port.bits), [*rest]))
    size = sum(port.bits for port in step.states)
    given = [f".{port.name}(in{k})" for k, port in enumerate(step.inputs)]
    given += [f".{port.name}(s_{port.name})" for port in step.states]
    given += [f".{column.port.name}(c_{column.port.name})" for column in step.coefficients]
    given += [".out(value)"]
    states, at = [], 0
    if size:
        states = [
            f"    (* no_rw_check *) reg [{size - 1}:0] states [0:{count - 1}];",
            f"    reg [{size - 1}:0] state;",
            f"    wire [{size - 1}:0] next;",
            "    always @(posedge clk) begin",
            "        state <= states[at];",
            "        if (write) states[write_at] <= next;",
            "    end",
        ]
    for port, at_rest, after in zip(step.states, rests, circuit.outputs[1:]):
        part_of = f"[{at + port.bits - 1}:{at}]"
        states.append(
            f"    wire signed [{port.bits - 1}:0] s_{port.name} = fresh ? {at_rest} : $signed(state{part_of});"
        )
        given.append(f".{after.name}(next{part_of})")
        at += port.bits
    body = [*_columns(name, columns, count, files), *states, f"    {name}__step step(.clk(clk), {', '.join(given)});"]
    lines = [
        *circuit.module(f"{name}__step", part.title),
        *_module(name, part, step.inputs, circuit.outputs[0], circuit.latency, body),
    ]
    return Module(
        lines,
        _clocks(count, circuit.latency),
        circuit.latency,
        size * count,
        sum(column.port.bits for column in columns) * count,
    )


def delay_line(name: str, part: DelayLine, files: Dict[str, str]) -> Module:
    """The module that gives each number as many steps later as its delay says: a ring of inputs for each."""
    count, bits, most = part.output.count, width(*ends_of(part.output.format)), int(part.delays.max())
    turn = bits_of(most + 1)
    column = Column(Port("delay", turn + 1), part.delays.tolist())
    body = [
        *_columns(name, [column], count, files),
        f"    (* no_rw_check *) reg [{bits - 1}:0] past [0:{(count << turn) - 1}];",
        f"    reg signed [{bits - 1}:0] old, now;",
        f"    reg [{turn - 1}:0] slot, age;",
        f"    wire [{turn - 1}:0] from = slot - c_delay[{turn - 1}:0];",
        "    reg is_now, is_early;",
        "    always @(posedge clk) begin",
        "        if (live[0]) past[{place, slot}] <= in0;",
        "        old <= past[{place, from}];",
        "        now <= in0;",
        "        is_now <= c_delay == 0;",
        f"        is_early <= c_delay[{turn - 1}:0] > age;",
        f"        if (done) begin slot <= slot + 1; if (age != {most}) age <= age + 1; end",
        "        if (reset) begin slot <= 0; age <= 0; end",
        "    end",
        "    assign value = is_early ? 1'sd0 : is_now ? now : old;",
    ]
    port = Port("out", bits)
    lines = _module(name, part, [Port("in0", bits)], port, 1, body)
    return Module(lines, _clocks(count, 1), 1, (bits * count) << turn, (turn + 1) * count)


def _clocks(count: int, latency: int) -> int:
    return count + latency + 3


def _columns(name: str, columns: Sequence[Column], count: int, files: Dict[str, str]) -> List[str]:
    """Numbers that differ from neuron to neuron: a memory with a word for each."""
    if not columns:
        return []
    bits = [column.port.bits for column in columns]
    total, file = sum(bits), f"{name}_values.hex"
    files[file] = hexed([*zip(*(column.integers for column in columns))], bits)
    lines = [
        f"    reg [{total - 1}:0] values [0:{count - 1}];",
        f"    reg [{total - 1}:0] word;",
        f'    initial $readmemh("{file}", values);',
        "    always @(posedge clk) word <= values[at];",
    ]
    at = 0
    for column, size in zip(columns, bits):
        lines.append(f"    wire signed [{size - 1}:0] c_{column.port.name} = word[{at + size - 1}:{at}];")
        at += size
    return lines


def _module(
    name: str, part: Part, inputs: Sequence[Port], output: Port, latency: int, body: Sequence[str]
) -> List[str]:
    """A module that reads a place at each clock, and writes it ``latency`` clocks after the memories gave it."""
    count = part.output.count
    bits = bits_of(count)
    most = bits * (latency + 1)
    return [
        comment(f"{part.title}: one at a clock"),
        f"module {name}(",
        "    input clk, input reset, input fresh, input start, output reg done,",
        f"    output reg reading, output reg [{bits - 1}:0] at,",
        *(f"    input signed [{port.bits - 1}:0] in{k}," for k, port in enumerate(inputs)),
        f"    output write, output [{bits - 1}:0] write_at, output signed [{output.bits - 1}:0] value",
        ");",
        f"    reg [{latency}:0] live;",
        f"    reg [{most - 1}:0] places;",
        f"    wire [{bits - 1}:0] place = places[{bits - 1}:0];",
        f"    assign write = live[{latency}], write_at = places[{most - 1}:{most - bits}];",
        "    always @(posedge clk) begin",
        "        live <= {live, reading}; places <= {places, at};",
        f"        done <= write && write_at == {count - 1};",
        f"        if (reading) begin at <= at + 1; if (at == {count - 1}) reading <= 0; end",
        "        if (start) begin reading <= 1; at <= 0; end",
        "        if (reset) begin reading <= 0; live <= 0; done <= 0; at <= 0; end",
        "    end",
        *body,
        "endmodule",
        "",
    ]
