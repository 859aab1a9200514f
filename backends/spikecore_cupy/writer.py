"""Shared code generation for forward and backward kernels: places of tensors, values per neuron, device functions.

A thread owns V neighbouring neurons and runs all their time steps; states stay in registers. What a step computes is a
device function of one neuron, so that values of one step are gone from the text of the next.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, Sequence, Tuple, Union

import torch

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import FILLED, indented, input_leaf
from spikecore.lang import Node, topological
from spikecore_cupy.derivative import divisors, normalises, repeated_divisions
from spikecore_cupy.text import CudaPrinter, Form, Function, Stream, TextWriter, over_neurons


class Writer(TextWriter):
    """Writes the lines of one kernel.

    ``approximate`` are divisions that may be off by two units in the last place.
    """

    #: True if a thread may have several groups of neighbouring neurons.
    is_grouped = False

    @property
    def at_once(self) -> bool:
        """True if divisions of all of a thread's neurons are verified together: a branch for each puts one neuron
        behind the other.
        """
        return self.form.at_once

    @property
    def neurons_of(self) -> str:  # type: ignore[override]  # what it is depends on the form
        """The place of a thread's neurons in a tensor of one step."""
        return "{}" if self.form.staged else "{} + i"

    def __init__(
        self,
        plan: Union[ForwardPlan, BackwardPlan],
        direction: str,
        form: Form,
        roots: Sequence[Node],
        approximate: FrozenSet[Node] = frozenset(),
    ) -> None:
        powers = divisors(plan) if form.powers else ()
        # programs that normalise have kernels of their own for powers of two
        apart = plan.compute != torch.float32 or normalises(plan)
        repeated = frozenset() if apart else repeated_divisions(roots) - approximate
        printer = CudaPrinter(plan.compute, approximate, plan.program.numbers, powers, repeated)
        #: True if a product is added to a sum in one operation.
        self._contracts = isinstance(plan, BackwardPlan) and normalises(plan)
        super().__init__(plan, direction, form, printer, roots)
        if self.at_once:
            printer.division = "divided({0}, {1}, how)"
        #: Which tensors of all steps have an offset of their own -> what it is called, and the tensor.
        self._offsets: Dict[Tuple[str, int], Tuple[str, str]] = {}
        self.name_hoisted()
        # parameters that no line reads are no arguments: each would cost a register
        self._one = [leaf for leaf in self.params_of("number", "scalar") if leaf in self.used]
        self._many = [leaf for leaf in self.params_of("channel", "full") if leaf in self.used]
        #: Values that are one for all neurons; the others are one for each.
        self.shared = frozenset((*self._one, *self.uniform))

    # -- names and arguments

    def all(self, name: str, group: str, index: int, step: str = "") -> str:
        """Address of this thread's neurons in a tensor of all steps: by default at step t of the chunk."""
        # a chunk begins at step `begin`; a fixed number of steps is one chunk, which begins at 0
        stride = self.stride(name, group, index)
        if self.is_uniform(group, index):
            step = step or ("t" if self.fixed else "(begin + t)")
            return f"{self.argument(name, 'uniform', group, index)} + {step} * {stride}"
        pointer, offset = self.argument(name, "pointer", group, index), self._offset(name, group, index)
        if step or self.fixed:
            return f"{pointer} + {step or 't'} * {stride} + {offset}"
        return f"({pointer} + (begin * {stride} + {offset})) + t * {stride}"

    def stride(self, name: str, group: str, index: int) -> str:
        """From one step to the next of a tensor of all steps."""
        if self.is_uniform(group, index):
            return self.argument(f"{name}_step", "uniform_step", group, index)
        apart = self.form.rows or group not in FILLED
        return self.argument(f"{name}_step", "stride", group, index) if apart else "neurons"

    def _offset(self, name: str, group: str, index: int) -> str:
        """From the first neuron of a step of a tensor to the first of this thread."""
        if group == "inputs" and self.input_kind(index):
            # neighbours read neighbouring numbers of a period, which is a multiple of V
            return self.unique("in_period")
        if not self.form.rows:
            return "i"
        return self._offsets.setdefault((group, index), (self.unique(f"{name}_at"), name))[0]

    def is_uniform(self, group: str, index: int) -> bool:
        """True for an input with one number a step."""
        return group == "inputs" and self.input_kind(index) == "step"

    def width(self, stream: Stream) -> str:
        """Numbers of a step of a tensor that a thread reads."""
        return "1" if self.is_uniform(stream.group, stream.number) else "V"

    def load(self, place: str) -> str:
        """The numbers of this thread's neurons in a tensor of one step."""
        return f"load_apart({place}, {self.part})" if self.form.staged else f"load<V>({place})"

    def store(self, place: str, name: str) -> str:
        """The line that stores numbers of this thread's neurons to a tensor of one step."""
        if self.form.staged:
            return f"store_apart({place}, {name}, {self.part});"
        return f"{'store_whole' if self.is_grouped and not self.fixed else 'store'}({place}, {name});"

    def offsets(self) -> List[str]:
        """Lines of neuron i's offsets in the tensors of all steps, once all lines that read or write them are there."""
        lines = []
        if "period" in self.plan.broadcast:
            period = self.argument("input_period", "input_period")
            lines.append(f"const long long {self.unique('in_period')} = channel(i, 1, {period});")
        if not self._offsets:
            return lines
        columns = self.argument("columns", "columns")
        lines += [f"const long long row = row_of(i, {columns}), column = i - row * {columns};"]
        for (group, index), (offset, name) in self._offsets.items():
            stride = self.argument(f"{name}_row", "row", group, index)
            lines.append(f"const long long {offset} = row * {stride} + column;")
        return lines

    # -- values

    def at(self, node: Node, index: str = "j") -> str:
        """A value computed before the first step, at a neuron of this thread."""
        return self.local[node] if node in self.shared else f"{self.local[node]}[{index}]"

    def value(self, text: str) -> str:
        """A number of the dtype of inputs and outputs, as one of arithmetic."""
        # a text without conversions says that there are none
        return text if self.stored == self.real else f"value({text})"

    def conversion(self, node: Node) -> str:
        """The function from a number of arithmetic to the dtype of outputs; a spike is only ever 0 or 1."""
        # to round 0 or 1 is a choice of two bit patterns, cheaper than the rounding of any number
        return f"{'spike' if node.op == 'spike' else 'rounded'}<{self.stored}>"

    def type_of(self, node: Node) -> str:
        """The type of a value of arithmetic."""
        return "bool" if node.is_bool else self.real

    def pack(self, name: str, kind: str = "") -> str:
        """The declaration of numbers of this thread's neurons."""
        return f"Pack<{kind or self.real}, V> {name};"

    def opening(self) -> List[str]:
        """Lines computed before the first step."""
        lines = []
        names: Dict[Node, str] = {}
        for leaf in self._one:
            name, place = self.local[leaf], self.param_place(leaf)
            names[leaf] = name
            if self.kinds[str(leaf.attr)] == "scalar":
                read = f"*{self.argument(f'{name}s', 'pointer', *place)}"
                lines.append(f"const {self.real} {name} = {read};")
            else:
                self.argument(name, "number", *place)
        lines += self.printer.block(self.uniform, names, self.local)
        for node in self.uniform:
            # a detached value has no line in a block
            if names.get(node) != self.local[node]:
                value = names.get(node) or self.printer.expression(node, names)
                lines.append(f"const {self.real} {self.local[node]} = {value};")
                names[node] = self.local[node]
        for leaf in self._many:
            if self.kinds[str(leaf.attr)] == "channel":
                _, inner, channels = self.channel(leaf)
                where = f"channels_of<V>({self.first}, {inner}, {channels})"
                lines.append(f"const Channels<V> {self.unique('place')} = {where};")
                break
        for leaf in self._many:
            lines += self._per_neuron(leaf)
        for node in self.varying:
            # a value with one number per neuron is computed in a loop over them, where its operands have an index
            inside = {**names, **{leaf: self.at(leaf) for leaf in self._many}}
            inside.update((other, self.at(other)) for other in self.varying if other is not node)
            within = self.printer.block([node], inside, name_roots=False)
            name, text = self.local[node], inside.get(node) or self.printer.expression(node, inside)
            lines += [self.pack(name, self.type_of(node)), *over_neurons([*within, f"{name}[j] = {text};"])]
        return lines

    def _per_neuron(self, leaf: Node) -> List[str]:
        """Load a parameter with one value per neuron."""
        name = self.local[leaf]
        if self.kinds[str(leaf.attr)] == "full":
            place = self.one(f"{name}s", *self.param_place(leaf))
            return [f"const Pack<{self.real}, V> {name} = {self.load(place)};"]
        tensor, inner, channels = self.channel(leaf)
        values = f"channel_values<V>({tensor}, {self.unique('place')}, {self.first}, {inner}, {channels})"
        return [f"const Pack<{self.real}, V> {name} = {values};"]

    def starting(self, state: str, target: str) -> List[str]:
        """Lines that give a state its first value."""
        index = self.program.states.index(state)
        if self.plan.has_initial_state:
            name = f"{self.state(state)}_start"
            return [f"{target} = {self.load(self.one(name, 'state', index))};"]
        # initial values are constants or parameters: no step has been computed yet
        names = {leaf: self.at(leaf) for leaf in (*self._one, *self._many)}
        return over_neurons([f"{target}[j] = {self.printer.expression(self.program.initial[index], names)};"])

    # -- steps

    def saved_at(self, name: str, index: str = "chunk - 1") -> str:
        """Address of the checkpoint of a state before a chunk; the first chunk has none."""
        state = self.state(name)
        tensor = self.argument(f"{state}_saved", "pointer", "checkpoints", self.plan.saved.index(name))
        return self.neurons_of.format(f"{tensor} + ({index}) * neurons")

    def input_streams(self, function: Function) -> List[Stream]:
        """The inputs that a function takes."""
        leaves = [(k, input_leaf(name)) for k, name in enumerate(self.program.inputs)]
        inputs = [(k, leaf, self.local[leaf]) for k, leaf in leaves if leaf in function.takes]
        return [Stream(local, self.stored, f"{local}s", "inputs", k) for k, _, local in inputs]

    def call(self, function: Function, targets: Sequence[str], where: Mapping[Node, str]) -> str:
        """The call of a device function for neuron j at step t; ``where`` has values that lie elsewhere."""
        values = []
        for node in function.takes:
            if node in where:
                values.append(where[node])
            elif node.op == "input":
                uniform = self.is_uniform("inputs", self.program.inputs.index(str(node.attr)))
                values.append(self.value(f"{self.of_step(self.local[node])}[{'0' if uniform else 'j'}]"))
            else:
                values.append(self.at(node))
        return f"{function.name}({', '.join([*values, *targets])});"

    def each(self, function: Function, targets: Sequence[str], where: Mapping[Node, str]) -> List[str]:
        """A step of each of a thread's neurons; no target is an argument, too, so that it may be computed twice."""
        return [*self.quickly(function, targets, where), *self.plainly(function, targets, where)]

    def quickly(self, function: Function, targets: Sequence[str], where: Mapping[Node, str]) -> List[str]:
        """The first lines of :meth:`each`, behind which the divisions of a few numbers may be wrong."""
        if not function.template:
            return over_neurons([self.call(function, targets, where)])
        return ["Quick quick;", *over_neurons([self.call(function, [*targets, "quick"], where)])]

    def plainly(self, function: Function, targets: Sequence[str], where: Mapping[Node, str]) -> List[str]:
        """The lines behind them, which compute a step again where a division may be wrong."""
        if not function.template:
            return []
        plain = over_neurons([self.call(function, [*targets, "plain"], where)])
        return ["if (!quick.sure) {", "    Plain plain;", *indented(plain), "}"]

    def of_step(self, stream: str) -> str:
        """The numbers of this thread at step t, of a tensor that is read step by step."""
        return self.unique(f"{stream}_t") if self.form.staged or self.form.ahead else f"{stream}[t]"

    # -- text

    def function(
        self,
        name: str,
        results: Mapping[str, Node],
        sums: Mapping[str, Node] = {},
        known: Mapping[Node, str] = {},
    ) -> Function:
        """A device function that sets its last arguments to the results and adds to the sums.

        ``known`` are values that it takes, and need not compute, by their names. A function with divisions that are
        verified together takes ``how`` they are made.
        """
        roots = [*results.values(), *sums.values()]
        # what is computed before the first step is an argument of the function, and so is what backward kept
        order = topological(roots, known=[*self.uniform, *self.varying, *known])
        used = {arg for node in order for arg in node.args} | set(order) | set(roots)
        names = {node: self.local[node] for node in self.local if node in used}
        names.update((node, name_of) for node, name_of in known.items() if node in used)
        takes = tuple(names)
        targets = [self.unique(target) for target in (*results, *sums)]
        arguments = [f"const {self.type_of(node)} {names[node]}" for node in takes]
        # results go out by reference: CUDA's compiler inlines the function, and no structure is needed
        arguments += [f"{self.real}& {target}" for target in targets]
        body = self.printer.block(roots, names, self.program.labels, name_roots=False)
        for k, (target, root) in enumerate(zip(targets, roots)):
            if k >= len(results) and root.op == "mul" and root not in names and self._contracts:
                a, b = (names.get(arg) or self.printer.expression(arg, names) for arg in root.args)
                body.append(f"{target} = multiply_add({a}, {b}, {target});")
                continue
            sign = "=" if k < len(results) else "+="
            body.append(f"{target} {sign} {names.get(root) or self.printer.expression(root, names)};")
        if not any("how)" in line for line in body):
            return Function(name, arguments, body, takes)
        return Function(name, [*arguments, "How& how"], body, takes, "template <typename How> ")
