"""Products with weights: modules that take the inputs that are not 0, one by one, and add to the sums that see them.

A layer is a list of places: for each input the first weight and the first sum of its taps. A window of a convolution
or of a pooling has a list of taps for each row, and one for each column. Words of memories hold ``lanes`` weights or
sums side by side: outputs o, o + 1, .. of one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from spikecore_chips._export_c._parts import Conv, DelayedLinear, Linear, Part, Pool, Products, Window
from spikecore_chips._export_verilog._circuit import bits_of, comment, width
from spikecore_chips._export_verilog._neuron import ends_of
from spikecore_chips._export_verilog._passes import Module, hexed

#: Clocks from reading a sum to writing it, between which another product must not add to it.
_DEPTH = 3
#: Shifted places that are added instead of reading a product out of a memory.
_SUMMANDS = 2


class Tap(NamedTuple):
    """A tap of a row or a column: its first weight, and its sum."""

    weight: int
    sum: int
    is_last: int


@dataclass
class Layer:
    """A layer as numbers of memories."""

    lanes: int
    #: Words of sums that a tap adds to, and of all sums; how far apart the sums of neighbouring outputs are.
    words: int
    total: int
    step: int = 1
    #: For each input: its weight, sum, offset, row and column, the last two of which begin their taps, or none.
    places: Dict[str, List[int]] = field(default_factory=dict)
    taps: Tuple[List[Tap], ...] = ()
    #: Words of weights; none for a pooling, whose weights are 1.
    weights: List[List[int]] = field(default_factory=list)
    offsets: List[List[int]] = field(default_factory=list)
    shifts: List[List[int]] = field(default_factory=list)
    #: Delays of the weights.
    delays: List[int] = field(default_factory=list)
    is_maximum: bool = False


def layer_of(part: Part, lanes: int) -> Layer:
    """The layer of a part."""
    if isinstance(part, DelayedLinear):
        delays = part.delays.flatten().tolist()
        layer = _linear(part, part.weights.products, 1, *part.delays.shape)
        layer.delays = delays if any(delays) else []
        return layer
    if isinstance(part, Linear):
        return _linear(part, part.weights.products, lanes, part.x.shape[-1], part.output.shape[-1])
    if isinstance(part, Conv):
        lanes = lanes if part.groups == 1 else gcd(lanes, part.of_group)
        layer = _windows(part.window, lanes, part.of_input, part.of_group)
        _fill(layer, part.weights.products, part.of_group, part.groups)
        return layer
    pool: Any = part
    layer = _windows(pool.window, 1, 1, 1)
    layer.is_maximum = pool.kind == "max"
    lowest = min(0, int(pool.x.format.low)) if layer.is_maximum else 0
    layer.offsets = [[lowest]]
    return layer


def reads_zeros(part: Part) -> bool:
    """True for a part to which inputs of 0 matter: a maximum of what may be negative."""
    return isinstance(part, Pool) and part.kind == "max" and int(getattr(part.x.format, "low", 0)) < 0


def sum_bits(part: Part) -> int:
    """The width of a sum, complete or not."""
    weights: Any = getattr(part, "weights", None)
    low, high = ends_of(part.output.format if weights is None else weights.format)
    return width(min(low, 0), max(high, 0))


def _linear(part: Part, products: Any, lanes: int, columns: int, rows: int) -> Layer:
    times = part.x.count // columns
    lanes = lanes if times == 1 else gcd(lanes, rows)
    words = -(-rows // lanes)
    layer = Layer(lanes, words, words * times)
    layer.places = {
        "weight": [j % columns * words for j in range(part.x.count)],
        "sum": [j // columns * words for j in range(part.x.count)],
    }
    _fill(layer, products, rows, 1)
    return layer


def _windows(window: Window, lanes: int, of_input: int, of_group: int) -> Layer:
    (channels, height, width_), (_, rows, columns), kernel, *_ = window
    words, size = -(-of_group // lanes), rows * columns
    groups = channels // of_input
    layer = Layer(lanes, words, groups * words * size, size)
    starts, taps = zip(*(_taps(window, k) for k in (0, 1)))
    weights = (kernel[1] * words, words)
    layer.taps = tuple(
        [Tap(tap.weight * weight, tap.sum * step, tap.is_last) for tap in each]
        for each, weight, step in zip(taps, weights, (columns, 1))
    )
    inputs = [(c, row, column) for c in range(channels) for row in range(height) for column in range(width_)]
    layer.places = {
        "weight": [c * kernel[0] * kernel[1] * words for c, _, _ in inputs],
        "sum": [c // of_input * words * size for c, _, _ in inputs],
        "offset": [c // of_input * words for c, _, _ in inputs],
        "row": [max(0, starts[0][row]) for _, row, _ in inputs],
        "column": [max(0, starts[1][column]) for _, _, column in inputs],
        "none": [int(starts[0][row] < 0 or starts[1][column] < 0) for _, row, column in inputs],
    }
    return layer


def _taps(window: Window, k: int) -> Tuple[List[int], List[Tap]]:
    """The taps of each row (k = 0) or column, and where they begin; -1 where there are none."""
    starts: List[int] = []
    taps: List[Tap] = []
    for place in range(window.inputs[1 + k]):
        found = []
        for tap in range(window.kernel[k]):
            to, rest = divmod(place + window.padding[k] - tap * window.dilation[k], window.stride[k])
            if not rest and 0 <= to < window.outputs[1 + k]:
                found.append((tap, to))
        starts.append(len(taps) if found else -1)
        taps += [Tap(tap, to, int(n == len(found) - 1)) for n, (tap, to) in enumerate(found)]
    return starts, taps or [Tap(0, 0, 1)]


def _fill(layer: Layer, products: Optional[Products], of_group: int, groups: int) -> None:
    """Words of weights, offsets and shifts. The last word of a tap is filled up with 0."""

    def words(numbers: Sequence[int]) -> List[List[int]]:
        rows = [[*numbers[at : at + of_group]] for at in range(0, len(numbers), of_group)]
        rows = [[*row, *[0] * (layer.words * layer.lanes - of_group)] for row in rows]
        return [row[at : at + layer.lanes] for row in rows for at in range(0, len(row), layer.lanes)]

    integers, shifts, offsets = (part.flatten().tolist() for part in products or ())
    layer.weights = words(integers)
    layer.offsets = words(offsets) if any(offsets) else [[0] * layer.lanes]
    layer.shifts = words(shifts) if any(shifts) else []


def _until_last(taps: Sequence[Tap], at: int) -> int:
    """The number of taps of the list that begins at a place."""
    return next(n for n, tap in enumerate(taps[at:], 1) if tap.is_last)


class _Numbers:
    """Memories of constants of a module: their lines, files and bits."""

    def __init__(self, name: str, files: Dict[str, str]) -> None:
        self._name, self._files = name, files
        self.lines: List[str] = []
        self.bits = 0

    def memory(self, what: str, words: Sequence[Sequence[int]], bits: Sequence[int]) -> str:
        """A memory of these words."""
        file = f"{self._name}_{what}.hex"
        self._files[file] = hexed(words, bits)
        self.lines += [
            f"    reg [{sum(bits) - 1}:0] {what} [0:{len(words) - 1}];",
            f'    initial $readmemh("{file}", {what});',
        ]
        self.bits += len(words) * sum(bits)
        return what

    def fields(self, what: str, columns: Dict[str, List[int]], index: str) -> List[str]:
        """Wires ``what_field``, a clock behind the place ``at``: of a memory, unless the number is a multiple of the
        place that takes no multiplier.
        """
        stored = {}
        lines = []
        for name, numbers in columns.items():
            bits = max(1, max(numbers).bit_length())
            factor = numbers[1] if len(numbers) > 1 else 0
            shifts = [k for k in range(factor.bit_length()) if factor >> k & 1]
            if len(shifts) <= _SUMMANDS and all(n == k * factor for k, n in enumerate(numbers)):
                value = " + ".join(f"{{{index}, {k}'d0}}" if k else index for k in shifts) or "0"
                lines.append(f"    reg [{bits - 1}:0] {what}_{name};")
                lines.append(f"    always @(posedge clk) {what}_{name} <= {value};")
            else:
                stored[name] = bits
        if stored:
            words = [*zip(*(columns[name] for name in stored))]
            self.memory(f"{what}s", words, [*stored.values()])
            total, low = sum(stored.values()), 0
            lines += [f"    reg [{total - 1}:0] {what};", f"    always @(posedge clk) {what} <= {what}s[{index}];"]
            for name, bits in stored.items():
                lines.append(f"    wire [{bits - 1}:0] {what}_{name} = {what}[{low + bits - 1}:{low}];")
                low += bits
        return lines


def products(name: str, part: Part, lanes: int, files: Dict[str, str]) -> Module:
    """The module of a layer."""
    layer = layer_of(part, lanes)
    return _Text(name, part, layer, files).module()


class _Text:
    """The text of a layer's module."""

    def __init__(self, name: str, part: Part, layer: Layer, files: Dict[str, str]) -> None:
        self._name, self._part, self._layer = name, part, layer
        self._numbers = _Numbers(name, files)
        x: Any = part.x.format
        #: Bits: of a weight, an input, a product, a sum; of an input's place; of places of sums, weights and offsets.
        ends = ends_of(x)
        integers = [n for word in layer.weights for n in word]
        self._w = width(min(integers), max(integers)) if integers else 0
        self._v = width(*ends)
        corners = [a * b for a in ((min(integers), max(integers)) if integers else (1,)) for b in ends]
        #: Not wider: yosys loses bits that repeat the sign of a product in a register (synth_ice40 -dsp).
        self._p = width(min(corners), max(corners))
        self._a = sum_bits(part)
        self._j, self._i = bits_of(part.x.count), bits_of(part.output.count)
        self._turn = bits_of(max(layer.delays) + 1) if layer.delays else 0
        self._t = bits_of(layer.total)
        self._k, self._b = bits_of(len(layer.weights) or 1), bits_of(len(layer.offsets))
        self._b = max(self._b, bits_of(len(layer.shifts) or 1))
        self._o = bits_of(max(layer.words, _DEPTH) + 3)

    def module(self) -> Module:
        layer = self._layer
        sums = layer.total << self._turn
        body = [*self._fetch(), *self._beat(), *self._adder(), *self._read()]
        lanes, a, v, j = layer.lanes, self._a, self._v, self._j
        lines = [
            comment(f"{self._part.title}: {lanes} products at a clock"),
            f"module {self._name}(",
            "    input clk, input reset, input fresh, input start, output reg done,",
            f"    output [{j}:0] list_at, input [{j + v - 1}:0] list_q, input [{j}:0] list_count,",
            f"    input reading, input [{self._i - 1}:0] read_at, output signed [{a - 1}:0] read_q",
            ");",
            *self._numbers.lines,
            f"    (* no_rw_check *) reg [{lanes * a - 1}:0] sums [0:{sums - 1}];",
            "    localparam IDLE = 0, BEGIN = 1, SETTLE = 2, RUN = 3, END = 4;",
            "    reg [2:0] phase;",
            *body,
            "endmodule",
            "",
        ]
        return Module(lines, self._clocks(), 0, sums * lanes * a, self._numbers.bits)

    def _clocks(self) -> int:
        """Clocks if no input is 0: to begin all sums, for each input, and for each of its taps."""
        layer, count = self._layer, self._part.x.count
        taps = [
            [_until_last(column, at) for at in layer.places[name]]
            for name, column in zip(("row", "column"), layer.taps)
        ]
        products = sum(a * b for a, b in zip(*taps)) if taps else count
        return (layer.total << self._turn) + 5 * count + products * max(layer.words, _DEPTH) + 4 * _DEPTH

    def _fetch(self) -> List[str]:
        """The next tap of the next input that is not 0, prepared while products of the last one are added."""
        layer, j, v, t, k, b = self._layer, self._j, self._v, self._t, self._k, self._b
        has_taps = bool(layer.taps)
        places = {name: numbers for name, numbers in layer.places.items() if name != "offset" or layer.shifts}
        fields = self._numbers.fields("place", places, "entry")
        sums = {name: f"place_{name}" for name in ("weight", "sum")}
        offset = "place_offset" if "offset" in places else "0"
        advance, point = ["e <= e + 1; fetch <= ENTRY;"], []
        if has_taps:
            for what, taps in zip(("row", "column"), layer.taps):
                columns = {name: [getattr(tap, name) for tap in taps] for name in Tap._fields}
                bits = bits_of(len(taps))
                fields += [f"    reg [{bits - 1}:0] {what}_at;"]
                fields += self._numbers.fields(what, columns, f"{what}_at")
                sums = {name: f"{text} + {what}_{name}" for name, text in sums.items()}
            advance = [
                "fetch <= TAP;",
                "column_at <= column_is_last ? place_column : column_at + 1;",
                "if (column_is_last) row_at <= row_at + 1;",
                "if (column_is_last && row_is_last) begin e <= e + 1; fetch <= ENTRY; end",
            ]
            point = [
                "            POINT: begin",
                "                row_at <= place_row; column_at <= place_column;",
                "                fetch <= TAP;",
                "                if (place_none) begin e <= e + 1; fetch <= ENTRY; end",
                "            end",
                "            TAP: fetch <= READY;",
            ]
        return [
            f"    reg [{j}:0] e;",
            "    assign list_at = e;",
            f"    wire [{j - 1}:0] entry = list_q[{j + v - 1}:{v}];",
            *fields,
            "    localparam WAIT = 0, ENTRY = 1, PLACE = 2, POINT = 3, TAP = 4, READY = 5;",
            "    reg [2:0] fetch;",
            "    reg full, finished;",
            f"    reg [{t - 1}:0] next_sum; reg [{k - 1}:0] next_weight; reg [{b - 1}:0] next_offset;",
            f"    reg signed [{v - 1}:0] value, next_value;",
            "    wire take;",
            "    always @(posedge clk) begin",
            "        if (take) full <= 0;",
            "        case (fetch)",
            "            ENTRY: if (e == list_count) begin finished <= 1; fetch <= WAIT; end else fetch <= PLACE;",
            f"            PLACE: begin value <= list_q[{v - 1}:0]; fetch <= {'POINT' if has_taps else 'READY'}; end",
            *point,
            "            READY: if (!full) begin",
            "                full <= 1; next_value <= value;",
            f"                next_weight <= {sums['weight']}; next_sum <= {sums['sum']}; next_offset <= {offset};",
            *(f"                {line}" for line in advance),
            "            end",
            "            default: ;",
            "        endcase",
            "        if (start) begin e <= 0; finished <= 0; full <= 0; fetch <= ENTRY; end",
            "        if (reset) begin fetch <= WAIT; full <= 0; finished <= 0; e <= 0; end",
            "    end",
        ]

    def _beat(self) -> List[str]:
        """Places of sums: all of them at first, which get their offsets, then those of each tap."""
        layer, t, k, b, o = self._layer, self._t, self._k, self._b, self._o
        period = max(layer.words, _DEPTH)
        turn = self._turn
        slots = []
        if turn:  # the slot of the last step is that of the sums that are farthest ahead; at first all begin
            slots = [f"    reg [{turn - 1}:0] slot, first_slot;", f"    wire [{turn - 1}:0] last_slot = slot - 2;"]
        again = (
            "if (fresh && first_slot != last_slot) begin first_slot <= first_slot + 1; sum <= 0; offset <= 0; end else "
            if turn
            else ""
        )
        begin = "slot <= slot + 1; first_slot <= slot;" if turn else ""
        offsets = max(len(layer.offsets), len(layer.shifts), 1)
        wrap = [
            f"                if (step == {layer.step - 1}) begin",
            f"                    step <= 0; offset <= offset == {offsets - 1} ? 0 : offset + 1;",
            "                end",
        ]
        return [
            *slots,
            f"    reg [{t - 1}:0] sum; reg [{k - 1}:0] weight; reg [{b - 1}:0] offset; reg [{o - 1}:0] o;",
            f"    reg [{bits_of(layer.step) - 1}:0] step;",
            f"    reg signed [{self._v - 1}:0] v;",
            "    reg busy;",
            f"    assign take = phase == RUN && full && (!busy || o == {period - 1});",
            f"    wire live0 = phase == BEGIN || (phase == RUN && busy && o < {layer.words});",
            "    always @(posedge clk) begin",
            "        done <= 0;",
            "        o <= o + 1;",
            "        case (phase)",
            "            BEGIN: begin",
            "                sum <= sum + 1; step <= step + 1;",
            *wrap,
            f"                if (sum == {layer.total - 1}) begin",
            "                    step <= 0;",
            f"                    {again}begin phase <= SETTLE; o <= 0; end",
            "                end",
            "            end",
            f"            SETTLE: if (o == {_DEPTH - 1}) phase <= RUN;",
            "            RUN: begin",
            f"                sum <= sum + {layer.step}; weight <= weight + 1; offset <= offset + 1;",
            "                if (take) begin",
            "                    sum <= next_sum; weight <= next_weight; offset <= next_offset; v <= next_value;",
            "                    busy <= 1; o <= 0;",
            f"                end else if (!busy || o == {period - 1}) begin",
            "                    busy <= 0;",
            "                    if (finished && !full) begin phase <= END; o <= 0; end",
            "                end",
            "            end",
            f"            END: if (o == {_DEPTH + 1}) begin phase <= IDLE; done <= 1; end",
            "            default: ;",
            "        endcase",
            f"        if (start) begin phase <= BEGIN; sum <= 0; step <= 0; offset <= 0; {begin} end",
            f"        if (reset) begin phase <= IDLE; done <= 0; busy <= 0; {'slot <= 0;' if turn else ''} end",
            "    end",
        ]

    def _adder(self) -> List[str]:
        """Read, multiply, shift, add, write."""
        layer, a, p, w, v, t = self._layer, self._a, self._p, self._w, self._v, self._t
        lanes, turn, numbers = layer.lanes, self._turn, self._numbers
        of_added = a if layer.shifts else p
        lines = [
            "    // Behind a place, at each clock: its weight and input; these once more; the sum that was, and the",
            "    // product, if it is shifted; what is added; what is written. A digit says how many clocks.",
            f"    reg [{t - 1}:0] sum1;",
            f"    reg [{t + turn - 1}:0] at2, at3, at4;",
            f"    reg [{self._b - 1}:0] offset1, offset2, offset3;",
            "    reg [3:0] live, begins;",
            f"    reg signed [{v - 1}:0] v1, v2, v3;",
            f"    reg [{lanes * a - 1}:0] sum3, sum4, written;",
            f"    reg [{lanes * of_added - 1}:0] added4;",
            f"    reg signed [{a - 1}:0] total;",
            "    integer n, m;",
        ]
        clocked = [
            "live <= {live, live0}; begins <= {begins, phase == BEGIN};",
            "sum1 <= sum; at2 <= at1; at3 <= at2; at4 <= at3; v1 <= v; v2 <= v1; v3 <= v2;",
            "offset1 <= offset; offset2 <= offset1; offset3 <= offset2;",
            "sum3 <= sums[phase == IDLE ? read : at2];",
            "sum4 <= sum3;",
            "if (live[3]) sums[at4] <= written;",
        ]
        at1, added, first, behind = "sum1", "v3", f"{a}'h0", "2" if layer.shifts else "3"
        of_lanes = []
        if layer.weights:
            numbers.memory("weights", layer.weights, [w] * lanes)
            lines.append(f"    reg [{lanes * w - 1}:0] weight1, weight2, weight3;")
            clocked.append("weight1 <= weights[weight]; weight2 <= weight1; weight3 <= weight2;")
            added = f"$signed(weight{behind}[n*{w} +: {w}])" + ("" if self._part.x.is_spikes else f" * v{behind}")
        if layer.shifts:
            size = max(n for word in layer.shifts for n in word).bit_length()
            numbers.memory("shifts", layer.shifts, [size] * lanes)
            lines += [f"    reg [{lanes * size - 1}:0] shift3;", f"    reg [{lanes * p - 1}:0] product3;"]
            clocked.append("shift3 <= shifts[offset2];")
            of_lanes = [f"product3[n*{p} +: {p}] <= {added};"]
            added = f"$signed(product3[n*{p} +: {p}]) <<< shift3[n*{size} +: {size}]"
        of_lanes.append(f"added4[n*{of_added} +: {of_added}] <= {added};")
        if layer.delays:
            numbers.memory("delays", [[delay] for delay in layer.delays], [turn])
            lines.append(f"    reg [{turn - 1}:0] delay1, first1;")
            lines.append(f"    wire [{turn - 1}:0] slot1 = begins[0] ? first1 : slot + delay1;")
            clocked.append("delay1 <= delays[weight]; first1 <= first_slot;")
            at1 = "{sum1, slot1}"
        if len(layer.offsets) > 1 or (lanes > 1 and any(layer.offsets[0])):
            numbers.memory("offsets", layer.offsets, [a] * lanes)
            lines.append(f"    reg [{lanes * a - 1}:0] first4;")
            clocked.append("first4 <= offsets[offset3];")
            first = f"first4[m*{a} +: {a}]"
        elif layer.offsets[0][0]:
            first = f"{a}'h{layer.offsets[0][0] & ((1 << a) - 1):x}"
        before, more = f"$signed(sum4[m*{a} +: {a}])", f"$signed(added4[m*{of_added} +: {of_added}])"
        total = f"{before} < {more} ? {more} : {before}" if layer.is_maximum else f"{before} + {more}"
        return [
            *lines,
            f"    wire [{t + turn - 1}:0] at1 = {at1};",
            f"    wire [{t + turn - 1}:0] read;",
            "    always @(posedge clk) begin",
            *(f"        {line}" for line in clocked),
            f"        for (n = 0; n < {lanes}; n = n + 1) begin",
            *(f"            {line}" for line in of_lanes),
            "        end",
            "    end",
            f"    always @* for (m = 0; m < {lanes}; m = m + 1) begin",
            f"        total = {total};",
            f"        written[m*{a} +: {a}] = begins[3] ? {first} : total;",
            "    end",
        ]

    def _read(self) -> List[str]:
        """The sum at ``read_at``, a clock later: lane ``o % lanes`` of the word of its pixel and of ``o / lanes``."""
        layer, a, t = self._layer, self._a, self._t
        lanes, slot, shift = layer.lanes, ", slot" if self._turn else "", (self._layer.lanes - 1).bit_length()
        if lanes == 1:
            return [f"    assign read = {{read_at{slot}}};", "    assign read_q = sum3;"]
        choice = f"    assign read_q = sum3[lane1*{a} +: {a}];"
        lines = [f"    reg [{shift - 1}:0] lane1;"]
        if layer.step == 1:
            word = f"read_at[{self._i - 1}:{shift}]" if self._i > shift else "1'd0"
            low = f"read_at[{min(shift, self._i) - 1}:0]"
            return [*lines, f"    always @(posedge clk) lane1 <= {low};", f"    assign read = {word};", choice]
        return [
            *lines,
            "    // sums are read in their order",
            f"    reg [{shift - 1}:0] lane; reg [{t - 1}:0] word, first_word; reg [{bits_of(layer.step) - 1}:0] pixel;",
            "    assign read = word;",
            "    always @(posedge clk) begin",
            "        lane1 <= lane;",
            "        word <= word + 1; pixel <= pixel + 1;",
            f"        if (pixel == {layer.step - 1}) begin",
            "            pixel <= 0; lane <= lane + 1;",
            f"            if (lane == {lanes - 1}) first_word <= word + 1; else word <= first_word;",
            "        end",
            "        if (!reading) begin lane <= 0; word <= 0; first_word <= 0; pixel <= 0; end",
            "    end",
            choice,
        ]
