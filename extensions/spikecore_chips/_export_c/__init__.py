"""Networks as C11 without Python: ``sc.export_c``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from spikecore import graph
from spikecore.lang.render import C_WORDS
from spikecore_chips._export_c._graph import Refused, Step, refusal, step_of
from spikecore_chips._export_c._loaded import LoadedProgram, Side
from spikecore_chips._export_c._program import Built, source, words_of_header, words_of_web
from spikecore_chips._export_c._written import check_arguments, filled, recorded, recorded_table, write
from spikecore_chips.quant import Format

__all__ = ["CProgram", "LoadedProgram", "export_c"]

_DTYPES = ("fixed", "float32")
#: The test's own files, and that of the web.
_OF_TEST = ("recorded", "web")


@dataclass(frozen=True)
class CProgram:
    """Result of :func:`export_c`."""

    folder: Path
    files: Tuple[str, ...]
    #: Bytes of tables in flash, beside the code.
    flash: int
    #: Bytes of the state, all the memory that a step needs beside the stack.
    memory: int
    #: Formats of inputs and outputs; None for floats.
    inputs: Optional[Format]
    outputs: Optional[Format]
    #: The name of the struct and of the functions.
    name: str
    #: The texts of the program's own files, which :meth:`load` compiles.
    sources: Mapping[str, str] = field(repr=False, compare=False)
    sides: Tuple[Side, Side] = field(repr=False, compare=False)

    def load(self, *, batch: Optional[int] = None, threads: int = 1) -> LoadedProgram:
        """Compile the program for this machine, once, and return what calls it.

        batch: number of states, for inputs ``[batch, *in]`` of a step; None for one state, and inputs ``[*in]``.
        threads: number of threads that share a batch.

        The C compiler is ``$CC``, else ``cc``; the library is kept in the folder of compiled kernels. Raises
        RuntimeError where there is no compiler or it refuses the program.
        """
        return LoadedProgram(self, batch, threads)


def export_c(
    net: nn.Module,
    example: Tensor,
    folder: Union[str, Path],
    *,
    name: str = "network",
    dtype: str = "fixed",
    inputs: Optional[Format] = None,
) -> CProgram:
    """Write a network as a program in C11, which computes one time step at a call and needs no Python.

    ::

        net = sc.quant.prepare(net, x)  # and train it; weights and states are integers now
        sc.export_c(net.eval(), x, "digits/", name="digits")

    The folder then has ``NAME.h`` and ``NAME.c``: tables of constants, a ``struct NAME`` for the state, and ::

        void NAME_reset(struct NAME *s);
        void NAME_step(struct NAME *s, const NAME_in *x, NAME_out *y);

    They allocate nothing, and need no library beyond ``stdint.h``, and ``math.h`` where a float32 network calls one of
    its functions. A neuron's step is printed from its program, with its names. Layers skip inputs that are 0. Beside
    the program lie the samples of ``example``, what the network makes of them, and a ``Makefile``: ``make test``
    compares them on this machine, ``make test-cortex-m4`` on an emulated Cortex-M4, ``make test-wasm`` as WebAssembly;
    ``make web`` compiles ``web/NAME.wasm``, which ``web/NAME.mjs`` calls in a page.

    With ``dtype="fixed"`` all numbers are integers, and outputs are those of the network in PyTorch, bit for bit: each
    value is a multiple of a power of two, and the export fails where one is not, or where the network's floats could
    not hold it. With ``"float32"`` neurons of ``+ - * /`` have the same bits for the same input; the sums of a layer
    are rounded in another order than torch's.

    net: linear layers, convolutions of one and two dimensions, pooling, batch normalisation behind one of these,
        neurons of one output, ``Recurrent``, ``Delay``, sums and flattening, in ``eval()``; whatever
        :func:`spikecore.set_step` can have take single steps. It stays as it is.
    example: inputs over time, ``[T, B, ...]``: a few samples, each of which begins at rest. Of a network that makes
        time itself, repeat the input: ``x.expand(T, *x.shape)``.
    folder: where the files go; those of the same names are replaced.
    name: a name that C can have, of the files, the struct and the functions.
    dtype: ``"fixed"`` or ``"float32"``.
    inputs: the format of the network's input, ``sc.quant.Format(0, 0, 1)`` for spikes. None for floats, or for a
        network that begins with a rounding of :func:`spikecore_chips.quant.prepare`, which says it.

    Returns a :class:`CProgram` with the files, and the bytes that tables and state take. Raises ValueError, before
    anything is written, for what cannot be exported, naming the layer and the way out; TypeError for what is no module.
    """
    check_arguments("sc.export_c", net, example, name, "C", C_WORDS, _OF_TEST)
    if dtype not in _DTYPES:
        raise ValueError(f"sc.export_c: dtype={dtype!r} must be 'fixed' or 'float32'")
    wide = any(p.dtype == torch.float64 for p in net.parameters()) or example.dtype == torch.float64
    arithmetic = torch.float64 if wide else torch.float32
    try:
        step = step_of(net, example.detach().cpu())
        built = Built(step, arithmetic if dtype == "fixed" else None, inputs)
        texts = _files(built, step, name)
    except (Refused, graph.Refused) as error:
        raise ValueError(f"sc.export_c: {refusal(error, 'C')}") from error
    write(folder, texts)
    shapes, formats = (step.inputs.shape[2:], step.outputs.shape[2:]), (built.input.format, built.output.format)
    sides = Side(shapes[0], formats[0], built.rounds), Side(shapes[1], formats[1])
    sources = {file: texts[file] for file in (f"{name}.h", f"{name}.c")}
    return CProgram(Path(folder), tuple(texts), built.constants, built.memory, *formats, name, sources, sides)


#: Files around the program -> their templates.
_TEMPLATES = {
    "Makefile": "Makefile",
    **{
        f"test/{file}": file
        for file in ("recorded.h", "recorded.c", "host.c", "cortex_m4.c", "cortex_m4.ld", "wasm.mjs")
    },
}
_COMPARED = {
    True: "return a != b;",
    False: "const float apart = a < b ? b - a : a - b;\n    return !(apart <= 1e-4f * (1 + (b < 0 ? -b : b)));",
}


def _files(built: Built, step: Step, name: str) -> Dict[str, str]:
    """All files: path -> text."""
    fixed, count = built.is_fixed, step.outputs.numel()
    tables = [
        recorded_table("inputs", built.input, recorded(built.recorded, built.input, step.inputs, built.rounds)),
        recorded_table("outputs", built.output, recorded("an example's output", built.output, step.outputs)),
    ]
    words = {
        "name": name,
        "NAME": name.upper(),
        "steps": str(step.inputs.shape[1]),
        "all_steps": str(step.inputs.shape[0] * step.inputs.shape[1]),
        # sums of floats depend on their order, and a spike on the last bit of a sum
        "allowed": str(0 if fixed else count // 100),
        "tables": "\n".join(line for table in tables for line in table.lines()),
        "compare": _COMPARED[built.output.format is not None],
        "float": "-mfloat-abi=soft" if fixed else "-mfloat-abi=hard -mfpu=fpv4-sp-d16",
    }
    words.update({**words_of_header(built), **words_of_web(built)})
    templates = {**_TEMPLATES, f"web/{name}.mjs": "web.mjs", "web/web.c": "web.c"}
    around = {file: filled(__name__, template, words) for file, template in templates.items()}
    return {f"{name}.h": filled(__name__, "program.h", words), f"{name}.c": source(built, name), **around}
