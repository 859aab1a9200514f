"""Networks as Verilog, for FPGAs: ``sc.export_verilog``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore import graph
from spikecore.lang.dialects import C_WORDS, VERILOG_WORDS
from spikecore.words import shown
from spikecore_chips._export_c._graph import Refused, Step, refusal, step_of
from spikecore_chips._export_c._program import Built, described
from spikecore_chips._export_c._written import check_arguments, filled, recorded, recorded_table, write
from spikecore_chips._export_verilog._circuit import bits_of
from spikecore_chips._export_verilog._core import Core, bits
from spikecore_chips._export_verilog._passes import hexed
from spikecore_chips.quant import Format

__all__ = ["VerilogProgram", "export_verilog"]

#: Names of the test's own modules and files.
_OF_TEST = ("recorded", "bench", "chip", "host", "hardware", "vcore")
#: Products at a clock at most.
_LANES = 256


@dataclass(frozen=True)
class VerilogProgram:
    """Result of :func:`export_verilog`."""

    folder: Path
    files: Tuple[str, ...]
    #: Bits of constants, and of memories that change while it runs.
    weights: int
    memory: int
    #: Formats of inputs and outputs.
    inputs: Optional[Format]
    outputs: Optional[Format]
    #: Stages of registers of the parts that go through an array, such as the neurons of a layer, by the part's name.
    latency: Mapping[str, int]
    #: Clocks of a step at most: as many as it takes if no number of an array is 0.
    clocks: int
    #: The name of the top module.
    name: str


def export_verilog(
    net: nn.Module,
    example: Tensor,
    folder: Union[str, Path],
    *,
    name: str = "network",
    lanes: int = 1,
    nanoseconds: Optional[float] = 10.0,
    inputs: Optional[Format] = None,
) -> VerilogProgram:
    """Write a network in fixed point as Verilog, which computes one time step at a pulse, with the bits of PyTorch.

    ::

        net = sc.quant.prepare(net, x)  # and train it; weights and states are integers now
        sc.export_verilog(net.eval(), x, "digits/", name="digits")

    The folder then has ``NAME.v``, in Verilog 2005 without cells of a vendor, and ``*.hex``: the numbers of its
    memories. Layers are computed one after the other: a product, or ``lanes`` of them, at a clock, for inputs that are
    not 0; then a neuron at a clock, with the states of a layer in one memory. A neuron's step is printed from its
    program, with its names, each integer as wide as its :class:`~spikecore_chips.quant.Format`.

    Beside it lie the samples of ``example``, what the network makes of them, and a ``Makefile``: ``make test`` compares
    them in Verilator by the same test as that of :func:`export_c`, ``make test-icarus`` in Icarus Verilog,
    ``make test-netlist`` as the cells of an iCE40; ``make synth`` and ``make synth-ice40`` say how many LUTs, memories
    and multipliers an ECP5-25k and a UP5K need, and at how many MHz they run.

    net: as for ``sc.export_c`` with ``dtype="fixed"``: linear layers, convolutions, pooling, neurons, ``Recurrent``,
        ``Delay`` and sums, in ``eval()``. It stays as it is.
    example: inputs over time, ``[T, B, ...]``: a few samples, each of which begins at rest.
    folder: where the files go; those of the same names are replaced.
    name: of the files and of the top module.
    lanes: number of products at a clock, a power of two. Layers whose weights each have a delay make one.
    nanoseconds: time between registers in a neuron's step, by a table of delays of an ECP5; None for no registers.
    inputs: the format of the network's input, ``sc.quant.Format(0, 0, 1)`` for spikes. None for a network that begins
        with a rounding of :func:`spikecore_chips.quant.prepare`, which says it.

    Returns a :class:`VerilogProgram`. Raises ValueError, before anything is written, for what cannot be exported,
    naming the layer and the way out; TypeError for what is no module.
    """
    caller = "sc.export_verilog"
    check_arguments(caller, net, example, name, "Verilog", C_WORDS | VERILOG_WORDS, _OF_TEST)
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= _LANES or lanes & (lanes - 1):
        raise ValueError(f"{caller}: lanes={shown(lanes)} must be a power of two from 1 to {_LANES}")
    is_number = isinstance(nanoseconds, (int, float)) and not isinstance(nanoseconds, bool)
    if nanoseconds is not None and not (is_number and 0 < nanoseconds < math.inf):
        raise ValueError(f"{caller}: nanoseconds={shown(nanoseconds)} must be a time above 0, or None for no registers")
    wide = any(p.dtype == torch.float64 for p in net.parameters()) or example.dtype == torch.float64
    try:
        step = step_of(net, example.detach().cpu())
        built = Built(step, torch.float64 if wide else torch.float32, inputs, channels_last=False)
        core = Core(name, built, lanes, nanoseconds)
        texts = _files(core, step, nanoseconds)
    except (Refused, graph.Refused) as error:
        raise ValueError(f"{caller}: {refusal(error, 'Verilog')}") from error
    write(folder, texts)
    formats = core.input.format, core.output.format
    return VerilogProgram(
        Path(folder), tuple(texts), core.weights, core.memory, *formats, core.latency, core.clocks, name
    )


#: Files around the core -> their templates, and whose they are.
_TEMPLATES = {
    "Makefile": "Makefile",
    **{f"test/{file}": file for file in ("bench.v", "hardware.cpp", "chip.v")},
}
_OF_C = ("recorded.h", "recorded.c", "host.c")


def _files(core: Core, step: Step, nanoseconds: Optional[float]) -> Dict[str, str]:
    """All files: path -> text."""
    built, x, y, name = core.built, core.input, core.output, core.name
    given = recorded(built.recorded, x, step.inputs, built.rounds)
    made = recorded("an example's output", y, step.outputs)
    samples, steps = step.inputs.shape[:2]
    words = {
        "name": name,
        "NAME": name.upper(),
        "samples": str(samples),
        "steps": str(steps),
        "all_steps": str(samples * steps),
        "allowed": "0",
        "compare": "return a != b;",
        "tables": "\n".join(
            line
            for table in (recorded_table("inputs", x, given), recorded_table("outputs", y, made))
            for line in table.lines()
        ),
        "zeros": str(int(core.needs_zeros)),
        "clocks": str(core.clocks),
        "mhz": str(round(1000 / (nanoseconds or 40.0))),
        "mask_in": f"0x{(1 << bits(x)) - 1:x}ull",
    }
    for side, value in (("in", x), ("out", y)):
        words[f"{side}puts"] = described(value)
        words[f"count_{side}"], words[f"type_{side}"] = str(value.count), value.type
        words[f"bits_{side}"], words[f"place_{side}"] = str(bits(value)), str(bits_of(value.count))
    texts = {f"{name}.v": "\n".join(core.lines) + "\n" + filled(__name__, "memories.v", words), **core.files}
    texts[f"{name}.h"] = filled(__name__, "hardware.h", words)
    for file, numbers, value in (("inputs", given, x), ("outputs", made, y)):
        texts[f"test/{file}.hex"] = hexed([[n] for n in numbers.flatten().tolist()], [bits(value)])
    texts.update({file: filled(__name__, template, words) for file, template in _TEMPLATES.items()})
    texts.update({f"test/{file}": filled("spikecore_chips._export_c", file, words) for file in _OF_C})
    return texts
