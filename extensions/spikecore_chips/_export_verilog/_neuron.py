"""A step of neurons as a circuit: their program with its names, in integers of the widths that its formats have."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from spikecore.lang import Node, topological
from spikecore_chips._export_c._cells import Cells
from spikecore_chips._export_c._graph import Refused
from spikecore_chips._export_c._parts import Part, Round, Sum
from spikecore_chips._export_verilog._circuit import DELAYS, Circuit, Port, Signal, carry, literal, number, width
from spikecore_chips.quant._analysis import FLAG, ZERO, number_of, power_of_two

_COMPARISONS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "eq": "==", "ne": "!="}
_LOGIC = {"and": "&&", "or": "||"}
#: Values that a table has at most.
_TABLE = 1024


class Column(NamedTuple):
    """A number of each neuron, and the port that takes it."""

    port: Port
    integers: List[int]


class Stepped(NamedTuple):
    """A circuit that takes the numbers of one place of arrays: those of a neuron, with its states and coefficients."""

    circuit: Circuit
    inputs: Sequence[Port]
    #: Ports of states, which are followed by those of the next states, and the states at rest.
    states: Sequence[Port] = ()
    rest: Sequence[Sequence[int]] = ()
    coefficients: Sequence[Column] = ()


def stepped(cells: Cells, budget: Optional[float]) -> Stepped:
    """A step of neurons."""
    return _Step(cells, budget).result()


class _Step:
    """The signals of a program's nodes."""

    def __init__(self, cells: Cells, budget: Optional[float]) -> None:
        self._cells, self._formats, self._labels = cells, cells.formats, cells.program.labels
        self._ports = ["out", *(f"next_{k}" for k in range(len(cells.program.states)))]
        self._circuit = Circuit(budget, self._ports)
        self._signals: Dict[Node, Signal] = {}
        self._coefficients: List[Column] = []

    def result(self) -> Stepped:
        """The whole step."""
        cells, program, circuit = self._cells, self._cells.program, self._circuit
        for name, value in zip(program.inputs, cells.inputs):
            self._leaf("input", name, value.format)
        for name in program.states:
            self._leaf("state", name, self._formats[Node("state", (), name)])
        ports = [*circuit.inputs]
        self._numbers()
        states = [self._formats[Node("state", (), name)] for name in program.states]
        rest = [cells.integers(node, format).flatten().tolist() for node, format in zip(program.initial, states)]
        for root, format, port in zip(cells.roots, [cells.output.format, *states], self._ports):
            circuit.output(port, self._at(root, frac_of(format)), *ends_of(format))
        count = len(program.inputs)
        return Stepped(circuit, ports[:count], ports[count:], rest, self._coefficients)

    def _leaf(self, kind: str, name: str, format: Any) -> None:
        leaf = Node(kind, (), name)
        self._formats.setdefault(leaf, format)
        self._signals[leaf] = self._circuit.input(name, *ends_of(format))

    def _numbers(self) -> None:
        """Literals of what is the same for all neurons, and ports of what is not."""
        for node in self._read():
            format = self._formats.get(node)
            if node not in self._cells.constants or format is None or format.is_float:
                continue
            integers = self._cells.integers(node, format).flatten().tolist()
            if all(n == integers[0] for n in integers):
                self._signals[node] = number(integers[0])._replace(is_truth=node.is_bool)
            else:
                label = self._labels.get(node, str(node.attr) if node.op == "param" else "k")
                self._signals[node] = self._circuit.input(label, min(integers), max(integers))
                self._coefficients.append(Column(self._circuit.inputs[-1], integers))

    def _read(self) -> List[Node]:
        """The nodes that a step reads: without differences that are always 0, and what they alone read."""
        live, waiting = set(), [*self._cells.roots]
        while waiting:
            node = waiting.pop()
            if node not in live and self._formats.get(node) != ZERO:
                live.add(node)
                waiting += () if node in self._cells.constants or node in self._signals else node.args
        return [node for node in topological(self._cells.roots) if node in live]

    # -- values

    def _signal(self, node: Node) -> Signal:
        """A value as its operation gives it."""
        if node not in self._signals:
            format = self._formats[node]
            is_number = format == ZERO or node.op == "const"
            self._signals[node] = number(int(format.low)) if is_number else self._operation(node)
        return self._signals[node]

    def _at(self, node: Node, frac: int) -> Signal:
        """A value with so many fractional bits."""
        have = self._formats[node]
        if have.low == have.high:  # also an end of a clamp with more fractional bits than it needs
            return number(int(have.at(frac).low))
        return self._circuit.up(self._signal(node), frac - frac_of(have))

    def _aligned(self, args: Sequence[Node]) -> List[Signal]:
        """Values with the fractional bits that one of them has most."""
        formats = [self._formats[arg] for arg in args]
        frac = max((frac_of(f) for f in formats if f.low or f.high), default=0)
        return [self._at(arg, frac) for arg in args]

    # -- operations

    def _operation(self, node: Node) -> Signal:
        op, args, format, circuit = node.op, node.args, self._formats[node], self._circuit
        label = self._labels.get(node, op)
        ends = (0, 0) if format.is_float else ends_of(format)
        if op == "detach":
            return self._signal(args[0])
        if op in ("round", "floor"):
            shift = frac_of(self._formats[args[0]])
            return circuit.down(label, self._signal(args[0]), shift, op == "round")
        if op == "mul":
            return self._product(node, label)
        if op in ("add", "sub"):
            if self._formats[args[1]] == ZERO:
                return self._signal(args[0])
            if self._formats[args[0]] == ZERO and op == "add":
                return self._signal(args[1])
            a, b = (self._at(arg, frac_of(format)) for arg in args)
            return circuit.sum(label, a, b, "+" if op == "add" else "-")
        if op in ("where", "select"):
            table = self._table(node, label)
            if table is not None:
                return table
            chosen = [self._at(arg, frac_of(format)) for arg in args[1:]]
            text = "{0} ? {1} : {2}" if args[0].is_bool else "{0} != 0 ? {1} : {2}"
            return circuit.wire(label, ends, text, [self._signal(args[0]), *chosen], DELAYS["choice"])
        if op in ("clamp", "minimum", "maximum"):
            return self._limited(node, label)
        if op == "not":
            return circuit.wire(label, None, "!{0}", [self._signal(args[0])], DELAYS["gate"])
        if op in _LOGIC or (op in _COMPARISONS and args[0].is_bool):
            text = f"{{0}} {({**_LOGIC, **_COMPARISONS})[op]} {{1}}"
            return circuit.wire(label, None, text, [self._signal(arg) for arg in args], DELAYS["gate"])
        if op in _COMPARISONS:
            x = self._aligned(args)
            bits = max(signal.bits for signal in x)
            return circuit.wire(label, None, f"{{0}} {_COMPARISONS[op]} {{1}}", x, carry(bits))
        x = [self._signal(arg) for arg in args]
        if op == "spike":
            sign = ">" if getattr(node.attr, "strict", False) else ">="
            return circuit.wire(label, (0, 1), f"{{0}} {sign} 1'sd0 ? 2'sd1 : 2'sd0", x, DELAYS["gate"])
        if op == "sign":
            return circuit.wire(label, ends, "{0} > 1'sd0 ? 2'sd1 : {0} < 1'sd0 ? -3'sd1 : 2'sd0", x, carry(x[0].bits))
        if op in ("abs", "neg"):
            text = "-{0}" if op == "neg" else "{0} < 1'sd0 ? -{0} : {0}"
            return circuit.wire(label, ends, text, x, carry(width(*ends)))
        raise Refused(f"{self._cells.title}: there is no Verilog for {op} of integers")

    def _product(self, node: Node, label: str) -> Signal:
        """A product. One with a power of two is the same integer, one with a spike is a choice."""
        for power, value in ((1, 0), (0, 1)):
            if power_of_two(node.args[power]) is not None:
                return self._signal(node.args[value])
        format, x = self._formats[node], [self._signal(arg) for arg in node.args]
        ends = ends_of(format)
        for flag, value in ((0, 1), (1, 0)):
            if self._formats[node.args[flag]] == FLAG:
                text = "{0} != 0 ? {1} : 1'sd0"
                return self._circuit.wire(label, ends, text, [x[flag], x[value]], DELAYS["choice"])
        return self._circuit.product(label, ends, *x)

    def _limited(self, node: Node, label: str) -> Signal:
        """A value between ends, of which an infinite one is none."""
        finite = [arg for arg in node.args if not self._formats[arg].is_float]
        if node.op == "clamp":
            frac = frac_of(self._formats[node])
            low, high = (self._at(arg, frac) if arg in finite else None for arg in node.args[1:])
            return self._circuit.clamp(label, self._at(node.args[0], frac), low, high)
        if len(finite) == 1:
            return self._signal(finite[0])
        a, b = self._aligned(finite)
        return self._circuit.clamp(label, a, *((None, b) if node.op == "minimum" else (b, None)))

    def _table(self, node: Node, label: str) -> Optional[Signal]:
        """A chain of choices between constants by one whole number, as that of a table, read at its place."""
        frac, inner = frac_of(self._formats[node]), node
        steps: List[Tuple[Node, float, Signal]] = []
        while inner.op == "where" and inner.args[0].op == "ge" and self._is_constant(inner.args[1]):
            place, bound = inner.args[0].args
            if bound.op != "const" or (steps and place != steps[0][0]):
                break
            steps.append((place, number_of(bound), self._at(inner.args[1], frac)))
            inner = inner.args[2]
        if len(steps) < 2 or not self._is_constant(inner):
            return None
        place, format = steps[0][0], self._formats[steps[0][0]]
        low, high = int(format.low), int(format.high)
        if not format.is_whole or high - low >= _TABLE:
            return None
        scale, last = 2.0 ** frac_of(format), self._at(inner, frac)
        values = [
            next((value for _, bound, value in steps if n / scale >= bound), last).low for n in range(low, high + 1)
        ]
        index = self._signal(place)
        cases = [f"    {n}: {{name}} = {value};" for n, value in zip(range(low, high), map(literal, values))]
        text = "\n".join(["always @* case ({0})", *cases, f"    default: {{name}} = {literal(values[-1])};", "endcase"])
        return self._circuit.wire(label, (min(values), max(values)), text, [index], DELAYS["table"])

    def _is_constant(self, node: Node) -> bool:
        return node.op == "const" or (node in self._signals and self._signals[node].is_literal)


# -- parts without a program


def plain(part: Part, budget: Optional[float]) -> Stepped:
    """The circuit of a sum of two arrays, of a rounding, or of a copy."""
    circuit, to = Circuit(budget, ["out"]), part.output.format
    x = [circuit.input(f"in{k}", *ends_of(value.format)) for k, value in enumerate(part.inputs)]
    if isinstance(part, Sum):
        a, b = (circuit.up(each, shift) for each, shift in zip(x, part.shifts))
        value = circuit.sum("total", a, b)
    else:
        shift = frac_of(part.x.format) - frac_of(to)
        value = circuit.up(x[0], max(0, -shift))
        value = circuit.down("rounded", value, shift, isinstance(part, Round) and part.rounding != "floor")
        value = circuit.clamp("clamped", value, *map(number, ends_of(to)))
    circuit.output("out", value, *ends_of(to))
    return Stepped(circuit, [*circuit.inputs])


def ends_of(format: Any) -> Tuple[int, int]:
    """The lowest and the highest integer of a format."""
    return int(format.low), int(format.high)


def frac_of(format: Any) -> int:
    """The fractional bits of a format."""
    return int(format.frac or 0)
