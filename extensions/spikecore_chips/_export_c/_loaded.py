"""Exported programs in this process: the C is compiled once and called through ctypes."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from spikecore.kernels.shared_library import NATIVE, OPTIONS, library
from spikecore.words import a_kind, shown
from spikecore_chips._export_c._values import BYTES, type_of
from spikecore_chips.quant import Format
from spikecore_chips.quant._analysis import SIGNIFICAND

if TYPE_CHECKING:
    from spikecore_chips._export_c import CProgram

__all__ = ["LoadedProgram"]

#: Steps of some samples out of a batch; numbers of one step and one sample lie together. Of integers, ``rows`` has the
#: outputs of a step of each sample. And how many inputs are beyond their format.
_RUN = """#include "{name}.h"

void {name}_run(struct {name} *s, const {name}_in *x, {real} *y, {name}_out *rows, int64_t steps, int64_t batch,
                int64_t first, int64_t last) {{
    for (int64_t b = first; b < last; ++b)
        for (int64_t t = 0; t < steps; ++t) {{
            {real} *to = y + (t * batch + b) * {name_}_OUTPUTS;
            {name}_out *out = {out};
            {name}_step(s + b, x + (t * batch + b) * {name_}_INPUTS, out);
            {scaled}
        }}
}}

int64_t {name}_beyond(const {name}_in *x, int64_t count) {{
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) wrong += !(x[i] >= {low} && x[i] <= {high});
    return wrong;
}}

