"""Arguments of a generated kernel, and where a launch finds the value of each.

A kernel has the arguments that its text asked for while it was written, and no other: an array that a call has but that
no line reads costs no register and no check.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

from spikecore.kernels._launches import BackwardBuffers, ForwardBuffers
from spikecore.lang.render import Printer

#: The groups of tensors that a launch gets, in its order. The gradients of parameters are not among its arguments: a
#: launch allocates them, since how many partial sums there are depends on the kernel.
FORWARD_GROUPS = ForwardBuffers._fields
BACKWARD_GROUPS = (*BackwardBuffers._fields, "grad_params")
#: Groups in the dtype of inputs and outputs; the others are in that of arithmetic.
STORED = ("inputs", "outputs", "grad_outputs", "grad_inputs")
#: Groups that a kernel fills; checkpoints are filled by forward kernels, and read by backward ones. They were allocated
#: for it, so their steps are N numbers apart and need no stride.
FILLED = ("outputs", "final", "trace", "checkpoints", "grad_inputs", "grad_state", "grad_params")


class Argument(NamedTuple):
    """One argument of a kernel.

    ``kind`` says what its value is. Every target has: a ``"pointer"`` to tensor ``number`` of a group, that tensor's
    ``"stride"`` from step to step, how a channel parameter lies (``"inner"``, ``"channels"``: see
    ``Geometry.channels``), and the ``"number"`` that a parameter is. A target may have further kinds.
    """

    name: str
    kind: str
    group: str = ""
    number: int = 0


class ArgumentTable:
    """The arguments that a kernel has so far, in the order in which they were asked for."""

    def __init__(self, printer: Printer) -> None:
        self._symbols = printer.symbols
        self._found: Dict[Tuple[str, str, int], Argument] = {}

    def name(self, name: str, kind: str, group: str = "", number: int = 0) -> str:
        """The name of an argument, which the kernel has from now on; ``name`` is what it would like to be called."""
        key = (kind, group, number)
        if key not in self._found:
            # an argument whose name is its kind, such as the number of neurons, is a word of the frame's text: that
            # text has it as it is, so that users' values must give way to it
            symbol = name if kind == name else self._symbols.of(key, name)
            self._found[key] = Argument(symbol, kind, group, number)
        return self._found[key].name

    def all(self) -> Tuple[Argument, ...]:
        """All arguments, in the order in which they were asked for."""
        return tuple(self._found.values())

    def ordered(self, kinds: Sequence[str]) -> List[Argument]:
        """All arguments, in the order of these kinds."""
        # sorted() is stable: arguments of one kind stay in the order in which they were asked for
        return sorted(self.all(), key=lambda argument: kinds.index(argument.kind))


def named(arguments: Iterable[Argument], write: Callable[[str], str]) -> Tuple[Argument, ...]:
    """The arguments with names instead of symbols."""
    return tuple(argument._replace(name=write(argument.name)) for argument in arguments)


class Places:
    """Where the values of a kernel's arguments are among the sizes and groups of tensors of a launch.

    ``groups`` are the names of the groups that a launch gets, in its order.
    """

    def __init__(self, arguments: Iterable[Argument], groups: Sequence[str]) -> None:
        self._arguments, self._groups = tuple(arguments), groups

    def of(self, kind: str) -> List[Tuple[int, int]]:
        """For each argument of a kind: which group its tensor or number is in, and which one of the group it is."""
        return [(self._groups.index(a.group), a.number) for a in self._arguments if a.kind == kind]

    def channels(self) -> List[Tuple[int, int]]:
        """For each argument that says how a channel parameter lies: which parameter, and which number of its pair in
        ``Geometry.channels``. First those of kind "inner", then those of kind "channels".
        """
        kinds = ("inner", "channels")
        return [(a.number, which) for which, kind in enumerate(kinds) for a in self._arguments if a.kind == kind]
