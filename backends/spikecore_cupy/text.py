"""The text of a kernel in CUDA C++: expressions, lines, functions, arguments with their types, symbols with names."""

from __future__ import annotations

import textwrap
from typing import Any, Collection, Dict, FrozenSet, Iterable, List, NamedTuple, Sequence, Tuple, Union

import torch

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import (
    FILLED,
    STORED,
    Argument,
    KernelPrinter,
    KernelWriter,
    filled,
    indented,
    named,
    negated_choice,
)
from spikecore.lang import Node
from spikecore.lang.c import CPrinter
from spikecore.lang.dialects import CUDA
from spikecore.lang.render import ATOM, PRODUCT
from spikecore_cupy.derivative import FUSED

#: Threads of a block.
BLOCK = 128


#: A long name is longer than a line, and stays whole.
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def first_neuron(name: str = "i") -> str:
    """The first line of a kernel's body: the first of the neighbouring neurons of a thread, which has V of them."""
    return f"const {CUDA.integer} {name} = V * ({CUDA.neuron});"


def head(name: str, blocks: int = 0, threads: int = BLOCK) -> str:
    """The first line of a kernel, before its arguments. The compiler may use all registers that a block leaves it, or
    those that so many blocks of a multiprocessor leave each.
    """
    bounds = f"{threads}, {blocks}" if blocks else f"{threads}"
    return f"{CUDA.kernel} __launch_bounds__({bounds}) {name}("


def declared(kind: str, name: str, restrict: bool = True) -> str:
    """An argument of a kernel. With ``restrict`` no pointer shares memory with another one, so that loads may come
    before stores.
    """
    if "*" not in kind:
        return f"const {kind} {name}"
    return CUDA.pointer.format(type=kind.rstrip("*"), name=name) if restrict else f"{kind} {name}"


def over_neurons(lines: Sequence[str]) -> List[str]:
    """A loop over the neurons of a thread."""
    head = ["#pragma unroll", "for (int j = 0; j < V; ++j)"]
    # a loop of one line needs no braces
    if len(lines) == 1:
        return [*head, f"    {lines[0]}"]
    return [head[0], f"{head[1]} {{", *indented(lines), "}"]


def over_steps(lines: Sequence[str], whole: str = "", backwards: bool = False) -> List[str]:
    """An unrolled loop over the steps of a chunk; its last step only where ``whole`` holds, if that is given."""
    head = "for (int t = T - 1; t >= 0; --t)" if backwards else "for (int t = 0; t < T; ++t)"
    guard = f"if (t < T - 1 || {whole}) " if whole and lines else ""
    if len(lines) == 1:
        return ["#pragma unroll", f"{head} {guard}{lines[0]}"]
    inner = [f"{guard}{{", *indented(lines), "}"] if guard else list(lines)
    return ["#pragma unroll", f"{head} {{", *indented(inner), "}"]


def wrapped(words: Iterable[str]) -> List[str]:
    """Words between commas, as lines."""
    return filled(", ".join(word.replace(" ", "\0") for word in words).split(" "), 112)


def folded(line: str) -> List[str]:
    """A line that is too long for a page, as several."""
    # a comment would go on without its mark
    if len(line) <= 120 or line.startswith("//"):
        return [line]
    begin = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), 120, initial_indent=begin, subsequent_indent=begin + "    ", **_WHOLE_WORDS)


class Form(NamedTuple):
    """Form of a kernel: choices that change its speed and none of its results."""

    #: Neighbouring neurons that a thread computes.
    width: int
    #: Steps of a chunk, or one more than them, where the number of steps is no constant of the kernel.
    length: int = 12
    #: Blocks that a multiprocessor should hold at least, for which the compiler leaves out registers; 0 for any number.
    blocks: int = 0
    #: True if rows of neurons lie apart in the tensors of all steps.
    rows: bool = False
    #: Threads of a block at most.
    threads: int = BLOCK
    #: True if the gradients of parameters per channel are summed over the threads of a block.
    sums: bool = False
    #: True if a thread computes its groups of neurons from the last to the first.
    down: bool = False
    #: True if the numbers that steps divide by are powers of two (:mod:`spikecore_cupy.derivative`).
    powers: bool = False
    #: True if steps, which may begin beside a sector of memory, go through shared memory.
    staged: bool = False
    #: True if the threads of a block begin every chunk together.
    together: bool = False
    #: Blocks of a launch at most, whose threads have several groups of neurons then; 0 for any number.
    grid: int = 0
    #: True if the adjoint recomputes the values of a step where that saves registers.
    again: bool = False
    #: Chunks whose steps are fetched into shared memory before they are computed; 0 if none is.
    ahead: int = 0
    #: True if what backward keeps of the steps of a chunk lies in shared memory, where chunks are fetched ahead.
    aside: bool = False
    #: True if divisions by numbers that are the same at each step are verified for all of a thread's neurons together.
    at_once: bool = False


class Source(NamedTuple):
    """A printed kernel. It takes ``neurons``, ``steps`` unless they are fixed, and its arguments, in this order."""

    name: str
    text: str
    #: True if the number of steps is a constant of the text.
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
    #: Text before its type.
    template: str = ""

    @property
    def head(self) -> str:
        """Text before its arguments."""
        return f"{self.template}{CUDA.function} void {self.name}("


