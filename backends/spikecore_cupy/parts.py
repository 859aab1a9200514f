"""Parts of a kernel's text: the whole, a device function, a tensor that is read step by step."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from spikecore.kernels.writing import Argument
from spikecore.lang import Node
from spikecore_cupy.lines import BLOCK


class Form(NamedTuple):
    """How a kernel is written: what changes its speed and none of its results."""

    #: Neighbouring neurons that a thread computes.
    width: int
    #: Steps of a chunk, or one more than them, where the number of steps is no constant of the kernel.
    length: int = 12
    #: Blocks that a multiprocessor should hold at least, for which the compiler leaves out registers; 0 for any number.
    blocks: int = 0
    #: Whether rows of neurons lie apart in the tensors of all steps.
    rows: bool = False
    #: Threads of a block at most.
    threads: int = BLOCK
    #: Whether the gradients of parameters per channel are summed over the threads of a block.
    sums: bool = False
    #: Whether a thread computes its groups of neurons from the last to the first.
    down: bool = False
    #: Whether the numbers that steps divide by are powers of two (:mod:`spikecore_cupy.divisors`).
    powers: bool = False
    #: Whether steps, which may begin beside a sector of memory, go through shared memory.
    staged: bool = False
    #: Whether the threads of a block begin every chunk together.
    together: bool = False
    #: Blocks of a launch at most, whose threads have several groups of neurons then; 0 for any number.
    grid: int = 0
    #: Whether the adjoint computes again what a step gave, where that saves registers.
    again: bool = False


class Source(NamedTuple):
    """A printed kernel. It takes ``neurons``, ``steps`` unless they are fixed, and its arguments, in this order."""

    name: str
    text: str
    #: Whether the number of steps is a constant of the text.
    fixed: bool
    arguments: Tuple[Argument, ...]
    #: C types of all that it takes.
    types: Tuple[str, ...]


class Function(NamedTuple):
    """A device function: its name, its arguments as they are declared, its lines, and the values that it takes."""

    name: str
    arguments: List[str]
    body: List[str]
    takes: Tuple[Node, ...]
    #: What stands before its type.
    template: str = ""

    @property
    def head(self) -> str:
        """What stands before its arguments."""
        return f"{self.template}__device__ __forceinline__ void {self.name}("


class Stream(NamedTuple):
    """A tensor of all steps that a kernel reads: what its numbers are called and their type, and which tensor it is."""

    name: str
    kind: str
    tensor: str
    group: str
    number: int
