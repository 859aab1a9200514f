"""The text of a kernel: its arguments with their types, and its functions and lines, each symbol with its name."""

from __future__ import annotations

from typing import List, Sequence, Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import FILLED, STORED, Argument, KernelWriter, indented, named
from spikecore.lang import Node
from spikecore_cupy.lines import declared, first_neuron, folded, head, wrapped
from spikecore_cupy.parts import Form, Function, Source
from spikecore_cupy.printer import TYPES, CudaPrinter

#: Kinds of arguments, in the order that a kernel has them. A ``"sum"`` is a pointer to a parameter's gradient.
ORDER = ("pointer", "sum", "stride", "row", "inner", "channels", "span", "columns", "lanes", "period", "number")
#: Kinds of arguments that are counts of neurons: 64 bits, since a tensor may have more than 2**31 numbers.
_COUNTS = ("stride", "row", "inner", "channels", "span", "columns")
#: Kinds of arguments that say which threads of a block have the same channels.
_OF_BLOCK = ("lanes", "period")


class TextWriter(KernelWriter):
    """Writes the text around the lines of one kernel."""

    #: The first neuron of a thread.
    first = "i"
    #: What the text includes.
    header = "spikecore.cuh"

    def __init__(
        self,
        plan: Union[ForwardPlan, BackwardPlan],
        direction: str,
        form: Form,
        printer: CudaPrinter,
        roots: Sequence[Node],
    ) -> None:
        super().__init__(plan, direction, printer, roots)
        self.form = form
        self.stored, self.real = TYPES[plan.dtype], TYPES[plan.compute]
        #: Whether the number of steps is a constant of the kernel.
        self.fixed = plan.spec.steps is not None

    # -- arguments

    def unique(self, name: str) -> str:
        """The symbol that would like this name, the same wherever it is asked for."""
        return self.printer.symbols.of(("unique", name), name)

    def pointer_kind(self, group: str) -> str:
        """Gradients of parameters are allocated by the launch, which finds them apart from the other tensors."""
        # block sums, or one number per neuron: how many there are depends on the width that the launch chooses
        return "sum" if group == "grad_params" else "pointer"

    # -- text

    @property
    def part(self) -> str:
        """The neurons of a block, where steps go through shared memory."""
        return self.unique("part")

    def neurons_of_a_thread(self) -> List[str]:
        """The lines that say which neurons a thread has, before any other."""
        if not self.form.together:
            return [self.beginning()]
        # threads behind the last neurons compute these, too, since the others wait for them
        own = self.unique("own")
        return [first_neuron(own), f"const long long {self.first} = {own} < neurons ? {own} : neurons - V;"]

    def leaving(self, until: str = "neurons") -> List[str]:
        """The line by which threads without neurons leave, unless others wait for them."""
        return [] if self.form.staged or self.form.together else [f"if ({self.first} >= {until}) return;"]

    def finished(self, functions: Sequence[Function], body: Sequence[str]) -> Source:
        """The kernel: its text, and what a launch needs beside it."""
        arguments = self.arguments.ordered(ORDER)
        steps = self.plan.spec.steps if self.fixed else self.form.length
        types = ["long long", *([] if self.fixed else ["int"]), *map(self._type, arguments)]
        # a fixed number of steps is a constant of the text, T, so that loops are unrolled
        names = ["neurons", *([] if self.fixed else ["steps"]), *(argument.name for argument in arguments)]
        words = [declared(kind, name) for kind, name in zip(types, names)]
        around = [
            f'#include "{self.header}"',
            "",
            f"constexpr int V = {self.form.width};  // neighbouring neurons of a thread",
            f"constexpr int T = {steps};  // time steps" + ("" if self.fixed else " of a chunk, or one less"),
            *self.beside(),
        ]
        body = [*self.neurons_of_a_thread(), *body]
        inside = [line for f in functions for line in (f.head, *f.arguments, *f.body)]
        top = self.top()
        # every line is known now, so every symbol can choose a name that no line has
        write = self.printer.named([*around, *inside, top, *words, *body])
        lines = [f"// {self.title()}", "//", *self.listing("//"), "", *around, ""]
        for function in functions:
            lines += [function.head, *wrapped(map(write, function.arguments)), ") {"]
            lines += [*indented(map(write, function.body)), "}", ""]
        lines += [
            write(top),
            *wrapped(map(write, words)),
            ") {",
            *indented(map(write, body)),
            "}",
        ]
        text = "\n".join(part for line in lines for part in folded(line))
        return Source(write(self.name), f"{text}\n", self.fixed, named(arguments, write), tuple(types))

    def beginning(self) -> str:
        """The first line of the kernel's body: which neurons a thread has."""
        return first_neuron(self.first)

    def beside(self) -> Sequence[str]:
        """Further lines before the functions."""
        return ()

    def top(self) -> str:
        """The first line of the kernel."""
        return head(self.name, self.form.blocks, self.form.threads)

    def is_stored(self, argument: Argument) -> bool:
        """Whether a tensor is in the dtype of inputs and outputs."""
        return argument.group in STORED

    def _type(self, argument: Argument) -> str:
        if argument.kind == "number":
            return self.real
        if argument.kind in _COUNTS:
            return "long long"
        if argument.kind in _OF_BLOCK:
            return "int"
        # state, parameters and their gradients are in the dtype of arithmetic, whatever inputs have
        kind = self.stored if self.is_stored(argument) else self.real
        fills = argument.group in FILLED and (argument.group != "checkpoints" or self.direction == "forward")
        return f"{'' if fills else 'const '}{kind}*"