void {name}_rest(struct {name} *s, int64_t batch) {{
    for (int64_t b = 0; b < batch; ++b) {name}_reset(s + b);
}}
"""
_DTYPES = {
    "float": torch.float32,
    "uint8_t": torch.uint8,
    "int8_t": torch.int8,
    "int16_t": torch.int16,
    "int32_t": torch.int32,
    "int64_t": torch.int64,
}
_OPTIONS = (*OPTIONS, "-O3", NATIVE)  # the last one of -O2 and -O3 counts


class Side:
    """The input or the output of a program: the shape of a step, and the integers that stand for its numbers."""

    def __init__(
        self, shape: Tuple[int, ...], format: Optional[Format], rounds: Optional[Callable[[Tensor], Tensor]] = None
    ) -> None:
        self.shape, self.format, self._rounds = shape, format, rounds
        #: The type of its numbers in C.
        self.dtype = _DTYPES[type_of(format)]
        #: True if a format has all numbers of its type.
        self.fills = format is None or format.high - format.low == 2 ** (8 * BYTES[type_of(format)]) - 1
        self.frac = 0 if format is None else int(format.frac or 0)
        #: The type of its numbers as floats.
        self.floats = torch.float32 if format is None or format.bits <= SIGNIFICAND[torch.float32] else torch.float64

    def integers(self, x: Tensor, owner: str) -> Tensor:
        """Floats as the program has them."""
        if self.format is None:
            raise TypeError(f"{owner}: the input is {x.dtype}, and the program computes in float32; give that")
        if not x.is_floating_point() and x.dtype != torch.bool:
            raise TypeError(f"{owner}: the input is {x.dtype}; give floats, or the program's integers, {self.dtype}")
        if self._rounds is not None:
            return self._rounds(x).to(self.dtype)
        scaled = x.double() * 2.0**self.frac
        if bool(((scaled != scaled.round()) | (scaled < self.format.low) | (scaled > self.format.high)).any()):
            raise ValueError(
                f"{owner}: the input has numbers that are none of {self.format}; give these, or {self.dtype}"
            )
        return scaled.to(self.dtype)


class LoadedProgram:
    """A program of :func:`spikecore.export_c` that Python calls, with its state::

        step = program.load()
        for x in stream:  # one step [*in] at a time
            y = step(x)
        step.reset()
        ys = step.run(xs)  # [T, *in] -> [T, *out], with the loop over the steps in C

    With ``batch=B`` there are B states: ``step`` takes ``[B, *in]`` and ``run`` ``[T, B, *in]``. Inputs are tensors on
    the CPU or NumPy arrays, and so are outputs. A contiguous input of the program's own type is read where it lies:
    float32, or the integers of a fixed-point program. Finite floats for a fixed-point program are rounded as the
    network rounds its input; where it rounds none, they must be numbers of ``program.inputs``. Outputs are floats;
    they have the bits of the network in PyTorch where :func:`spikecore.export_c` promises them. There are no gradients.

    The state begins at rest, and each call goes on from the last one. Two threads may not call one object at a time.
    """

    def __init__(self, program: CProgram, batch: Optional[int], threads: int) -> None:
        for word, value, least in (("batch", batch, 1), ("threads", threads, 1)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"program.load: {word}={shown(value)} must be a whole number, 1 or more")
        self._input, self._output = program.sides
        self._leading = () if batch is None else (batch,)
        name = program.name
        self._batch, self._name = batch or 1, name
        self._threads = min(threads, self._batch)
        x, y = self._input, self._output
        words = {"out": "to", "scaled": ""}
        if y.format is not None:
            scaled = f"for (int i = 0; i < {name.upper()}_OUTPUTS; ++i) to[i] = out[i] * 0x1p{-y.frac};"
            words = {"out": f"rows + b * {name.upper()}_OUTPUTS", "scaled": scaled}
        low, high = (0, 0) if x.format is None else (int(x.format.low), int(x.format.high))
        real = "float" if y.floats == torch.float32 else "double"
        run = _RUN.format(name=name, name_=name.upper(), real=real, low=low, high=high, **words)
        self._library = made = library(name, {**program.sources, f"{name}_run.c": run}, _OPTIONS)
        self._run, self._rest, self._beyond = (made[f"{name}_{what}"] for what in ("run", "rest", "beyond"))
        self._run.restype = self._rest.restype = None
        self._run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 4
        self._rest.argtypes = self._beyond.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._rows = torch.empty((self._batch, *y.shape), dtype=y.dtype)
        #: What leads in the shape of the last input, that shape, and an output as the last one.
        self._leads: Optional[Tuple[int, ...]] = None
        self._shape: Tuple[int, ...] = ()
        self._like = self._rows
        self._state = np.zeros((self._batch, program.memory), np.uint8)
        self._place = self._state.ctypes.data
        self.reset()

    def reset(self) -> None:
        """Go to rest."""
        self._rest(self._place, self._batch)

    def __call__(self, x: Any) -> Any:
        """One step, ``[*in] -> [*out]``, or with a batch ``[B, *in] -> [B, *out]``."""
        return self._called(x, self._leading, 1)

    def run(self, x: Any) -> Any:
        """All steps of ``[T, *in]`` or ``[T, B, *in]``, on from the state."""
        steps = len(x) if isinstance(x, (Tensor, np.ndarray)) and x.ndim else 0
        return self._called(x, (steps, *self._leading), steps)

    def _called(self, x: Any, leading: Tuple[int, ...], steps: int) -> Any:
        # torch takes neither an array that nobody may write to, nor one that runs backwards
        values = torch.from_numpy(np.require(x, requirements=("C", "W"))) if isinstance(x, np.ndarray) else x
        if not isinstance(values, Tensor):
            raise TypeError(f"{self._name}: the input is {a_kind(x)}; give a tensor on the CPU or a NumPy array")
        if leading != self._leads or values.shape != self._shape:
            self._begin(values, leading)
        if not values.is_cpu:
            raise ValueError(f"{self._name}: the input is on {values.device}; C runs on the CPU: x.cpu()")
        if values.dtype != self._input.dtype:
            values = self._input.integers(values, self._name)
        read = values if values.is_contiguous() and not values.is_neg() else values.resolve_neg().contiguous()
        if not self._input.fills and self._beyond(read.data_ptr(), read.numel()):
            raise ValueError(f"{self._name}: the input has integers beyond {self._input.format}")
        out = torch.empty_like(self._like)
        call, pointers = self._run, (self._place, read.data_ptr(), out.data_ptr(), self._rows.data_ptr())
        if self._threads == 1:
            call(*pointers, steps, self._batch, 0, self._batch)
        else:
            ends = [self._batch * k // self._threads for k in range(self._threads + 1)]
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(partial(call, *pointers, steps, self._batch), ends, ends[1:]))
        return out.numpy() if isinstance(x, np.ndarray) else out

    def _begin(self, x: Tensor, leading: Tuple[int, ...]) -> None:
        """Check the shape of an input, and keep it for the next one."""
        shape = (*leading, *self._input.shape)
        if x.shape != shape:
            raise ValueError(
                f"{self._name}: the input has shape {list(x.shape)} and must have {[*shape]}; a step has no time, "
                "run(x) takes [T, ...], and program.load(batch=B) has B samples in a step"
            )
        self._leads, self._shape = leading, shape
        self._like = torch.empty((*leading, *self._output.shape), dtype=self._output.floats, device="cpu")

    def __reduce__(self) -> Any:
        raise TypeError(f"{self._name}: a loaded program has memory of this process; load it again there")
