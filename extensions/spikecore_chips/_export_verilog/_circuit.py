"""Integers as wires: arithmetic that cannot wrap, cut into stages by registers.

Rules of this module:

- A wire is signed, and as wide as its lowest and highest integer need in two's complement. A truth value is one bit.
- Verilog makes a whole expression unsigned if one operand is, as a selected bit is: such an operand is brought into
  ``$signed`` first. ``-4'sd8`` beside wider numbers is +8: a literal has one bit more than it needs.
- A shift within a comparison would lose bits: it has a wire of its own.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from spikecore.lang.dialects import C_WORDS, VERILOG_WORDS
from spikecore.lang.render import on_one_line
from spikecore_chips._export_c._graph import identifier

#: Nanoseconds of operations on an ECP5, with the wires behind them: of a carry chain beside those of each bit.
DELAYS = {"memory": 7.5, "product": 6.0, "table": 2.5, "carry": 1.2, "bit": 0.05, "choice": 0.9, "gate": 0.4}


def carry(bits: int) -> float:
    """Nanoseconds of a sum or a comparison."""
    return DELAYS["carry"] + DELAYS["bit"] * bits


def width(low: int, high: int) -> int:
    """The bits of both ends in two's complement."""
    return 1 + max((n if n >= 0 else ~n).bit_length() for n in (low, high))


def bits_of(count: int) -> int:
    """The bits of a place among so many."""
    return max(1, (count - 1).bit_length())


def literal(n: int) -> str:
    """A signed number."""
    return f"{'-' if n < 0 else ''}{n.bit_length() + 2}'sd{abs(n)}"


def comment(text: str) -> str:
    """A line of a comment, in ASCII."""
    return f"// {on_one_line(text)}".encode("ascii", "backslashreplace").decode("ascii")


class Port(NamedTuple):
    """A signed port of a module."""

    name: str
    bits: int


class Signal(NamedTuple):
    """An integer: the name of a wire or a port, or a literal."""

    text: str
    low: int
    high: int
    #: True for a literal, which needs no register.
    is_literal: bool = False
    is_truth: bool = False

    @property
    def bits(self) -> int:
        """Its width."""
        return 1 if self.is_truth else width(self.low, self.high)


class _Wire(NamedTuple):
    signal: Signal
    #: Its value, with ``{0}``, ``{1}`` for the operands; the whole statement, if it is more than an expression.
    text: str
    operands: Tuple[Signal, ...]
    delay: float


def number(n: int) -> Signal:
    """A literal."""
    return Signal(literal(n), n, n, is_literal=True)


