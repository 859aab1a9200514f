"""The base of writers: the names of a kernel's values and arguments, and what a plan needs before its first step."""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence, Tuple, Union

from spikecore.kernels._plan import BackwardPlan, ForwardPlan
from spikecore.kernels.writing._analysis import hoisted
from spikecore.kernels.writing._arguments import ArgumentTable
from spikecore.kernels.writing._leaves import cotangent_leaves, input_leaf, param_leaf, state_cotangent, state_leaf
from spikecore.kernels.writing._lines import dtype_name
from spikecore.lang import Node, topological
from spikecore.lang.render import Printer, on_one_line


class KernelWriter:
    """Writes the lines of one kernel.

    ``direction`` is ``"forward"`` or ``"backward"``; ``roots`` are the values that its steps compute. Together with
    the initial values of the plan they say which parameters the kernel reads.
    """

    #: How the text of the target says where a tensor of one step has the neurons: ``{}`` is the tensor.
    neurons_of = "{}"

    def __init__(
        self, plan: Union[ForwardPlan, BackwardPlan], direction: str, printer: Printer, roots: Sequence[Node]
    ) -> None:
        self.plan, self.program, self.direction, self.printer = plan, plan.program, direction, printer
        # Symbols choose their names in the order in which they are made, and the kernel's own name comes first: a
        # profiler shows it, so no value of the kernel may take it away.
        self.name = self.free(f"{plan.program.name.lower()}_{direction}")
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
        """What a leaf would like to be called."""
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

    def distinct_label(self, node: Node, otherwise: str, taken: Iterable[str]) -> str:
        """The symbol of a value, or a new one of that name where the symbol is taken.

        A value and itself detached have one symbol. Where a function takes both, they need two.
        """
        name = self.label(node, otherwise)
        return self.free(self.program.labels.get(node, otherwise)) if name in taken else name

    def kept_values(self, cut: Iterable[Node]) -> Dict[Node, str]:
        """The names of what backward keeps of every recomputed step: the values of a cut but inputs, which are read
        again instead.
        """
        kept: Dict[Node, str] = {}
        for node in cut:
            if node.op == "state":
                # the state itself goes on to the next step while its value before this one is kept
                kept[node] = self.free(f"{self.local[node]}_before")
            elif node.op != "input":
                kept[node] = self.distinct_label(node, "kept", kept.values())
        return kept

    def output_name(self, index: int) -> str:
        """What the tensor of an output is called."""
        return "outs" if len(self.program.outputs) == 1 else f"outs{index}"

    # -- arguments

    def argument(self, name: str, kind: str, group: str = "", number: int = 0) -> str:
        """The name of an argument, which the kernel has from now on."""
        return self.arguments.name(name, kind, group, number)

    def one(self, name: str, group: str, index: int) -> str:
        """Where a tensor of one step has the neurons that are computed."""
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
