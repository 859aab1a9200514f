"""Parts of a step: a part computes one array from others, by a function in C.

A part has tables of constants, fields of the state, and the lines of its function. There ``in`` (or ``in0``, ``in1``)
are the arrays that it reads, ``out`` is the one that it writes, and ``s`` is the state.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore_chips._export_c._fixed import is_wide
from spikecore_chips._export_c._graph import Refused
from spikecore_chips._export_c._values import (
    BYTES,
    Table,
    Value,
    grid_of,
    integers_of,
    packed,
    table_of,
)
from spikecore_chips.quant import Format
from spikecore_chips.quant._layers import weight_of


class Field(NamedTuple):
    """An array of the state, and what number ``i`` of it is at rest."""

    type: str
    name: str
    numbers: int
    rest: str = "0"
    format: Optional[Format] = None

    @property
    def bytes(self) -> int:
        """Its size."""
        return BYTES[self.type] * self.numbers


class Part:
    """One function of a step."""

    def __init__(self, name: str, title: str, inputs: Sequence[Value], shape: Sequence[int]) -> None:
        self.name, self.title, self.inputs, self.shape = name, title, tuple(inputs), tuple(shape)
        self.tables: List[Table] = []
        self.fields: List[Field] = []
        self.output = Value(name, tuple(shape), None, innermost=inputs[0].innermost)

    def lines(self) -> List[str]:
        """The body of its function."""
        raise NotImplementedError

    @property
    def function(self) -> str:
        """Its name in C: neither tables nor names of the header (``_in``, ``_out``, ``_step``, ``_reset``) end so."""
        return f"{self.name}__run"

    @property
    def x(self) -> Value:
        """The first array that it reads."""
        return self.inputs[0]


# -- products with weights


class Products(NamedTuple):
    """The integers of a layer: its sums are ``offsets[o] + sum(integers * inputs << shifts[o])``."""

    #: In the order of the taps.
    integers: Tensor
    #: Of each output: how many fractional bits its integers have less than the finest ones, and what is added.
    shifts: Tensor
    offsets: Tensor


class Weights:
    """The weight and the bias of a layer as tables, and the format of its sums.

    ``taps``: which numbers of the weight the loops read, in their order: for each input the outputs side by side.
    """

    #: None for floats.
    products: Optional[Products] = None

    def __init__(self, part: Part, layer: Any, taps: Tensor, fixed: Optional[torch.dtype]) -> None:
        self._part, x = part, part.x.format
        weight, bias = weight_of(layer), layer.bias
        outputs, self._multiplier, self.name = len(weight), "", f"{part.name}_weight"
        order = weight.detach().flatten()[taps]
        if fixed is None or x is None:
            part.tables.append(table_of(self.name, order.float(), None))
            bias = torch.zeros(outputs) if bias is None else bias.detach().float()
            self._bias(bias, None)
            self.load, self.format = f"{self.name}[k]", None
            return
        grid = grid_of(f"the weight of {part.title}", weight, 16)
        biases = torch.zeros(outputs) if bias is None else bias.detach()
        of_bias = grid_of(f"the bias of {part.title}", biases.unsqueeze(1), 31)
        fracs, of_input = torch.tensor(grid.fracs), int(x.frac or 0)
        # what is 0 is on every grid
        others = torch.where(biases == 0, fracs, torch.tensor(of_bias.fracs) - of_input)
        sums = torch.where((weight == 0).flatten(1).all(1), others, torch.maximum(fracs, others))
        finest = int(torch.maximum(fracs, sums).max())
        integers = grid.integers.flatten()[taps]
        part.tables.append(packed(self.name, integers) if grid.is_narrow else table_of(self.name, integers, x))
        self.load = f"nibble({self.name}, k)" if grid.is_narrow else f"{self.name}[k]"
        shifts = finest - fracs
        if bool((shifts != 0).any()):
            self._multiplier = f"{part.name}_scale"
            part.tables.append(table_of(self._multiplier, 2**shifts, x))
        offsets = integers_of(f"the bias of {part.title}", biases, of_input + finest)
        self.products = Products(integers, shifts, offsets)
        self._bias(offsets, x)
        low, high = _ends(grid.integers.flatten(1).double() * 2.0 ** shifts.double().unsqueeze(1), x, offsets)
        self.format = Format(of_input + finest, min(low), max(high))
        part.output.channels = tuple(
            Format(of_input + finest, *ends).at(of_input + frac) for *ends, frac in zip(low, high, sums.tolist())
        )

    def _bias(self, numbers: Tensor, like: Optional[Format]) -> None:
        self._zero = not bool((numbers != 0).any())
        if not self._zero:
            self._part.tables.append(table_of(f"{self._part.name}_bias", numbers, like))

    def start(self, at: str = "o", index: str = "o") -> str:
        """The line that sets a sum."""
        value = "0" if self._zero or self._multiplier else f"{self._part.name}_bias[{index}]"
        return f"out[{at}] = {value};"

    def end(self, at: str = "o", index: str = "o") -> List[str]:
        """The line that ends a sum whose output has fewer fractional bits than others."""
        if not self._multiplier:
            return []
        bias = "" if self._zero else f" + {self._part.name}_bias[{index}]"
        return [f"out[{at}] = out[{at}] * {self._multiplier}[{index}]{bias};"]

    def added(self, at: str, of: Value, factor: str = "v") -> str:
        """The line that adds the product with an input, of number k."""
        return f"out[{at}] += {self.load}{'' if of.is_spikes else f' * {factor}'};"


def _ends(rows: Tensor, x: Format, bias: Tensor) -> Tuple[List[int], List[int]]:
    """The least and the greatest sum of each output, complete or not, with the bias in front or behind."""
    low, high = rows * float(x.low), rows * float(x.high)
    least = torch.minimum(low, high).clamp(max=0).sum(1) + bias.clamp(max=0)
    most = torch.maximum(low, high).clamp(min=0).sum(1) + bias.clamp(min=0)
    return [*map(int, least.tolist())], [*map(int, most.tolist())]


class Linear(Part):
    """``y = W x + b``, input by input: those that are 0 are skipped."""

    def __init__(self, name: str, title: str, x: Value, layer: Any, fixed: Optional[torch.dtype]) -> None:
        rows, columns = layer.weight.shape
        super().__init__(name, title, [x], (*x.shape[:-1], rows))
        if x.shape[-1:] != (columns,):
            raise Refused(f"{title}: its input has samples of shape {list(x.shape)}, not [{columns}]; flatten them")
        taps = torch.arange(rows * columns).view(rows, columns).t().flatten()
        self.weights = Weights(self, layer, taps, fixed)
        self.output.format, self.output.innermost = self.weights.format, 1
        if len(x.shape) > 1:  # channels are those of the first dimension
            self.output.channels = ()

    def lines(self) -> List[str]:
        rows, columns, weights, channels = self.output.shape[-1], self.x.shape[-1], self.weights, self.x.innermost
        every = f"for (int j = 0, k = 0; j < {columns}; ++j) {{"
        if channels > 1:  # in the order of the weights
            every = f"for (int c = 0, k = 0; c < {channels}; ++c) for (int j = c; j < {columns}; j += {channels}) {{"
        lines = [
            f"for (int o = 0; o < {rows}; ++o) {weights.start()}",
            every,
            f"    const {self.x.type} v = in[j];",
            f"    if (v == 0) {{ k += {rows}; continue; }}",
            f"    for (int o = 0; o < {rows}; ++o, ++k) {weights.added('o', self.x)}",
            "}",
            *(f"for (int o = 0; o < {rows}; ++o) {line}" for line in weights.end()),
        ]
        if len(self.x.shape) == 1:
            return lines
        times = f"for (int n = 0; n < {self.x.count // columns}; ++n, in += {columns}, out += {rows}) {{"
        return [times, *(f"    {line}" for line in lines), "}"]


class Window(NamedTuple):
    """The places that a convolution or a pooling reads. Of one dimension as of two, the first of which has size 1."""

    #: Channels, rows and columns.
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    kernel: Tuple[int, ...]
    stride: Tuple[int, ...]
    padding: Tuple[int, ...]
    dilation: Tuple[int, ...] = (1, 1)


class Conv(Part):
    """A convolution, input by input: each adds to the outputs that see it, and those that are 0 are skipped.

    The channels of its output lie side by side, so that compilers add them as vectors.
    """

    def __init__(self, name: str, title: str, x: Value, layer: Any, shape: Any, fixed: Optional[torch.dtype]) -> None:
        super().__init__(name, title, [x], shape)
        if len(x.shape) != layer.weight.ndim - 1:
            raise Refused(
                f"{title}: its input has samples of shape {list(x.shape)}; give [C, H, W], or [C, L] to Conv1d"
            )
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise Refused(
                f"{title}: padding={layer.padding!r}, padding_mode={layer.padding_mode!r}; give numbers, zeros"
            )
        weight, is_line = layer.weight, len(shape) == 2
        (height, width), (rows, columns) = ((1, size[-1]) if is_line else size[-2:] for size in (x.shape, shape))
        # of the weight, as torch has it, not of attributes that say otherwise where a layer was pruned by hand
        (outputs, of_input, *size_of_kernel), groups = weight.shape, layer.groups
        kernel, stride, padding, dilation = (
            (neutral, pair[0]) if is_line else tuple(pair)
            for neutral, pair in ((1, size_of_kernel), (1, layer.stride), (0, layer.padding), (1, layer.dilation))
        )
        channels, of_group = of_input * groups, outputs // groups
        self.window = Window((channels, height, width), (outputs, rows, columns), kernel, stride, padding, dilation)
        self.groups, self.of_input, self.of_group = groups, of_input, of_group
        # [out, in / groups, kernel] as [in, kernel, out / groups]
        places = torch.arange(weight.numel()).view(layer.groups, -1, *weight.shape[1:])
        taps = places.movedim(1, -1).flatten(0, 1).flatten()
        self.weights = Weights(self, layer, taps, fixed)
        self.output.format = self.weights.format

    def lines(self) -> List[str]:
        weights, of_input, of_group, window = self.weights, self.of_input, self.of_group, self.window
        (channels, height, width), (outputs, rows, columns), kernel, stride, padding, dilation = window
        group = f" + c / {of_input} * {of_group}" if self.groups > 1 else ""
        begin, step = ("c", f"j += {channels}") if self.x.innermost > 1 else (f"c * {height * width}", "++j")
        every = f"for (int p = 0, i = 0; p < {rows * columns}; ++p) for (int o = 0; o < {outputs}; ++o, ++i) "
        return [
            every + weights.start("i"),
            f"for (int c = 0; c < {channels}; ++c)",
            f"    for (int row = 0, j = {begin}; row < {height}; ++row)",
            f"        for (int column = 0; column < {width}; ++column, {step}) {{",
            f"            const {self.x.type} v = in[j];",
            "            if (v == 0) continue;",
            f"            for (int h = 0; h < {kernel[0]}; ++h) {{",
            *_reached("                ", "row", "to_row", "h", rows, padding[0], dilation[0], stride[0]),
            f"                for (int w = 0; w < {kernel[1]}; ++w) {{",
            *_reached("                    ", "column", "to_column", "w", columns, padding[1], dilation[1], stride[1]),
            f"                    int at = (to_row * {columns} + to_column) * {outputs}{group};",
            f"                    int k = ((c * {kernel[0]} + h) * {kernel[1]} + w) * {of_group};",
            f"                    for (int o = 0; o < {of_group}; ++o, ++k, ++at) " + weights.added("at", self.x),
            "                }",
            "            }",
            "        }",
            *(every + line for line in weights.end("i")),
        ]


def _reached(
    indent: str, of: str, to: str, tap: str, count: int, padding: int, dilation: int, stride: int
) -> List[str]:
    """Lines that find the place of an output that a tap adds to, or go on to the next tap."""
    first = f"{_with(of, padding)} - {tap}" + (f" * {dilation}" if dilation > 1 else "")
    if stride == 1:
        return [f"{indent}const int {to} = {first};", f"{indent}if ({to} < 0 || {to} >= {count}) continue;"]
    return [
        f"{indent}const int {tap}_at = {first}, {to} = {tap}_at / {stride};",
        f"{indent}if ({tap}_at < 0 || {tap}_at % {stride} != 0 || {to} >= {count}) continue;",
    ]


def _with(text: str, more: int) -> str:
    """A sum with a number, or a difference, unless it is 0."""
    return f"{text} + {more}" if more > 0 else f"{text} - {-more}" if more else text


class Pool(Part):
    """The sum, the mean or the largest of each window. The mean of integers has more fractional bits than these."""

    def __init__(
        self, name: str, title: str, x: Value, kind: str, window: Any, shape: Any, fixed: Optional[torch.dtype]
    ) -> None:
        super().__init__(name, title, [x], shape)
        self.kind, (kernel, stride, padding) = kind, window
        self.window = Window(x.shape, self.shape, kernel, stride, padding)
        self.output.innermost = x.innermost if self.output.count > self.shape[0] else 1
        count = kernel[0] * kernel[1]
        self._divided = kind == "mean" and (fixed is None or x.format is None)
        if kind == "max" or (x.format is None and fixed is None):
            self.output.format = x.format
        elif fixed is not None and x.format is not None:
            shift = count.bit_length() - 1 if kind == "mean" else 0
            if 1 << shift != count and kind == "mean":
                raise Refused(f"{title}: the mean of {count} integers is none on a grid; take a window of 2, 4, 8, ...")
            low, high = min(0, count * int(x.format.low)), max(0, count * int(x.format.high))
            self.output.format = Format((x.format.frac or 0) + shift, low, high)

    def lines(self) -> List[str]:
        (_, height, width), (channels, rows, columns), kernel, stride, padding, _ = self.window
        together, most = self.x.innermost, self.kind == "max"
        every = f"for (int c = 0; c < {together}; ++c) "
        largest = [f"if (first) {every}out[c] = from[c];", f"else {every}out[c] = from[c] > out[c] ? from[c] : out[c];"]
        taken = [*largest, "first = 0;"] if most else [f"{every}out[c] += from[c];"]
        return [
            f"for (int n = 0; n < {channels // together}; ++n, in += {height * width})",
            f"    for (int row = 0; row < {rows}; ++row)",
            f"        for (int column = 0; column < {columns}; ++column, out += {together}) {{",
            "            int first = 1;" if most else f"            {every}out[c] = 0;",
            f"            for (int h = 0; h < {kernel[0]}; ++h) {{",
            f"                const int at_row = {_with(f'row * {stride[0]} + h', -padding[0])};",
            f"                if (at_row < 0 || at_row >= {height}) continue;",
            f"                for (int w = 0; w < {kernel[1]}; ++w) {{",
            f"                    const int at_column = {_with(f'column * {stride[1]} + w', -padding[1])};",
            f"                    if (at_column < 0 || at_column >= {width}) continue;",
            f"                    const {self.x.type} *from = in + (at_row * {width} + at_column) * {together};",
            *(f"                    {line}" for line in taken),
            "                }",
            "            }",
            *([f"            {every}out[c] /= {float(kernel[0] * kernel[1])}f;"] if self._divided else []),
            "        }",
        ]


class Sum(Part):
    """The sum of two arrays."""

    def __init__(self, name: str, title: str, inputs: Sequence[Value], fixed: Optional[torch.dtype]) -> None:
        super().__init__(name, title, inputs, inputs[0].shape)
        self.shifts = (0, 0)
        formats = [value.format for value in inputs]
        if fixed is not None:
            a, b = (f for f in formats if f is not None)
            self.output.format = _added(a, b)
            frac = int(self.output.format.frac or 0)
            self.shifts = (frac - int(a.frac or 0), frac - int(b.frac or 0))
            of_channels = [value.channels or (value.format,) * self.shape[0] for value in inputs]
            if any(value.channels for value in inputs):
                self.output.channels = tuple(_added(*pair) for pair in zip(*of_channels))

    def lines(self) -> List[str]:
        kind = self.output.type
        cast = "(int64_t)" if kind == "int64_t" else ""
        texts = [f"{cast}in{k}[i]" + (f" * {1 << shift}" if shift else "") for k, shift in enumerate(self.shifts)]
        return [f"for (int i = 0; i < {self.output.count}; ++i) out[i] = ({kind})({texts[0]} + {texts[1]});"]


def _added(a: Format, b: Format) -> Format:
    """The format of the sums of two formats' values."""
    frac = max(int(a.frac or 0), int(b.frac or 0))
    a, b = a.at(frac), b.at(frac)
    return Format(frac, a.low + b.low, a.high + b.high)


