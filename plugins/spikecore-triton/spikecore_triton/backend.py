"""The backend: two launches over compiled kernels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Sequence, Union

import torch
from torch import Tensor

from spikecore.backend import BackendError, Bits, Whole
from spikecore.kernels import BackwardLaunch, BackwardPlan, ForwardLaunch, ForwardPlan, Geometry, KernelBackend, Lock
from spikecore.kernels.writing import BACKWARD_GROUPS, FORWARD_GROUPS, Argument
from spikecore.testing import ExpectedFailure
from spikecore_triton import CAPABILITIES, INTERPRETED, packing
from spikecore_triton.compiler import compiled, options
from spikecore_triton.source import print_kernel
from spikecore_triton.writer import CHUNK, Source

Plan = Union[ForwardPlan, BackwardPlan]
_here: ContextManager[Any] = nullcontext()
#: Finds the value of an argument among the sizes and the groups of tensors of a launch.
Finder = Callable[[Geometry, Sequence[Any]], Any]

_FREED = ("inference", "unused", "after-backward", "gradients")
_CYCLES = ExpectedFailure("Triton's interpreter keeps memory in reference cycles", match="is still held, with Python's")


class TritonBackend(KernelBackend):
    """Compiles every program for the GPU.

    Forward writes nothing for backward but the states that it needs before every chunk of steps.
    """

    name = "triton"
    capabilities = CAPABILITIES
    #: Triton's interpreter moves tensors by two functions that refer to themselves, and so to memory they saw, until
    #: Python's collector comes. Kernels on a GPU hold none.
    expected_failures = {f"sequences/freed-{case}": _CYCLES for case in _FREED} if INTERPRETED else {}
    chunk = CHUNK
    reads_periods = True

    def forward(self, plan: ForwardPlan) -> ForwardLaunch:
        kernels = Kernels(plan, FORWARD_GROUPS)

        def launch(geometry: Geometry, *groups: Any) -> None:
            kernels.of(geometry.steps).launch(geometry, groups)

        return launch

    def backward(self, plan: BackwardPlan) -> BackwardLaunch:
        kernels = Kernels(plan, BACKWARD_GROUPS)
        kinds = plan.kinds

        def launch(geometry: Geometry, inputs: Any, *groups: Any) -> List[Tensor]:
            kernel, neurons = kernels.of(geometry.steps), geometry.neurons
            # one sum per block, added up afterwards in a fixed order: the same bits at every run
            sizes = [kernel.blocks(neurons) if kinds[name] == "scalar" else neurons for name in plan.learn]
            sums = [inputs[0].new_empty(size, dtype=plan.compute) for size in sizes]
            kernel.launch(geometry, (inputs, *groups, sums))
            return sums

        return launch

    def text(self, plan: Plan) -> str:
        """The source text; that of many steps is of a multiple of 16."""
        return print_kernel(plan).text

    def pack(self, numbers: Tensor, whole: Whole) -> Bits:
        if not self._packs(numbers.dtype):
            return super().pack(numbers, whole)
        with _on(numbers.device):
            return packing.pack(numbers, whole)

    def unpack(self, bits: Bits, whole: Whole, count: int, dtype: torch.dtype) -> Tensor:
        if not self._packs(dtype):
            return super().unpack(bits, whole, count, dtype)
        with _on(bits.data.device):
            return packing.unpack(bits, whole, count, dtype)

    def _packs(self, dtype: torch.dtype) -> bool:
        """True if there is a kernel: numbers are float32 in it, so not of float64."""
        return bool(getattr(self.capabilities, str(dtype)[6:]))


class Kernels:
    """The kernels of a plan: one, or where steps are many one for each number of steps that chunks leave over."""

    def __init__(self, plan: Plan, groups: Sequence[str]) -> None:
        self.plan, self.groups = plan, groups
        self._kernels: Dict[int, Kernel] = {}
        self._lock = Lock()

    def of(self, steps: int) -> Kernel:
        """The kernel for so many steps."""
        # steps are written out, so each number of steps left over is another text
        left = 0 if self.plan.spec.steps is not None else steps % CHUNK
        kernel = self._kernels.get(left)
        if kernel is None:
            with self._lock:
                kernel = self._kernels.setdefault(left, Kernel(print_kernel(self.plan, left), self.groups))
        return kernel


class Kernel:
    """A compiled kernel, and how its arguments are found among the tensors of a launch."""

    def __init__(self, source: Source, groups: Sequence[str]) -> None:
        self.source = source
        self.function = compiled(source)
        # looked up once: which tensor is which argument does not change from launch to launch
        self._finders = [_finder(argument, groups) for argument in source.arguments]

    def blocks(self, neurons: int) -> int:
        """Number of blocks."""
        return -(-neurons // self.source.block)

    def launch(self, geometry: Geometry, groups: Sequence[Any]) -> None:
        """Launch it on the device of the tensors and on torch's current stream there.

        Triton compiles at the first launch. What it cannot compile or load is a :class:`BackendError`.
        """
        values = [find(geometry, groups) for find in self._finders]
        run = self.function[(self.blocks(geometry.neurons),)]
        with _on(groups[0][0].device):
            try:
                run(*values, BLOCK=self.source.block, **options())
            except (BackendError, MemoryError, torch.cuda.OutOfMemoryError):
                raise  # no fault of the kernel
            except Exception as error:
                said = str(error).strip().splitlines() or ["no text"]
                raise BackendError(
                    f"backend 'triton' cannot run kernel {self.source.name}: {type(error).__name__}: {said[0]}; "
                    "choose backend='torch' for this neuron"
                ) from error


def _on(device: torch.device) -> ContextManager[Any]:
    """Triton launches on the current device."""
    if device.type == "cuda":
        # mostly the current device is the right one already
        return _here if device.index == torch.cuda.current_device() else torch.cuda.device(device)
    # the interpreter's module changes Triton, so it is imported only where kernels are interpreted
    from spikecore_triton.interpreter import alone

    return alone


def _finder(argument: Argument, groups: Sequence[str]) -> Finder:
    """The function that finds an argument."""
    index = argument.number
    group = groups.index(argument.group) if argument.group else 0
    finders: Dict[str, Finder] = {
        "neurons": lambda geometry, given: geometry.neurons,
        "chunks": lambda geometry, given: geometry.steps // CHUNK,
        "period": lambda geometry, given: geometry.period,
        "stride": lambda geometry, given: given[group][index].stride(0),
        "inner": lambda geometry, given: geometry.channels[index][0],
        "channels": lambda geometry, given: geometry.channels[index][1],
        "number": lambda geometry, given: given[group][index],
        "pointer": lambda geometry, given: given[group][index],
    }
    find = finders[argument.kind]
    return _interpreted(argument.kind, find) if INTERPRETED else find


def _interpreted(kind: str, find: Finder) -> Finder:
    from spikecore_triton.interpreter import count, number

    made: Dict[str, Callable[[Any], Any]] = {"number": number, "chunks": count}
    return (lambda geometry, given: made[kind](find(geometry, given))) if kind in made else find
