"""A network as parts, their memory, and the texts of the program."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore.core.modules import calls_as, pair
from spikecore.core.neuron import Neuron
from spikecore.graph import layer_of
from spikecore.lang import c
from spikecore.lang.dialects import C11
from spikecore.lang.render import C_TEMPLATES, on_one_line
from spikecore.layers import CompactAvgPool2d, CompactMaxPool2d, Delay, SumPool2d
from spikecore.neurons import Recurrent
from spikecore_chips._export_c import _fixed
from spikecore_chips._export_c._cells import Cells, is_spike
from spikecore_chips._export_c._graph import Operation, Refused, Step, rounds_input
from spikecore_chips._export_c._parts import (
    Conv,
    Copy,
    DelayedLinear,
    DelayLine,
    Field,
    Linear,
    Part,
    Pool,
    Round,
    Sum,
)
from spikecore_chips._export_c._values import BYTES, Value
from spikecore_chips.quant import Format, analyse
from spikecore_chips.quant._analysis import FLAG, SIGNIFICAND
from spikecore_chips.quant._fixed import fixed_point_of
from spikecore_chips.quant._layers import quantised_weight
from spikecore_chips.quant._rewriting import ROUNDINGS

_LINEARS = (nn.Linear,)
_CONVS = (nn.Conv1d, nn.Conv2d)
#: Packages whose layers differ from torch's by the weight alone, which they quantise.
_QUANTISERS = ("torch.ao.nn.qat.", "brevitas.nn.")
_POOLS = {
    nn.AvgPool2d: "mean",
    CompactAvgPool2d: "mean",
    nn.AdaptiveAvgPool2d: "mean",
    nn.MaxPool2d: "max",
    CompactMaxPool2d: "max",
    SumPool2d: "sum",
}
_KNOWN = (
    "Linear, Conv1d, Conv2d, AvgPool2d, MaxPool2d, SumPool2d, AdaptiveAvgPool2d, Flatten, Delay, Recurrent, neurons"
)


class Slot(NamedTuple):
    """Memory that arrays use one after the other."""

    values: List[Value]

    @property
    def bytes(self) -> int:
        """Its size."""
        widest = max(BYTES[value.type] for value in self.values)
        return -(-max(BYTES[value.type] * value.count for value in self.values) // widest) * widest

    @property
    def alignment(self) -> int:
        """Alignment of its widest numbers."""
        return max(BYTES[value.type] for value in self.values)


class Built:
    """A network as parts in their order, with the memory of their arrays. ``fixed``: dtype of the arithmetic that the
    integers stand for; None for float32. ``channels_last``: channels of images lie side by side.
    """

    def __init__(
        self, step: Step, fixed: Optional[torch.dtype], inputs: Optional[Format], channels_last: bool = True
    ) -> None:
        self._fixed, self.is_fixed, self._channels_last = fixed, fixed is not None, channels_last
        self.parts: List[Part] = []
        self._values: Dict[str, Value] = {}
        #: From the user's input to integers; None where it is floats, or has to be on its grid.
        self.rounds: Optional[Callable[[Tensor], Tensor]] = None
        #: Description of the example, for messages.
        self.recorded = "an example's input"
        if inputs is None and fixed is not None:
            inputs = self._read_as(step)
        for each in step.operations:
            if each.what == "input":
                self.input = self._values[each.name] = Value("x", each.shape, inputs, place="x")
            elif each.what == "view":
                of = self._values[each.of[0]].root
                self._values[each.name] = Value(of.name, each.shape, of.format, of=of, innermost=of.innermost)
            else:
                self._values[each.name] = self._part(each, [self._values[name] for name in each.of])
        result = self._values[step.result].root
        if result.lasts or result is self.input or result.innermost > 1:
            result = self._add(Copy("result", result))
        self.output, result.place = result, "y"
        self.slots = self._divided()
        self.fields: List[Field] = sorted(self._fields(), key=lambda field: -BYTES[field.type])
        self._refuse_equal_names()

    def _read_as(self, step: Step) -> Optional[Format]:
        """The one format to which the readers of the network's input round it; None where none does.

        Where all round it alike, so does the caller, for them. Where one reads it as it is, it has to be on this grid.
        Several formats are refused: a number that is rounded twice may be another one.
        """
        views, readers = {"x"}, []
        for each in step.operations:
            if each.what == "view" and each.of[0] in views:
                views.add(each.name)
            else:
                readers += [(each.title, *_reading(each.what, k)) for k, name in enumerate(each.of) if name in views]
        readers += [("what the network returns", None, "")] if step.result in views else []
        first, format, how = next((reader for reader in readers if reader[1] is not None), ("", None, ""))
        for title, other, rounding in readers:
            if other is not None and other != format:
                raise Refused(
                    f"{first} reads the input of the network as {format}, {title} as {other}; say which exact numbers "
                    "it is given, inputs=sc.quant.Format(frac, low, high), and each rounds these itself"
                )
            if format is not None and (other, rounding) != (format, how):
                self.recorded = f"the example, which {first} rounds to {format} and {title} reads as it is,"
                how = ""
        self.rounds = _rounding(format, how) if format is not None and how else None
        return format

    # -- parts

    def _add(self, part: Part) -> Value:
        if self._fixed is not None and part.output.format is None:
            raise Refused(f"{part.title} gives floats, and fixed point has none; call sc.quant.prepare(net) before")
        if self._fixed is not None and part.output.type == "":
            raise Refused(f"{part.title} gives numbers of more than 64 bits")
        if self._fixed is not None and part.output.bits > SIGNIFICAND[self._fixed]:
            raise Refused(
                f"{part.title}: its sums need {part.output.bits} bits, and {str(self._fixed)[6:]} holds "
                f"{SIGNIFICAND[self._fixed]}, so that PyTorch rounds them; give weights or inputs fewer bits, or "
                "prepare with dtype=torch.float64"
            )
        self.parts.append(part)
        return part.output

    def _part(self, operation: Operation, of: Sequence[Value]) -> Value:
        name, title, module, fixed = operation.name, operation.title, operation.what, self._fixed
        if fixed is not None and any(value.format is None for value in of):
            raise Refused(
                f"{title} reads floats; sc.quant.prepare(net, x) rounds what layers read, or say what the input is, "
                "inputs=sc.quant.Format(0, 0, 1) for spikes",
                in_c=", or export floats, dtype='float32'",
            )
        of = self._laid(operation, of)
        if module == "sum":
            return self._add(Sum(name, title, of, fixed))
        if fixed is None and (rounds_input(module) or fixed_point_of(module) is not None):
            raise Refused(f"{title} rounds to fixed point, and C of dtype='float32' does not; give dtype='fixed'")
        value = self._layer(operation, [self._on_grid(operation, of[0]), *of[1:]])
        grid: Any = module._modules.get("output_format")
        if fixed is None or grid is None or grid.format.holds(value.format):
            return value
        return self._add(Round(f"{name}_rounded", f"the rounding behind {title}", value, grid.format))

    def _laid(self, operation: Operation, of: Sequence[Value]) -> Sequence[Value]:
        """Inputs of an operation, in the order of their shape where it does not read them as they lie."""
        module, x = operation.what, of[0]
        kind = None if module == "sum" else _kind(module)
        if module == "sum" or calls_as(module, Neuron):
            fits = len({value.innermost for value in of}) == 1
        elif kind in _CONVS or kind in _POOLS:
            fits = x.innermost == x.shape[0]
        else:
            fits = kind in _LINEARS and len(x.shape) == 1
        names = [f"{operation.name}_read{k or ''}" for k in range(len(of))]
        return [v if fits or v.innermost == 1 else self._add(Copy(n, v)) for n, v in zip(names, of)]

    def _on_grid(self, operation: Operation, x: Value) -> Value:
        """First input of a module, rounded where it has an ``input_format``. A value has one exact format, from which
        each of its readers rounds.
        """
        grid: Any = operation.what._modules.get("input_format")
        if not rounds_input(operation.what) or grid.format.holds(x.format):
            return x
        return self._add(Round(f"{operation.name}_in", f"the rounding before {operation.title}", x, grid.format))

    def _layer(self, operation: Operation, of: Sequence[Value]) -> Value:
        name, title, module, fixed = operation.name, operation.title, operation.what, self._fixed
        kind, shape = _kind(module), operation.shape
        if kind in _LINEARS:
            return self._add(Linear(name, title, of[0], module, fixed))
        if kind in _CONVS:
            images = self._add(Conv(name, title, of[0], module, shape, fixed))
            images.innermost = shape[0] if self._channels_last and images.count > shape[0] else 1
            return images
        if kind in _POOLS:
            window = _window(module, kind, title, of[0].shape, shape)
            return self._add(Pool(name, title, of[0], _POOLS[kind], window, shape, fixed))
        if isinstance(module, Recurrent):
            return self._recurrent(operation, module, of)
        if type(module) is Delay:
            return self._delay(name, title, module, of[0])
        if calls_as(module, Neuron):
            return self._add(self._cells(name, title, of, module, operation.output))
        own = " (a forward of its own)" if kind is None and isinstance(module, (*_LINEARS, *_CONVS, *_POOLS)) else ""
        raise Refused(
            f"{title}: there is no @language@ for {_named(module)}{own}; there is for {_KNOWN}, and sums of these"
        )

    def _delay(self, name: str, title: str, module: Any, x: Value) -> Value:
        if _kind(module.linear) not in _LINEARS:
            raise Refused(f"{title}: its layer is {_named(module.linear)}; give nn.Linear")
        if x.shape != (module.linear.in_features,):
            raise Refused(f"{title}: its input has samples of shape {list(x.shape)}; flatten them")
        delays = module.whole
        if not delays.ndim:
            delays = delays.expand(module.linear.in_features)
        if delays.ndim == 2:
            return self._add(DelayedLinear(name, title, x, module.linear, delays, self._fixed))
        late = self._add(DelayLine(f"{name}_late", title, x, delays))
        return self._add(Linear(name, f"the linear layer of {title}", late, module.linear, self._fixed))

    def _recurrent(self, operation: Operation, module: Any, of: Sequence[Value]) -> Value:
        neuron, name, title = module.neuron, operation.name, operation.title
        if len(of) != 1 or type(module) is not Recurrent or module.several or len(neuron.program.outputs) != 1:
            raise Refused(
                f"{title}: @language@ is written for sc.Recurrent around neurons of one input and one output, through "
                "one module"
            )
        if type(neuron).run is not Neuron.run:
            raise Refused(f"{title}: its neuron, {_named(neuron)}, has a run of its own; write that in dynamics")
        if _kind(module.linear) not in (*_LINEARS, Delay):
            raise Refused(f"{title}: its feedback is {_named(module.linear)}; give nn.Linear, or Delay of one")
        last = Value(name, operation.shape, self._output_of(neuron, title), lasts=True)
        if type(module.linear) is Delay:
            back = self._delay(f"{name}_back", f"the feedback of {title}", module.linear, last)
        else:
            back = self._add(Linear(f"{name}_back", f"the feedback of {title}", last, module.linear, self._fixed))
        total = self._add(Sum(f"{name}_total", f"input and feedback of {title}", [of[0], back], self._fixed))
        cells = self._cells(name, title, [total], neuron)
        cells.output = last
        return self._add(cells)

    def _cells(self, name: str, title: str, of: Sequence[Value], neuron: Any, output: int = 0) -> Cells:
        """Neurons. What has more bits than their arithmetic is rounded in front of them as they would round it."""
        how, inputs = fixed_point_of(neuron), [*of]
        for k, value in enumerate(of):
            wide = self._fixed is not None and value.format is not None and value.format.bits > SIGNIFICAND[self._fixed]
            if wide and how is not None:
                what = f"the rounding before {title}"
                inputs[k] = self._add(Round(f"{name}_in{k or ''}", what, value, how.format, how.rounding))
        return Cells(name, f"{title}, {of[0].count} neurons", inputs, neuron, self._fixed, output)

    def _output_of(self, neuron: Any, title: str) -> Optional[Format]:
        """The format of a neuron's output, whatever its input is."""
        if self._fixed is None:
            return FLAG if is_spike(neuron.program.outputs[0]) else None
        try:
            return analyse(neuron.program, {}, self._fixed)[neuron.program.outputs[0]]
        except ValueError as error:
            raise Refused(f"{title} is not fixed point: {error}") from error

    # -- memory

    def _divided(self) -> List[Slot]:
        """Memory for the arrays of a step: one that is not read any more leaves its memory to later ones."""
        last = {value.root: k for k, part in enumerate(self.parts) for value in part.inputs}
        slots: List[Slot] = []
        free: Dict[int, int] = {}
        for k, part in enumerate(self.parts):
            value = part.output
            if value.lasts:
                value.place = f"s->{value.name}"
            elif not value.place:
                fitting = [n for n in range(len(slots)) if free[n] < k]
                number = fitting[0] if fitting else len(slots)
                if not fitting:
                    slots.append(Slot([]))
                slots[number].values.append(value)
                free[number] = last.get(value, k)
                value.place = f"s->work{number}.{value.name}"
        return slots

    def _fields(self) -> List[Field]:
        lasting = [part.output for part in self.parts if part.output.lasts]
        arrays = [Field(value.type, value.name, value.count, format=value.format) for value in lasting]
        return [*arrays, *(field for part in self.parts for field in part.fields)]

    def _refuse_equal_names(self) -> None:
        """Refuse equal names: those of tables and fields begin with their module's, and may meet another module's."""
        members = [*(f"work{k}" for k in range(len(self.slots))), *(field.name for field in self.fields)]
        tables = [table.name for part in self.parts for table in part.tables]
        for names in ([part.name for part in self.parts], tables, members):
            for name in names:
                if names.count(name) > 1:
                    raise Refused(f"two parts of the program are named {name!r}; give a module or a state another name")

    @property
    def memory(self) -> int:
        """Bytes of the state."""
        size, alignment = 0, 1  # a struct of nothing has one byte
        for unit, step in [(s.bytes, s.alignment) for s in self.slots] + [
            (f.bytes, BYTES[f.type]) for f in self.fields
        ]:
            size = -(-size // step) * step + unit
            alignment = max(alignment, step)
        return max(1, -(-size // alignment) * alignment)

    @property
    def constants(self) -> int:
        """Bytes of all tables."""
        return sum(table.bytes for part in self.parts for table in part.tables)


def _kind(module: nn.Module) -> Any:
    """The class that says what a module computes; torch's layer for one that only quantises its weight."""
    of = parametrize.type_before_parametrizations(module).__module__
    if of.startswith(_QUANTISERS) and quantised_weight(module) is not None:
        return next(kind for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Module) if isinstance(module, kind))
    return layer_of(module)


def _named(module: nn.Module) -> str:
    return parametrize.type_before_parametrizations(module).__name__


def _reading(module: Any, k: int) -> Tuple[Optional[Format], str]:
    """The format in which input k of an operation is read, and how it is rounded to it: not at all where it is "".

    None where it is read as it is.
    """
    if module == "sum":
        return None, ""
    grid: Any = module._modules.get("input_format")
    if rounds_input(module) and k == 0:
        return grid.format, "round"
    how = fixed_point_of(module)
    if how is not None:
        return how.format, ROUNDINGS[how.rounding]
    grid = (module.linear if isinstance(module, Delay) else module)._modules.get("input_format")
    return (None, "") if grid is None else (grid.format, "")


def _rounding(format: Format, how: str) -> Callable[[Tensor], Tensor]:
    """The function that rounds numbers to the integers of a format."""
    return partial(_rounded, format=format, how=how)


def _rounded(x: Tensor, format: Format, how: str) -> Tensor:
    whole: Tensor = getattr(torch, how)((x.double() * 2.0 ** int(format.frac or 0)).clamp(format.low, format.high))
    return whole.long()


def _window(module: Any, kind: Any, title: str, shape: Sequence[int], to: Sequence[int]) -> Any:
    """Kernel, stride and padding of a pooling."""
    if len(shape) != 3:
        raise Refused(f"{title}: its input has samples of shape {list(shape)}; @language@ is written for [C, H, W]")
    if kind is nn.AdaptiveAvgPool2d:
        if any(have % want for have, want in zip(shape[1:], to[1:])):
            raise Refused(f"{title}: {list(shape[1:])} is not divided by {list(to[1:])}")
        kernel = (shape[1] // to[1], shape[2] // to[2])
        return kernel, kernel, (0, 0)
    kernel, padding = pair(module.kernel_size), pair(module.padding)
    stride = pair(module.stride or module.kernel_size)
    odd = getattr(module, "divisor_override", None) is not None or pair(getattr(module, "dilation", 1)) != (1, 1)
    uncounted = any(padding) and not getattr(module, "count_include_pad", True)
    if odd or uncounted or getattr(module, "ceil_mode", False):
        raise Refused(f"{title}: ceil_mode, dilation, divisor_override and count_include_pad=False have no @language@")
    return kernel, stride, padding


# -- texts


def source(built: Built, name: str) -> str:
    """``NAME.c``: tables, a function for each part, and those of the header."""
    functions = [line for part in built.parts for line in _function(part, name)]
    text = "\n".join(functions)
    helpers = [*_fixed.helpers(text), *c.helpers(text, "float", C11), *(_NIBBLE if "nibble(" in text else [])]
    floats = [*C11.no_contraction, ""] if "float" in text else []
    floats += ["#include <math.h>"] if _OF_MATH.search("\n".join([text, *helpers])) else []
    tables = [line for part in built.parts for table in part.tables for line in table.lines()]
    reset = [f"    for (int i = 0; i < {f.numbers}; ++i) s->{f.name}[i] = {f.rest};" for f in built.fields]
    calls = [f"    {part.function}({', '.join(_arguments(part))});" for part in built.parts]
    of_state = f"struct {name} *s"
    step = f"void {name}_step({of_state}, const {name}_in *x, {name}_out *y) {{"
    unused = ["    (void)s;"]
    blocks = [
        [f"/* {name}: see {name}.h. */"],
        [*floats, f'#include "{name}.h"'],
        helpers,
        tables,
        functions,
        [f"void {name}_reset({of_state}) {{", *(reset or unused), "}"],
        [step, *(calls if any("s->" in call or "(s" in call for call in calls) else [*unused, *calls]), "}"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


#: Names of math.h in a text: those of operations, and of what the helpers call.
_FUNCTIONS = {name for _, text in C_TEMPLATES.values() for name in re.findall(r"\b(\w+)\{f\}\(", text)} | {"fmod"}
_OF_MATH = re.compile(rf"\b(NAN|INFINITY|({'|'.join(sorted(_FUNCTIONS))})f\()")
_NIBBLE = [
    "static inline int32_t nibble(const uint8_t *w, const int k) {",
    "    const int32_t n = w[k >> 1] >> 4 * (k & 1) & 15;",
    "    return n - ((n & 8) << 1);",
    "}",
]


def _arguments(part: Part) -> List[str]:
    return [*(["s"] if part.fields else []), *(value.root.place for value in part.inputs), part.output.place]


def _function(part: Part, name: str) -> List[str]:
    arguments = [f"struct {name} *s"] if part.fields else []
    for k, value in enumerate(part.inputs):
        number = k if len(part.inputs) > 1 else ""
        arguments.append(f"const {value.type} *restrict in{number}")
    arguments.append(f"{part.output.type} *restrict out")
    head = f"static void {part.function}({', '.join(arguments)}) {{"
    return [f"/* {_comment(part.title)} */", head, *(f"    {line}" for line in part.lines()), "}", ""]


def _comment(text: str) -> str:
    """The text within a comment, which it neither ends nor begins again; no trigraph, no line that goes on."""
    return re.sub(r"(?<=[*/?])(?=[*/?])", " ", on_one_line(text))


def words_of_header(built: Built) -> Dict[str, str]:
    """Words for the places of the header."""
    fields = []
    for k, slot in enumerate(built.slots):
        arrays = "".join(f" {value.type} {value.name}[{value.count}];" for value in slot.values)
        fields.append(f"    union {{{arrays} }} work{k};")
    fields += [f"    {field.type} {field.name}[{field.numbers}];" for field in built.fields]
    return {
        "inputs": described(built.input),
        "outputs": described(built.output),
        "count_in": str(built.input.count),
        "count_out": str(built.output.count),
        "type_in": built.input.type,
        "type_out": built.output.type,
        "flash": str(built.constants),
        "memory": str(built.memory),
        "fields": "\n".join(fields or ["    uint8_t none;"]),
    }


#: Types of C -> those of arrays in JavaScript.
_OF_JAVASCRIPT = {
    "uint8_t": "Uint8Array",
    "int8_t": "Int8Array",
    "int16_t": "Int16Array",
    "int32_t": "Int32Array",
    "int64_t": "BigInt64Array",
    "float": "Float32Array",
}


def words_of_web(built: Built) -> Dict[str, str]:
    """Words for the places of ``web/``: arrays that a page sees, those of which a step leaves the numbers."""
    left = [slot.values[-1] for slot in built.slots]
    named: List[Any] = [("x", built.input), ("y", built.output), *((value.name, value) for value in left)]
    named += [(field.name, field) for field in built.fields]
    rows = []
    for name, each in named:
        count = each.numbers if isinstance(each, Field) else each.count
        scale = f"2 ** {-(each.format.frac or 0)}" if each.format is not None else "1"
        rows.append(f'  ["{name}", {_OF_JAVASCRIPT[each.type]}, {count}, {scale}],')
    places = [*(value.place.replace("s->", "s.") for value in left), *(f"s.{field.name}" for field in built.fields)]
    cases = [f"    case {k}: return {place};" for k, place in enumerate(places, 2)]
    return {"arrays": "\n".join(rows), "places": "\n".join(cases)}


def described(value: Value) -> str:
    """An array in words."""
    array = f"{value.count} numbers, a sample of shape {list(value.shape)}"
    if value.format is None:
        return f"{array}; floats"
    if value.is_spikes:
        return f"{array}; spikes, 0 or 1"
    return (
        f"{array}; integers n from {value.format.low} to {value.format.high}, for n * 2^{-int(value.format.frac or 0)}"
    )
