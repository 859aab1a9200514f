"""The report of a network in fixed point: its formats, the bits that values need, and what saturates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spikecore.core.neuron import Neuron
from spikecore.core.parameters import current
from spikecore.inspect.record import neuron_of
from spikecore.lang.render import on_one_line
from spikecore.neurons import Recurrent
from spikecore.words import a_kind
from spikecore_chips.quant._analysis import analyse
from spikecore_chips.quant._calibration import Inputs, Seen, evaluating, first_run, inputs_of
from spikecore_chips.quant._fixed import fixed_point_of
from spikecore_chips.quant._layers import OnGrid, bits_of, integers_of
from spikecore_chips.quant._prepare import Weighted, input_format, prove, weighted


@dataclass(frozen=True)
class Row:
    """One layer or neuron of a report.

    kind: "weights" or "neuron". format: of a layer's weights, or of a neuron's inputs and states. bits: those that the
    largest value needs. saturated: the part of weights at an end of the range; of a neuron, the part of values beyond
    it, where most are: of an input, a factor such as ``x - v``, a next state or an output.
    """

    name: str
    kind: str
    format: str
    reads: str
    bits: int
    saturated: float


@dataclass(frozen=True)
class Report:
    """Result of :func:`report`: a row for each layer and neuron, and agreement with the float network."""

    rows: Tuple[Row, ...]
    #: The part of outputs whose highest entry is that of ``beside``; None without one.
    agreement: Optional[float]

    def __str__(self) -> str:
        cells = [("name", "kind", "format", "reads", "bits", "saturated")]
        cells += [(r.name, r.kind, r.format, r.reads, str(r.bits), f"{r.saturated:.2%}") for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells)]
        line = "  ".join(f"{{:{side}{width}}}" for side, width in zip("<<<<>>", widths))
        lines = [on_one_line(line.format(*row)) for row in cells]
        agreement = [] if self.agreement is None else [f"agreement {self.agreement:.2%}"]
        return "\n".join([*lines, *agreement])


def report(net: nn.Module, x: Inputs, beside: Optional[nn.Module] = None) -> Report:
    """The formats of a prepared network, the bits that its largest values need, and how much saturates on inputs x.

    beside: the network in floats; the report then has the part of its decisions, the highest of the last dimension
    (summed over time, where the outputs have it), that the prepared network makes too.

    Raises TypeError and ValueError for a wrong x, ValueError for a network that was not prepared and for a parameter of
    a neuron that has no grid, since it was changed in place, and :class:`Inexact` where weights that were trained since
    need more bits than the arithmetic holds.
    """
    _refuse_unprepared(net)
    dtypes: List[Any] = [how.dtype for how in map(fixed_point_of, net.modules()) if how is not None]
    dtypes += [value.dtype for value in net.parameters()]
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    run = first_run("sc.quant.report", net, x, dtype)
    rows = [_weights_row(place, most) for place, most in zip(weighted(net), prove(net, run, dtype))]
    for name, module in net.named_modules():
        if isinstance(module, (Neuron, Recurrent)) and module in run.seen:
            neuron = neuron_of(module)
            if _is_fixed(neuron):
                rows.append(_neuron_row(name, neuron, run.seen[module]))
    if beside is None:
        return Report(tuple(rows), None)
    with evaluating(beside), torch.no_grad():
        expected = beside(*inputs_of(x, next((value.dtype for value in beside.parameters()), torch.float32)))
    return Report(tuple(rows), float((_decided(run.output) == _decided(expected)).double().mean()))


def _refuse_unprepared(net: nn.Module) -> None:
    floats = [(place.name, place.layer) for place in weighted(net) if input_format(place) is None]
    floats += [(name, part) for name, part in net.named_modules() if isinstance(part, Neuron) and not _is_fixed(part)]
    if floats:
        name, module = floats[0]
        raise ValueError(
            f"sc.quant.report: {name or 'net'}, a {type(module).__name__}, computes in floats: the network was not "
            "prepared. Report on what sc.quant.prepare(net, x) returns"
        )


def _is_fixed(module: nn.Module) -> bool:
    return fixed_point_of(module) is not None


def _decided(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"sc.quant.report: beside= compares what networks return, a tensor, and this is {a_kind(outputs)}; give "
            "modules around both that return the tensor that decides"
        )
    return (outputs.double().sum(0) if outputs.ndim > 2 else outputs).argmax(-1)


def _weights_row(place: Weighted, most: int) -> Row:
    integers, fracs = integers_of(place.layer, 8)
    grid = place.layer.parametrizations.weight[-1] if parametrize.is_parametrized(place.layer, "weight") else None  # type: ignore[union-attr,index]
    saturated = 0.0
    if isinstance(grid, OnGrid):
        exact = grid.integers(place.layer.weight)  # type: ignore[arg-type]  # a tensor
        saturated = float(((exact == grid.low) | (exact == grid.high)).double().mean())
    bits = bits_of(integers)
    text = f"int{bits} / 2^{min(fracs)}" + (f"..{max(fracs)}" if len(set(fracs)) > 1 else "")
    return Row(place.name, "weights", text, str(input_format(place)), most.bit_length(), saturated)


def _neuron_row(name: str, neuron: Any, seen: Seen) -> Row:
    how: Any = fixed_point_of(neuron)
    low, high = how.format.ends
    learnt, values = neuron._parameters, current(neuron)
    fault = how.outside({name: value for name, value in values.items() if name not in learnt})
    if fault:
        raise ValueError(f"sc.quant.report: {name}: {fault}: it was changed in place. Set it, and it gets new ones")
    places = [torch.cat([value.double().flatten() for value in calls]) for calls in zip(*seen.saturating)]
    saturated = max([float(((place < low) | (place > high)).double().mean()) for place in places], default=0.0)
    known = analyse(neuron.program, dtype=how.dtype)
    bits = max(value.bits for node, value in known.items() if not value.is_float and node.args)
    return Row(name, "neuron", f"int{how.word} / 2^{how.frac}", ", ".join(neuron.states), bits, saturated)