class Stream(NamedTuple):
    """A tensor of all steps that a kernel reads: what its numbers are called and their type, and which tensor it is."""

    name: str
    kind: str
    tensor: str
    group: str
    number: int


#: dtype -> its name in kernels.
TYPES: Dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


class CudaPrinter(CPrinter, KernelPrinter):
    """CUDA C++ that NVRTC compiles without contraction (``--fmad=false``) and with IEEE division and square root.

    ``approximate`` are divisions that may be off by two units in the last place, ``numbers`` the parameters that are
    numbers of surrogates, of which an approximate division is as quick as of a constant, ``powers`` parameters that are
    powers of two, ``repeated`` exact divisions of every step by what is the same at each of them.
    """

    def __init__(
        self,
        compute: torch.dtype,
        approximate: FrozenSet[Node] = frozenset(),
        numbers: Collection[str] = (),
        powers: Collection[Node] = (),
        repeated: Collection[Node] = (),
    ) -> None:
        super().__init__(CUDA, TYPES[compute])
        #: The text of a repeated division.
        self.division = "divided({0}, {1})"
        self.approximate, self.numbers, self.powers, self.repeated = approximate, numbers, powers, repeated

    def template(self, node: Node) -> Tuple[int, str]:
        if node.op == FUSED:
            return ATOM, "multiply_add({0}, {1}, {2})"
        if node.op == "div" and node.args[1] in self.powers:
            return PRODUCT, "{0} * ({one} / {1})"
        if node in self.repeated:
            return ATOM, self.division
        if node not in self.approximate:
            binding, text = super().template(node)
            index = negated_choice(node)
            return binding, text if index is None else text.replace(f"{{{index}}}", f"opaque({{{index}}})")
        above = node.args[0]
        number = above.attr != 0.0 if above.op == "const" else above.op == "param" and above.attr in self.numbers
        return ATOM, "quotient({0}, {1})" if number else "full_quotient({0}, {1})"


#: Kinds of arguments, in the order that a kernel has them. A ``"sum"`` is a pointer to a parameter's gradient, or to
#: parts of that of an input that broadcasts; ``"uniform"`` one to an input with one number a step.
ORDER = (
    "pointer",
    "uniform",
    "sum",
    "exchange",
    "stride",
    "uniform_step",
    "row",
    "inner",
    "channels",
    "span",
    "columns",
    "lanes",
    "period",
    "input_period",
    "parts_step",
    "tile",
    "number",
)
#: Kinds of arguments that are counts of neurons: 64 bits, since a tensor may have more than 2**31 numbers.
_COUNTS = ("stride", "uniform_step", "row", "inner", "channels", "span", "columns", "input_period", "parts_step")
#: Kinds of arguments that say which threads of a block have the same channels, or numbers of an input.
_OF_BLOCK = ("lanes", "period", "tile")


class TextWriter(KernelWriter):
    """Writes the text around the lines of one kernel."""

    #: The first neuron of a thread.
    first = "i"
    #: Header that the text includes.
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
        #: True if the number of steps is a constant of the kernel.
        self.fixed = plan.spec.steps is not None
        #: True if a block adds up gradients of inputs that broadcast, so that its threads lie in a tile.
        self.tiled = isinstance(plan, BackwardPlan) and bool(plan.summed)

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
        if self.tiled:
            period = self.argument("input_period", "input_period") if "period" in self.plan.broadcast else "neurons"
            tile = f"const Tile<V> {self.unique('tile')}(neurons, {period}, {self.argument('width', 'tile')});"
            return [tile, f"const long long {self.first} = {self.unique('tile')}.first;"]
        if not self.form.together:
            return [self.beginning()]
        # threads behind the last neurons compute these, too, since the others wait for them
        first = self.unique("own")
        return [first_neuron(first), f"const long long {self.first} = {first} < neurons ? {first} : neurons - V;"]

    def leaving(self, until: str = "neurons") -> List[str]:
        """The line by which threads without neurons leave, unless others wait for them."""
        waits = self.form.staged or self.form.together or self.tiled
        return [] if waits else [f"if ({self.first} >= {until}) return;"]

    def finished(self, functions: Sequence[Function], body: Sequence[str]) -> Source:
        """The kernel: its text, and what a launch needs beside it."""
        body = [*self.neurons_of_a_thread(), *body]
        arguments = self.arguments.ordered(ORDER)
        steps = self.plan.spec.steps if self.fixed else self.form.length
        types = [CUDA.integer, *([] if self.fixed else ["int"]), *map(self._type, arguments)]
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
        """True if a tensor is in the dtype of inputs and outputs."""
        return argument.group in STORED

    def _type(self, argument: Argument) -> str:
        if argument.kind == "number":
            return self.real
        if argument.kind == "exchange":  # memory through which blocks give numbers to one another
            return "unsigned*"
        if argument.kind in _COUNTS:
            return CUDA.integer
        if argument.kind in _OF_BLOCK:
            return "int"
        # state, parameters and their gradients are in the dtype of arithmetic, whatever inputs have
        kind = self.stored if self.is_stored(argument) else self.real
        fills = argument.group in FILLED and (argument.group != "checkpoints" or self.direction == "forward")
        return f"{'' if fills else 'const '}{kind}*"
