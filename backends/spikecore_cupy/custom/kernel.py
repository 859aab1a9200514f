"""What both kinds of kernels share: a declaration, its text, and calls."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendUnavailable
from spikecore.lang import Program
from spikecore_cupy.custom import given as checks
from spikecore_cupy.custom.core import Body, Core, core_of_program, core_of_text, recorded
from spikecore_cupy.custom.declared import Declared, Typed, checked_name, of_role
from spikecore_cupy.custom.text import CustomWriter, Printed
from spikecore_cupy.device import Kernel, reason, shared
from spikecore_cupy.printer import TYPES


class CustomKernel:
    """Base class. A subclass says what its body may read beside its values, and writes the lines around it."""

    #: What compiles and launches a kernel. Any other class than ``Kernel`` is for tensors on the CPU.
    kernel: Callable[..., Any] = Kernel

    #: Whether inputs and outputs have time, their first dimension.
    timed = False
    #: Bytes of a tensor that a thread reads at once.
    access = 8
    #: What a C text may read beside its values.
    places: Tuple[str, ...] = ("i", "N")

    def __init__(self, name: str, values: Sequence[Declared], body: Body, header: str) -> None:
        self.name = checked_name("kernel", name)
        self.values = tuple(values)
        names = [value.name for value in values]
        twice = sorted({repr(n) for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"kernel {name}: {', '.join(twice)} is declared twice; every value has its own name")
        self._inputs, self.results = of_role(values, "input"), of_role(values, "output", "end")
        self._firsts = {value.name: value.first for value in values if value.role == "state"}
        if not self.results:
            raise ValueError(f"kernel {name} gives nothing: declare an output")
        if not isinstance(body, str) and not callable(body):
            raise TypeError(f"kernel {name}: body must be a C text or a function of expressions, not {body!r}")
        self.body, self.header = body, header
        #: The body as a program, where it is a function of expressions.
        self.program: Optional[Program] = None if isinstance(body, str) else recorded(name, body, values, self.timed)
        self._results: Any = namedtuple("Results", self.results) if len(self.results) > 1 else None
        self._compiled: Dict[Tuple[torch.dtype, int], Tuple[Any, Printed]] = {}
        self._typed: Dict[torch.dtype, Typed] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}({', '.join(value.name for value in self.values)})>"

    def __deepcopy__(self, memo: Any) -> CustomKernel:
        # a kernel never changes
        return self

    # -- text

    @property
    def source(self) -> str:
        """The CUDA C++ for float32 tensors, where a declaration leaves the dtype to the call."""
        return self.source_for(torch.float32)

    def source_for(self, dtype: torch.dtype) -> str:
        """The CUDA C++ for tensors of a dtype, where a declaration leaves it to the call.

        With the logger ``spikecore`` at DEBUG, comments say which part is which.
        """
        if dtype not in TYPES:
            raise ValueError(f"kernel {self.name}: dtype={dtype!r}; right are {', '.join(map(str, TYPES))}")
        typed = Typed(self.values, dtype, self.access)
        return self._printed(typed, typed.width).text

    def _printed(self, typed: Typed, width: int) -> Printed:
        # without time, an output may be an input itself, so that pointers cannot be promised to share no memory
        writer = CustomWriter(self.values, typed, self._core(typed), width, restrict=self.timed)
        tensors = of_role(self.values, "input", "param", "output")
        words = sorted({str(typed.dtypes[name])[6:] for name in tensors})
        title = [f"{self.name}: {', '.join(words)} in memory, {str(typed.compute)[6:]} arithmetic."]
        if self.program is not None:
            title += ["", *str(self.program).splitlines()]
        return writer.finished(self.name, title, self.header, self._lines(writer))

    def _core(self, typed: Typed) -> Core:
        if self.program is not None:
            return core_of_program(self.program, self.values, typed)
        return core_of_text(str(self.body), self.values, typed, self.places)

    def _lines(self, writer: CustomWriter) -> List[str]:
        """The lines of the kernel."""
        raise NotImplementedError

    # -- calls

    def __call__(self, **given: Any) -> Any:
        """Launch on torch's current stream. Gives the outputs, then the states asked for: one tensor, or a named tuple.

        What is given by the name of a result is filled; other results are new tensors.
        """
        checks.check_names(self.name, self.values, given)
        sizes = checks.sizes_of(self.name, self.values, given, self.timed, self._device())
        dtype = checks.dtype_of(self.name, self.values, given)
        typed = self._typed.get(dtype) or self._typed.setdefault(dtype, Typed(self.values, dtype, self.access))
        checks.check_tensors(self.name, self.values, given, typed, sizes)
        tensors, numbers = checks.split(given)
        filled = [name for name in self.results if name in tensors]
        if filled:
            checks.check_apart(self.name, tensors, filled, in_place=not self.timed)
        ends = of_role(self.values, "end")
        for name in self.results:
            if name not in tensors:
                tensors[name] = sizes.empty(typed.dtypes[name], one_step=name in ends)
        # CUDA refuses to launch no block
        if sizes.neurons:
            self._launch(dtype, typed, sizes, tensors, numbers)
        found = [tensors[name] for name in self.results]
        return self._results(*found) if self._results else found[0]

    def _device(self) -> str:
        return "cuda" if isinstance(self.kernel, type) and issubclass(self.kernel, Kernel) else "cpu"

    def _launch(
        self,
        dtype: torch.dtype,
        typed: Typed,
        sizes: checks.Sizes,
        tensors: Dict[str, Tensor],
        numbers: Dict[str, Any],
    ) -> None:
        width = self._fitting(typed, sizes, tensors)
        compiled, printed = self._compiled.get((dtype, width)) or self._compile(dtype, typed, width)
        counts: Dict[str, Any] = {"N": sizes.neurons, "T": sizes.steps}
        arguments: List[Any] = []
        for kind, name in printed.arguments:
            tensor = tensors.get(name)
            if kind == "pointer":
                arguments.append(tensor.data_ptr() if tensor is not None else 0)
            elif kind == "number":
                arguments.append(numbers.get(name, self._firsts.get(name)))
            elif tensor is not None:
                arguments.append(tensor.stride(0) if kind == "step" else int(tensor.shape == sizes.layout.shape))
            else:
                arguments.append(counts[kind])
        blocks = -(-sizes.neurons // (compiled.block * width))
        compiled(blocks, sizes.like.get_device(), arguments)

    def _compile(self, dtype: torch.dtype, typed: Typed, width: int) -> Tuple[Any, Printed]:
        why = reason() if self._device() == "cuda" else None
        if why:
            raise BackendUnavailable(f"kernel {self.name} cannot run: {why}")
        printed = self._printed(typed, width)
        found = shared(self.kernel, self.name, printed.text, printed.types), printed
        self._compiled[dtype, width] = found
        return found

    def _fitting(self, typed: Typed, sizes: checks.Sizes, tensors: Dict[str, Tensor]) -> int:
        """The widest vector access, in elements, that size, alignment and strides of these tensors allow."""
        # a power of two divides every one of some numbers where it divides their bits together
        width, stride_bits = typed.width, sizes.neurons
        if self.timed:
            for name in self._inputs:
                stride_bits |= tensors[name].stride(0)
        packed = [tensors[name] for name in (*self._inputs, *self.results)]
        while width > 1 and (stride_bits % width or any(t.data_ptr() % (width * t.element_size()) for t in packed)):
            width //= 2
        return width