class Circuit:
    """A module that computes integers of others. ``budget``: nanoseconds between registers; None for no registers."""

    def __init__(self, budget: Optional[float], taken: Sequence[str] = ()) -> None:
        self.budget = budget
        self.inputs: List[Port] = []
        self.outputs: List[Port] = []
        self._ends: List[Signal] = []
        self._wires: List[_Wire] = []
        self._taken: Set[str] = {"clk", *taken, *C_WORDS, *VERILOG_WORDS}

    def name(self, label: str) -> str:
        """A new name."""
        name = identifier(label, self._taken)
        self._taken.add(name)
        return name

    # -- values

    def input(self, label: str, low: int, high: int) -> Signal:
        """A port that is read."""
        signal = Signal(self.name(label), low, high)
        self.inputs.append(Port(signal.text, signal.bits))
        return signal

    def output(self, label: str, value: Signal, low: int, high: int) -> None:
        """A port that is written, of the integers from ``low`` to ``high``."""
        self.outputs.append(Port(label, width(low, high)))
        self._ends.append(value)

    def wire(
        self, label: str, ends: Optional[Tuple[int, int]], text: str, operands: Sequence[Signal], delay: float
    ) -> Signal:
        """A new integer, or without ends a truth value."""
        signal = Signal(self.name(label), *(ends or (0, 1)), is_truth=ends is None)
        self._wires.append(_Wire(signal, text, tuple(operands), delay))
        return signal

    def up(self, x: Signal, shift: int) -> Signal:
        """``x * 2**shift``."""
        low, high = x.low << shift, x.high << shift
        if low == high:
            return number(low)
        return self.wire("up", (low, high), f"$signed({{{{{{0}}, {shift}'d0}}}})", [x], 0.0) if shift else x

    def sum(self, label: str, a: Signal, b: Signal, sign: str = "+") -> Signal:
        """``a + b`` or ``a - b``."""
        if b.low == b.high == 0:
            return a
        low, high = (a.low + b.low, a.high + b.high) if sign == "+" else (a.low - b.high, a.high - b.low)
        return self.wire(label, (low, high), f"{{0}} {sign} {{1}}", [a, b], carry(width(low, high)))

    def product(self, label: str, ends: Tuple[int, int], a: Signal, b: Signal) -> Signal:
        """``a * b``, which is a shift for a literal that is a power of two."""
        for x, factor in ((a, b), (b, a)):
            if factor.is_literal and factor.low > 0 and not factor.low & (factor.low - 1):
                return self.up(x, factor.low.bit_length() - 1)
        return self.wire(label, ends, "{0} * {1}", [a, b], DELAYS["product"])

    def down(self, label: str, x: Signal, shift: int, nearest: bool) -> Signal:
        """``x / 2**shift`` as a whole number: the nearest, ties to even, or the one below."""
        if shift <= 0:
            return x
        if x.low == x.high:
            half = (1 << shift - 1) - 1 + (x.low >> shift & 1) if nearest else 0
            return number(x.low + half >> shift)
        if nearest:
            odd = f"$signed({{{{1'b0, {{0}}[{min(shift, x.bits - 1)}]}}}})"
            half = (1 << shift - 1) - 1
            ends = (x.low + half, x.high + half + 1)
            x = self.wire("half", ends, f"{{0}} + {literal(half)} + {odd}", [x], carry(width(*ends)))
        return self.wire(label, (x.low >> shift, x.high >> shift), f"{{0}} >>> {shift}", [x], 0.0)

    def clamp(self, label: str, x: Signal, low: Optional[Signal], high: Optional[Signal]) -> Signal:
        """``min(max(x, low), high)``. None: no end."""
        # the end below first: the one above decides where they cross
        for end, sign in ((low, "<"), (high, ">")):
            if end is not None and (end.high > x.low if sign == "<" else end.low < x.high):
                choose = max if sign == "<" else min
                ends = (choose(x.low, end.low), choose(x.high, end.high))
                text = f"{{0}} {sign} {{1}} ? {{1}} : {{0}}"
                x = self.wire(label, ends, text, [x, end], carry(max(x.bits, end.bits)) + DELAYS["choice"])
        return x

    # -- text

    def _scheduled(self) -> Dict[str, int]:
        """The stage of each value. An input comes out of a memory, late."""
        stage = {port.name: 0 for port in self.inputs}
        when = dict.fromkeys(stage, DELAYS["memory"])
        for wire in self._wires:
            read = [x.text for x in wire.operands if not x.is_literal]
            last = max((stage[text] for text in read), default=0)
            time = max((when[text] for text in read if stage[text] == last), default=0.0) + wire.delay
            if self.budget is not None and time > self.budget and time > wire.delay:
                last, time = last + 1, wire.delay
            stage[wire.signal.text], when[wire.signal.text] = last, time
        return stage

    @property
    def latency(self) -> int:
        """Clocks from its inputs to its outputs."""
        stage = self._scheduled()
        return max((stage[end.text] for end in self._ends if not end.is_literal), default=0)

    def module(self, name: str, title: str) -> List[str]:
        """The lines of the module."""
        stage, latency = self._scheduled(), self.latency
        bits = {port.name: port.bits for port in self.inputs}
        bits.update({wire.signal.text: wire.signal.bits for wire in self._wires})
        truths = {wire.signal.text for wire in self._wires if wire.signal.is_truth}
        late: Dict[str, List[str]] = {}

        def read(x: Signal, at: int) -> str:
            """The name of a value in a later stage."""
            behind = 0 if x.is_literal else at - stage[x.text]
            names = late.setdefault(x.text, []) if behind else []
            while len(names) < behind:
                names.append(self.name(f"{x.text}_q{len(names) + 1}"))
            return names[behind - 1] if behind else x.text

        def declared(kind: str, text: str) -> str:
            return kind if text in truths else f"{kind} signed [{bits[text] - 1}:0]"

        lines = []
        for wire in self._wires:
            text, at = wire.signal.text, stage[wire.signal.text]
            value = wire.text.format(*(read(x, at) for x in wire.operands), name=text)
            if value.startswith("always"):
                lines += [f"{declared('reg', text)} {text};", *value.split("\n")]
            else:
                lines.append(f"{declared('wire', text)} {text} = {value};")
        lines += [f"assign {port.name} = {read(end, latency)};" for port, end in zip(self.outputs, self._ends)]
        registers = []
        for text, names in late.items():
            registers.append(f"{declared('reg', text)} {', '.join(names)};")
            moves = " ".join(f"{to} <= {of};" for of, to in zip([text, *names], names))
            lines.append(f"always @(posedge clk) begin {moves} end")
        ports = [
            "input clk",
            *(f"input signed [{port.bits - 1}:0] {port.name}" for port in self.inputs),
            *(f"output signed [{port.bits - 1}:0] {port.name}" for port in self.outputs),
        ]
        head = [comment(f"{title}: {latency} stages of registers"), f"module {name}(", *(f"    {p}," for p in ports)]
        head[-1] = head[-1][:-1]
        return [*head, ");", *(f"    {line}" for line in [*registers, *lines]), "endmodule", ""]
