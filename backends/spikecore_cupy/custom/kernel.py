"""Both kinds of kernels: the same function of every element, and the same step over time."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import BackendUnavailable
from spikecore.kernels.writing import indented
from spikecore.lang import Program
from spikecore_cupy.custom import declared as checks
from spikecore_cupy.custom.declared import Declared, Typed, checked_name, declared, of_role, states
from spikecore_cupy.custom.text import (
    Body,
    Core,
    CustomWriter,
    Printed,
    core_of_program,
    core_of_text,
    recorded,
    section,
)
from spikecore_cupy.device import Kernel, reason, shared
from spikecore_cupy.text import TYPES


class CustomKernel:
    """Base class. A subclass says what its body may read beside its values, and writes the lines around it."""

    #: Class that compiles and launches a kernel. Any other class than ``Kernel`` is for tensors on the CPU.
    kernel: Callable[..., Any] = Kernel

    #: True if inputs and outputs have time, their first dimension.
    timed = False
    #: Bytes of a tensor that a thread reads at once.
    access = 8
    #: Names that a C text may read beside its values.
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

    def __call__(self, **arguments: Any) -> Any:
        """Launch on torch's current stream. Gives the outputs, then the states asked for: one tensor, or a named tuple.

        What is given by the name of a result is filled; other results are new tensors.
        """
        checks.check_names(self.name, self.values, arguments)
        sizes = checks.sizes_of(self.name, self.values, arguments, self.timed, self._device())
        dtype = checks.dtype_of(self.name, self.values, arguments)
        typed = self._typed.get(dtype) or self._typed.setdefault(dtype, Typed(self.values, dtype, self.access))
        checks.check_tensors(self.name, self.values, arguments, typed, sizes)
        tensors, numbers = checks.split(arguments)
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
        results = [tensors[name] for name in self.results]
        return self._results(*results) if self._results else results[0]

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
        compiled = shared(self.kernel, self.name, printed.text, printed.types), printed
        self._compiled[dtype, width] = compiled
        return compiled

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


class ElementwiseKernel(CustomKernel):
    """A function of every element of tensors of one shape, compiled for NVIDIA GPUs::

        double = ElementwiseKernel("double", inputs=["x"], outputs=["y"], body="y = x + x;")
        y = double(x=x)          # or double(x=x, y=y), which fills y; y may be x

    Parameters
    ----------
    name: of the kernel, in its source and in profiles.
    inputs, outputs: names, or a mapping of names to dtypes. Without one (None) a tensor has the dtype of the call:
        float16, bfloat16, float32 or float64. Integers and bool can be declared.
    body: a C text in these names, or a function of expressions, called once with its values by name, that returns the
        output or a tuple of them.
    params: names of numbers, or a mapping of names to ``float``, ``int``, or a dtype or None for a tensor, which has
        the shape of the inputs or one number.
    header: C text before the kernel, such as functions that the body calls.

    A C text may read ``i``, the place of the element in memory, and ``N``, how many there are; ``real`` is the type of
    arithmetic. An output that it does not set is 0.
    """

    access = 16

    def __init__(
        self,
        name: str,
        *,
        inputs: Any = (),
        outputs: Any,
        body: Body,
        params: Any = (),
        header: str = "",
    ) -> None:
        roles: Mapping[str, Any] = {"input": inputs, "param": params, "output": outputs}
        values = [value for role, declarations in roles.items() for value in declared(name, role, declarations)]
        super().__init__(name, values, body, header)

    def _lines(self, writer: CustomWriter) -> List[str]:
        return [*writer.opening(), *section("step"), *writer.step(timed=False)]


#: Steps whose loads the compiler may put before the first use.
UNROLL = 4


class ScanKernel(CustomKernel):
    """A step over the time of tensors ``[T, *N]``, compiled for NVIDIA GPUs::

        cumsum = ScanKernel("cumsum", inputs=["x"], state={"sum": 0.0}, outputs=["y"], body="sum += x; y = sum;")
        y = cumsum(x=x)

    All as in :class:`~spikecore_cupy.ElementwiseKernel`, and:

    Parameters
    ----------
    state: a mapping of names to first values. A call may give others, as numbers or as tensors ``[*N]``. States are
        float32, or float64 where a tensor is.
    final: states that are given back, after the outputs, as ``<name>_end``: what they are after the last step.
    params: a tensor among them has the shape ``[*N]`` of one step, or one number.
    reverse: from the last step to the first.
    body: a C text that changes its states in place, or a function of expressions that returns
        ``(outputs, {state: next value})``, as ``dynamics`` of a neuron does.

    A C text may also read ``t``, the step, and ``T``, how many there are. Results share no memory with other tensors.
    """

    timed = True
    places = ("i", "N", "t", "T")

    def __init__(
        self,
        name: str,
        *,
        inputs: Any = (),
        outputs: Any = (),
        body: Body,
        state: Mapping[str, float] = {},  # never written to
        final: Sequence[str] = (),
        params: Any = (),
        reverse: bool = False,
        header: str = "",
    ) -> None:
        roles: Mapping[str, Any] = {"input": inputs, "param": params, "output": outputs}
        values = [value for role, declarations in roles.items() for value in declared(name, role, declarations)]
        self.reverse = reverse
        super().__init__(name, [*values, *states(name, state, final)], body, header)

    def _lines(self, writer: CustomWriter) -> List[str]:
        steps = writer.argument("T", "T", "int", "T")
        loop = f"int t = {steps} - 1; t >= 0; --t" if self.reverse else f"int t = 0; t < {steps}; ++t"
        return [
            *writer.opening(),
            *writer.starting(),
            *section("step"),
            f"#pragma unroll {UNROLL}",
            f"for ({loop}) {{",
            *indented(writer.step(timed=True)),
            "}",
            *section("tail"),
            *writer.ending(),
        ]
