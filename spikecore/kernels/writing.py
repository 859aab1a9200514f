"""Shared parts of kernel writers for all languages: names, arguments, leaves, values that are kept.

A target subclasses :class:`KernelPrinter` for its expressions and :class:`KernelWriter` for its kernels. What it adds
is what differs: how a value is loaded and stored, how steps and neurons are looped over, how a function is declared.
A launch finds the values of a kernel's arguments with :class:`Places`.
"""

from __future__ import annotations

import textwrap
from functools import lru_cache, partial
from itertools import count
from typing import Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from spikecore.backend import Spec
from spikecore.kernels._layout import BackwardBuffers, ForwardBuffers
from spikecore.kernels._plan import BackwardPlan, ForwardPlan
from spikecore.lang import Node, Program, computed_once, loop_invariant, topological
from spikecore.lang.render import Printer, ascii_name, on_one_line

__all__ = [
    "BACKWARD_GROUPS",
    "FILLED",
    "FORWARD_GROUPS",
    "STORED",
    "Argument",
    "ArgumentTable",
    "KernelPrinter",
    "KernelWriter",
    "Places",
    "PythonSyntax",
    "commented",
    "cotangent_leaves",
    "dtype_name",
    "filled",
    "indented",
    "input_leaf",
    "named",
    "negated_choice",
    "output_cotangent",
    "param_leaf",
    "state_cotangent",
    "state_leaf",
]

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
        self._arguments: Dict[Tuple[str, str, int], Argument] = {}

    def name(self, name: str, kind: str, group: str = "", number: int = 0) -> str:
        """The name of an argument, which the kernel has from now on; ``name`` is what it would like to be called."""
        key = (kind, group, number)
        if key not in self._arguments:
            # an argument whose name is its kind, such as the number of neurons, is a word of the frame's text: that
            # text has it as it is, so that users' values must give way to it
            symbol = name if kind == name else self._symbols.of(key, name)
            self._arguments[key] = Argument(symbol, kind, group, number)
        return self._arguments[key].name

    def all(self) -> Tuple[Argument, ...]:
        """All arguments, in the order in which they were asked for."""
        return tuple(self._arguments.values())

    def ordered(self, kinds: Sequence[str]) -> List[Argument]:
        """All arguments, in the order of these kinds."""
        # sorted() is stable: arguments of one kind stay in the order in which they were asked for
        return sorted(self.all(), key=lambda argument: kinds.index(argument.kind))


def named(arguments: Iterable[Argument], write: Callable[[str], str]) -> Tuple[Argument, ...]:
    """The arguments with names instead of symbols."""
    return tuple(argument._replace(name=write(argument.name)) for argument in arguments)


class Places:
    """Places of a kernel's arguments among the sizes and groups of tensors of a launch.

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


#: Leaves of a step: an input, a state before it, a parameter, each by its name.
input_leaf, state_leaf, param_leaf = (partial(Node, op, ()) for op in ("input", "state", "param"))
#: The cotangents of an output of the step, by its number, and of a state after the step, by its name.
output_cotangent, state_cotangent = (partial(Node, op, ()) for op in ("out_grad", "next_grad"))


def cotangent_leaves(program: Program) -> List[Node]:
    """The cotangents that a step of the adjoint may be computed from: of all outputs, then of all states."""
    outputs = [output_cotangent(index) for index in range(len(program.outputs))]
    return [*outputs, *map(state_cotangent, program.states)]


#: Kinds of parameters that have one value for all neurons.
UNIFORM_KINDS = ("number", "scalar")


def hoisted(program: Program, spec: Spec, roots: Sequence[Node]) -> Tuple[Tuple[Node, ...], Tuple[Node, ...]]:
    """Expressions of parameters alone that the roots use: those that are one value, and one value per neuron.

    Both are computed before the first step. What only another one of them uses is left out.
    """
    order = topological(roots)
    varying = {Node("param", (), name) for name, kind in zip(program.params, spec.params) if kind not in UNIFORM_KINDS}
    for node in loop_invariant(order):
        if any(arg in varying for arg in node.args):
            varying.add(node)
    front = computed_once(order, roots)
    return tuple(n for n in front if n not in varying), tuple(n for n in front if n in varying)


def is_choice(node: Node) -> bool:
    """True if a value is chosen among numbers: a spike, a sign, a choice between constants.

    GPU compilers make integers of such values, and an integer has no -0, which the negation of 0 should be.
    """
    if node.op == "detach":
        return is_choice(node.args[0])
    chosen = node.args[1:] if node.op in ("where", "select") else ()
    return node.op in ("spike", "sign") or (bool(chosen) and all(arg.op == "const" or is_choice(arg) for arg in chosen))


def negated_choice(node: Node) -> Optional[int]:
    """Number of the argument that is a choice among numbers which this operation negates; None for others."""
    if node.op == "neg" and is_choice(node.args[0]):
        return 0
    if node.op not in ("mul", "div"):
        return None
    a, b = node.args
    if b.op == "const" and b.attr == -1.0 and is_choice(a):
        return 0
    return 1 if node.op == "mul" and a.op == "const" and a.attr == -1.0 and is_choice(b) else None


_IN = "    "


def indented(lines: Iterable[str]) -> List[str]:
    """The lines, one level further in."""
    return [f"{_IN}{line}" for line in lines]


def filled(words: Iterable[str], width: int) -> List[str]:
    """The words on as many indented lines as it takes. None is broken: a long name is longer than a line."""
    # textwrap breaks at spaces, so those within a word are another character until it is done
    text = " ".join(word.replace(" ", "\0") for word in words)
    lines = textwrap.wrap(
        text, width, initial_indent=_IN, subsequent_indent=_IN, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def commented(text: str, mark: str) -> List[str]:
    """The lines of a text as lines of comment, each behind the mark of a target's comments."""
    return [f"{mark} {line}".rstrip() for line in text.splitlines()]