class Round(Part):
    """Numbers on another grid, to the nearest, ties to even, or down, and saturated."""

    def __init__(self, name: str, title: str, x: Value, format: Format, rounding: str = "nearest") -> None:
        super().__init__(name, title, [x], x.shape)
        self.output.format, self.rounding = format, rounding

    def lines(self) -> List[str]:
        x: Any = self.x.format
        to: Any = self.output.format
        shift = int(x.frac or 0) - int(to.frac or 0)
        if shift > 0:
            wide = is_wide(Format(0, x.low, int(x.high) + (1 << shift - 1)))
            text = f"in[i] >> {shift}" if self.rounding == "floor" else f"rounded{64 if wide else 32}(in[i], {shift})"
        else:
            wide = is_wide(x.at(int(to.frac or 0)))
            text = f"{'(int64_t)' if wide else ''}in[i] * {1 << -shift}" if shift else "in[i]"
        bits = 64 if wide else 32
        text = f"lesser{bits}(greater{bits}({text}, {to.low}), {to.high})"
        return [f"for (int i = 0; i < {self.output.count}; ++i) out[i] = ({self.output.type}){text};"]


class Copy(Part):
    """The same numbers at another place, in the order of their shape."""

    def __init__(self, name: str, x: Value) -> None:
        super().__init__(name, "a copy", [x], x.shape)
        self.output.format, self.output.innermost = x.format, 1

    def lines(self) -> List[str]:
        count, channels = self.x.count, self.x.innermost
        if channels == 1:
            return [f"for (int i = 0; i < {count}; ++i) out[i] = in[i];"]
        each = f"for (int j = c; j < {count}; j += {channels}, ++i) out[i] = in[j];"
        return [f"for (int c = 0, i = 0; c < {channels}; ++c) {each}"]