#: The text of a program, which both of its kernels have as a comment.
_listing: Callable[[Program], str] = lru_cache(maxsize=64)(str)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype in a comment, without the library's."""
    return str(dtype).partition(".")[2]


class KernelPrinter(Printer):
    """A printer of expressions for kernels, forward and backward."""

    def leaf(self, node: Node) -> str:
        """Preferred name of a leaf: cotangents are called after what they belong to."""
        return {"out_grad": "grad_out{}", "next_grad": "grad_{}"}.get(node.op, "{}").format(node.attr)


class PythonSyntax:
    """Declarations, comments and literals of Python, for a printer that derives from this class first."""

    reserved: FrozenSet[str] = frozenset()
    declaration = "{name} = {value}"
    comment = "#"
    wide = "{}"

    def literal(self, digits: str) -> str:
        """Plain digits."""
        return digits

    def legal(self, name: str) -> str:
        """Python has no macros: any shape will do."""
        return name


class KernelWriter:
    """Writes the lines of one kernel.

    ``direction`` is ``"forward"`` or ``"backward"``; ``roots`` are the values that its steps compute. Together with
    the initial values of the plan they say which parameters the kernel reads.
    """

    #: Text of the neurons' place in a tensor of one step: ``{}`` is the tensor.
    neurons_of = "{}"

    def __init__(
        self, plan: Union[ForwardPlan, BackwardPlan], direction: str, printer: Printer, roots: Sequence[Node]
    ) -> None:
        self.plan, self.program, self.direction, self.printer = plan, plan.program, direction, printer
        # Symbols choose their names in the order in which they are made, and the kernel's own name comes first: a
        # profiler shows it, so no value of the kernel may take it away.
        # Of a class of type() the name may be anything, even with the marks of symbols.
        self.owner = ascii_name(plan.program.name).lower()
        self.name = self.free(f"{self.owner}_{direction}")
        self.arguments = ArgumentTable(printer)
        self.kinds = plan.kinds
        #: The name of each leaf, and of values that are computed before the first step.
        self.local: Dict[Node, str] = {}
        for leaf in (*plan.program.leaves, *cotangent_leaves(plan.program)):
            self.local[leaf] = printer.symbols.of(leaf, self.leaf_name(leaf))
        self.uniform, self.varying = hoisted(plan.program, plan.spec, roots)
        #: All that the kernel computes or reads.
        self.used = frozenset(topological([*roots, *plan.initial]))

    # -- names

    def free(self, name: str) -> str:
        """A symbol that would like this name, and is no other one."""
        return self.printer.symbols.new(name)

    def leaf_name(self, leaf: Node) -> str:
        """Preferred name of a leaf."""
        return self.printer.leaf(leaf)

    def input(self, name: str) -> str:
        """The symbol of an input."""
        return self.local[input_leaf(name)]

    def state(self, name: str) -> str:
        """The symbol of a state."""
        return self.local[state_leaf(name)]

    def param(self, name: str) -> str:
        """The symbol of a parameter."""
        return self.local[param_leaf(name)]

    def carried(self, name: str) -> str:
        """The symbol of the cotangent of a state, which backward carries from step to step."""
        return self.local[state_cotangent(name)]

    def label(self, node: Node, otherwise: str) -> str:
        """The symbol of a value: the definition's name for it, or another one."""
        return self.printer.label(node, self.program.labels.get(node, otherwise))

    def distinct_label(self, node: Node, otherwise: str, used: Iterable[str]) -> str:
        """The symbol of a value, or a new one of that name where the symbol is taken.

        A value and itself detached have one symbol. Where a function takes both, they need two.
        """
        name = self.label(node, otherwise)
        return self.free(self.program.labels.get(node, otherwise)) if name in used else name

    def name_hoisted(self) -> None:
        """Name what is computed before the first step: as the listing does, and on from its last number."""
        hoisted = (*self.uniform, *self.varying)
        numbers = count(1 + len(computed_once(self.program.nodes, [*self.program.outputs, *self.program.next])))
        for node in hoisted:
            otherwise = "" if node in self.program.labels else f"k{next(numbers)}"
            self.local[node] = self.distinct_label(node, otherwise, self.local.values())

    def kept_values(self, cut: Iterable[Node]) -> Dict[Node, str]:
        """The names of what backward keeps of every recomputed step: the values of a cut but inputs, which are read
        again instead.
        """
        names: Dict[Node, str] = {}
        for node in cut:
            if node.op == "state":
                # the state itself goes on to the next step while its value before this one is kept
                names[node] = self.free(f"{self.local[node]}_before")
            elif node.op != "input":
                names[node] = self.distinct_label(node, "kept", names.values())
        return names

    def output_name(self, index: int) -> str:
        """Name of the tensor of an output."""
        return "outs" if len(self.program.outputs) == 1 else f"outs{index}"

    # -- arguments

    def argument(self, name: str, kind: str, group: str = "", number: int = 0) -> str:
        """The name of an argument, which the kernel has from now on."""
        return self.arguments.name(name, kind, group, number)

    def one(self, name: str, group: str, index: int) -> str:
        """Place of the computed neurons in a tensor of one step."""
        return self.neurons_of.format(self.argument(name, self.pointer_kind(group), group, index))

    def pointer_kind(self, group: str) -> str:
        """The kind of an argument that is a tensor of this group."""
        return "pointer"

    def params_of(self, *kinds: str) -> List[Node]:
        """The leaves of the parameters of these kinds, in the program's order."""
        return [param_leaf(name) for name, kind in self.kinds.items() if kind in kinds]

    def param_place(self, leaf: Node) -> Tuple[str, int]:
        """The group and the number of a parameter."""
        return "params", self.program.params.index(str(leaf.attr))

    def input_kind(self, index: int) -> str:
        """Kind of an input, as of ``plan.broadcast``."""
        return self.plan.broadcast[index] if self.plan.broadcast else ""

    def channel(self, leaf: Node) -> Tuple[str, str, str]:
        """The arguments of a channel parameter: its tensor, neurons between neighbouring channels, channels."""
        # all channel parameters of a call lie along one dimension: with one pair of arguments for all, the channel of a
        # neuron is one value, which a compiler computes once
        _, first = self.param_place(self.params_of("channel")[0])
        return (
            self.argument(f"{self.local[leaf]}s", "pointer", *self.param_place(leaf)),
            self.argument("channel_inner", "inner", "params", first),
            self.argument("channel_count", "channels", "params", first),
        )

    # -- text

    def title(self, without: str = "") -> str:
        """The first line of the text: whose kernel it is, and in which precision. Its name has no letter of
        ``without``, which would end the target's comment.
        """
        name = on_one_line(self.program.name).translate({ord(letter): None for letter in without})
        memory, arithmetic = dtype_name(self.plan.dtype), dtype_name(self.plan.compute)
        return f"{name}, {self.direction}: {memory} in memory, {arithmetic} arithmetic."

    def listing(self, mark: str) -> List[str]:
        """The program as lines of comment, each behind the mark of a target's comments."""
        return commented(_listing(self.program), mark)