# -- delays


class DelayLine(Part):
    """Each number as many steps later as its delay says."""

    def __init__(self, name: str, title: str, x: Value, delays: Tensor) -> None:
        super().__init__(name, title, [x], x.shape)
        self.output.format, self._rows = x.format, int(delays.max()) + 1
        self.delays = delays.to(torch.int64)
        self.tables = [table_of(f"{name}_delay", self.delays, Format(0, 0, 0))]
        self.fields = ring(self, self._rows)

    def lines(self) -> List[str]:
        rows, count = self._rows, self.x.count
        return [
            *remembered(self.name, count),
            f"for (int j = 0; j < {count}; ++j) {{",
            f"    const int past = at - {self.name}_delay[j], row = past < 0 ? past + {rows} : past;",
            f"    out[j] = s->{self.name}_past[row * {count} + j];",
            "}",
            turned(self.name, rows),
        ]


class DelayedLinear(Part):
    """A linear layer each of whose connections has a delay."""

    def __init__(
        self, name: str, title: str, x: Value, layer: Any, delays: Tensor, fixed: Optional[torch.dtype]
    ) -> None:
        rows, columns = layer.weight.shape
        super().__init__(name, title, [x], (rows,))
        self._rows = int(delays.max()) + 1
        taps = torch.arange(rows * columns).view(rows, columns).t().flatten()
        self.weights = Weights(self, layer, taps, fixed)
        self.output.format = self.weights.format
        #: Of each input and output.
        self.delays = delays.to(torch.int64).t()
        self.tables.append(table_of(f"{name}_delay", self.delays, Format(0, 0, 0)))
        self.fields = ring(self, self._rows)

    def lines(self) -> List[str]:
        (outputs,), columns, weights = self.shape, self.x.count, self.weights
        lines = [
            *remembered(self.name, columns),
            f"for (int o = 0; o < {outputs}; ++o) {weights.start()}",
            f"for (int j = 0, k = 0; j < {columns}; ++j)",
            f"    for (int o = 0; o < {outputs}; ++o, ++k) {{",
            f"        const int past = at - {self.name}_delay[k], row = past < 0 ? past + {self._rows} : past;",
            f"        const {self.x.type} v = s->{self.name}_past[row * {columns} + j];",
            f"        if (v != 0) {weights.added('o', self.x)}",
            "    }",
            turned(self.name, self._rows),
        ]
        return [*lines, *(f"for (int o = 0; o < {outputs}; ++o) {line}" for line in weights.end())]


def ring(part: Part, rows: int) -> List[Field]:
    """The last inputs of a part, row after row, and the row of this step."""
    count = part.x.count
    return [
        Field(part.x.type, f"{part.name}_past", rows * count, format=part.x.format),
        Field("int32_t", f"{part.name}_at", 1),
    ]


def remembered(name: str, count: int) -> List[str]:
    """Lines that put the inputs of this step into their row."""
    return [
        f"const int at = (int)s->{name}_at[0];",
        f"for (int j = 0; j < {count}; ++j) s->{name}_past[at * {count} + j] = in[j];",
    ]


def turned(name: str, rows: int) -> str:
    """The line that goes on to the next row."""
    return f"s->{name}_at[0] = at + 1 < {rows} ? at + 1 : 0;"
