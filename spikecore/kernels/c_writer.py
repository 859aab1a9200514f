"""Kernels in dialects of C: a neuron goes through all its steps, with its states in local variables.

The neurons are those of a loop, or each is one thread's, as ``Dialect.neuron`` says.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from spikecore.kernels._plan import BackwardPlan, ForwardPlan, Geometry
from spikecore.kernels.writing import (
    BACKWARD_GROUPS,
    FILLED,
    FORWARD_GROUPS,
    STORED,
    Argument,
    KernelPrinter,
    KernelWriter,
    dtype_name,
    filled,
    indented,
    input_leaf,
    named,
    output_cotangent,
    state_cotangent,
    state_leaf,
)
from spikecore.lang import Node, topological
from spikecore.lang.c import CPrinter, helpers
from spikecore.lang.dialects import Dialect, Stored

#: What a tensor of one step is read and written at: the neuron.
AT = "[i]"
#: Place of the neuron in a step of an input of each kind.
PLACES = {"": " + i", "period": " + in_period", "step": ""}


class Kernel(NamedTuple):
    """A printed kernel. It takes the numbers of steps and of neurons, and then its arguments."""

    name: str
    text: str
    arguments: Tuple[Argument, ...]
    #: The groups of tensors of a launch.
    groups: Tuple[str, ...]
    #: True if one argument has all pointers.
    together: bool = False

    def values(self, geometry: Geometry, tensors: Sequence[Any], span: int = 0) -> List[Any]:
        """The arguments of a launch: numbers, and tensors where an argument is a pointer. ``tensors`` are those of each
        group; ``span`` is how many sums a step has.
        """
        groups, sizes = dict(zip(self.groups, tensors)), {"period": geometry.period, "span": span}
        values: List[Any] = []
        for _, kind, group, number in self.arguments:
            if kind in ("pointer", "number"):
                values.append(groups[group][number])
            elif kind == "stride":
                values.append(groups[group][number].stride(0))
            elif kind in sizes:
                values.append(sizes[kind])
            else:
                inner, channels = geometry.channels[number]
                values.append(channels if kind == "channels" else inner)
        return values


class KernelCPrinter(CPrinter, KernelPrinter):
    """A dialect of C with the names of kernels."""


class Writer(KernelWriter):
    """Writes the lines of one kernel."""

    neurons_of = f"{{}}{AT}"
    groups: Tuple[str, ...]

    def __init__(
        self, dialect: Dialect, plan: Union[ForwardPlan, BackwardPlan], direction: str, roots: Sequence[Node]
    ) -> None:
        self.dialect, self.integer = dialect, dialect.integer
        #: The beginning of the loop over all steps.
        self.over_steps = f"for ({self.integer} t = 0; t < steps; ++t) {{"
        self.real = "double" if plan.compute == torch.float64 else "float"
        #: Inputs, outputs and their gradients in memory, where they are not of the type of arithmetic.
        self.stored: Optional[Stored] = dialect.stored.get(dtype_name(plan.dtype))
        super().__init__(plan, direction, KernelCPrinter(dialect, self.real), roots)
        #: What is computed before the first step -> its name.
        self.names: Dict[Node, str] = {}
        self.name_hoisted()

    def load(self, name: str, group: str, index: int) -> str:
        """A number of a tensor of all steps, at step and neuron. One step that stands for all has stride 0."""
        at = f"t * {self.argument(f'{name}_step', 'stride', group, index)}"
        at += PLACES[self.input_kind(index) if group == "inputs" else ""]
        load = self.stored.load if self.stored and group in STORED else "{pointer}[{at}]"
        return load.format(pointer=self.argument(name, "pointer", group, index), at=at)

    def store(self, name: str, group: str, index: int, value: str) -> str:
        """The line that fills a tensor of all steps, at step and neuron."""
        store = self.stored.store if self.stored and group in STORED else "{pointer}[{at}] = {value}"
        pointer = self.argument(name, "pointer", group, index)
        return f"{store.format(pointer=pointer, at='t * neurons + i', value=value)};"

    def declared(self, name: str, value: str) -> str:
        """A variable that changes."""
        return f"{self.real} {name} = {value};"

    def constant(self, name: str, value: str) -> str:
        """A variable that does not change."""
        return f"const {self.declared(name, value)}"

    # -- parameters and what is computed from them

    def _read_params(self, *kinds: str) -> List[str]:
        lines = []
        for leaf in self.params_of(*kinds):
            name, kind = self.local[leaf], self.kinds[str(leaf.attr)]
            if leaf not in self.used:
                continue
            if kind == "number":
                self.argument(name, "number", *self.param_place(leaf))
            elif kind == "channel":
                tensor, inner, channels = self.channel(leaf)
                lines.append(self.constant(name, f"{tensor}[i / {inner} % {channels}]"))
            else:
                tensor = self.argument(f"{name}s", "pointer", *self.param_place(leaf))
                lines.append(self.constant(name, f"{tensor}{AT if kind == 'full' else '[0]'}"))
            self.names[leaf] = name
        return lines

    def _computed_once(self, nodes: Sequence[Node]) -> List[str]:
        lines = []
        for node in nodes:
            # step by step under its own name: a value and itself detached have two
            lines += self.printer.block([node], self.names, self.program.labels, name_roots=False)
            if node not in self.names:
                lines.append(self.printer.statement(node, self.local[node], self.names))
                self.names[node] = self.local[node]
        return lines

    def starting(self, states: Sequence[str]) -> List[str]:
        """Lines that give states their first values."""
        lines = []
        for index, (name, initial) in enumerate(zip(self.program.states, self.program.initial)):
            if name in states:
                value = self.printer.expression(initial, self.names)
                if self.plan.has_initial_state:
                    value = self.one(f"{self.state(name)}_start", "state", index)
                lines.append(self.declared(self.state(name), value))
        return lines

    # -- one step

    def step_names(self) -> Dict[Node, str]:
        """The names of all that a step can read."""
        states = {state_leaf(name): self.state(name) for name in self.program.states}
        return {**self.names, **states, **{input_leaf(name): self.input(name) for name in self.program.inputs}}

    def inputs(self, roots: Sequence[Node]) -> List[str]:
        """Lines that read the inputs of a step which these values are computed from."""
        leaves = self.leaves_of(roots)
        lines = []
        for index, name in enumerate(self.program.inputs):
            if input_leaf(name) in leaves:
                local = self.input(name)
                lines.append(self.constant(local, self.load(f"{local}s", "inputs", index)))
        return lines

    def moved(self, values: Dict[str, Node], names: Dict[Node, str]) -> List[str]:
        """Lines that give variables their next values, which may be computed from any of them."""
        following = {variable: self.free(f"{variable}_next") for variable in values}
        lines = [self.constant(following[v], self.value(node, names)) for v, node in values.items()]
        return [*lines, *(f"{variable} = {name};" for variable, name in following.items())]

    def value(self, node: Node, names: Dict[Node, str]) -> str:
        """The text of a value that a block has computed, or that is a leaf."""
        return names.get(node) or self.printer.expression(node, names)

    def leaves_of(self, roots: Sequence[Node]) -> Sequence[Node]:
        """The leaves that some values are computed from."""
        return [node for node in topological(roots, known=self.names) if node.is_leaf]

    # -- text

    def finished(self, uniform: List[str], of_neuron: List[str]) -> Kernel:
        """The kernel: ``uniform`` lines come once, ``of_neuron`` for every neuron."""
        if "period" in self.plan.broadcast:
            of_neuron = [f"const {self.integer} in_period = i % {self.argument('period', 'period')};", *of_neuron]
        dialect, arguments = self.dialect, self.arguments.all()
        definitions: List[str] = []
        taken: List[str] = []
        words = self._declarations(arguments)
        if dialect.most:
            definitions, words, taken = self._together(arguments)
        head = [f"{dialect.kernel} {self.name}(", *filled([f"{word}," for word in words], 112)]
        head[-1] = head[-1].rstrip(",")
        if dialect.neuron:
            thread = [f"const {self.integer} i = {dialect.neuron};", "if (i >= neurons) return;"]
            lines = [*taken, *thread, *uniform, *of_neuron]
        else:
            lines = [*uniform, f"for ({self.integer} i = 0; i < neurons; ++i) {{", *indented(of_neuron), "}"]
        body = [*head, ") {", *indented(lines), "}"]
        before = [*definitions, *helpers("\n".join(body), self.real, dialect)]
        before += [self.stored.definition] if self.stored and self.stored.definition else []
        write = self.printer.named([*definitions, *body])
        top = [f"// {self.title()}", *self.listing("//"), ""]
        top += [*dialect.includes, ""] if dialect.includes else []
        text = "\n".join([*top, *dialect.no_contraction, "", *map(write, before), "", *map(write, body)])
        return Kernel(write(self.name), f"{text}\n", named(arguments, write), self.groups, bool(definitions))

    def _pointer(self, argument: Argument) -> str:
        """The declaration of a pointer."""
        const = "" if argument.group in (*FILLED, "history") else "const "
        kind = self.stored.type if self.stored and argument.group in STORED else self.real
        return self.dialect.pointer.format(type=f"{const}{kind}", name=argument.name)

    def _declarations(self, arguments: Sequence[Argument]) -> List[str]:
        """The declarations of a kernel's arguments, each by itself."""
        words = [f"const {self.integer} steps", f"const {self.integer} neurons"]
        for argument in arguments:
            number = f"const {self.real if argument.kind == 'number' else self.integer} {argument.name}"
            words.append(self._pointer(argument) if argument.kind == "pointer" else number)
        return words

    def _together(self, arguments: Sequence[Argument]) -> Tuple[List[str], List[str], List[str]]:
        """Definitions, declarations of few arguments, and lines that take out of these what they have."""
        definitions, words, lines = [], [], []
        numbers = self._declarations([argument for argument in arguments if argument.kind != "pointer"])
        for name, kind in (("integers", self.integer), ("numbers", self.real)):
            own = [word for word in numbers if word.startswith(f"const {kind} ")]
            words += [self.dialect.numbers.format(type=kind, name=name)] if own else []
            lines += [f"{word} = {name}[{k}];" for k, word in enumerate(own)]
        pointers = [argument for argument in arguments if argument.kind == "pointer"]
        declared = [self._pointer(argument) for argument in pointers]
        if len(words) + len(declared) > self.dialect.most:
            definitions = ["struct Tensors {", *indented(f"{word};" for word in declared), "};"]
            lines += [f"{word} = tensors.{argument.name};" for word, argument in zip(declared, pointers)]
            declared = ["constant Tensors &tensors"]
        return definitions, [*words, *declared, self.dialect.position], lines


class ForwardWriter(Writer):
    """Writes the forward kernel of a plan."""

    plan: ForwardPlan
    groups = FORWARD_GROUPS

    def __init__(self, dialect: Dialect, plan: ForwardPlan) -> None:
        super().__init__(dialect, plan, "forward", plan.roots)

    def kernel(self) -> Kernel:
        """The kernel."""
        plan, program = self.plan, self.program
        uniform = [*self._read_params("number", "scalar"), *self._computed_once(self.uniform)]
        of_neuron = [
            *self._read_params("channel", "full"),
            *self._computed_once(self.varying),
            *self.starting(program.states),
        ]
        names = self.step_names()
        step = [*self.inputs(plan.roots), *self.printer.block(plan.roots, names, program.labels, name_roots=False)]
        for k, node in enumerate(program.outputs):
            step.append(self.store(self.output_name(k), "outputs", k, self.value(node, names)))
        step += self.moved({self.state(name): node for name, node in zip(program.states, program.next)}, names)
        for k, name in enumerate(plan.record):
            step.append(self.store(f"{self.state(name)}_trace", "trace", k, self.state(name)))
        of_neuron += [self.over_steps, *indented(step), "}"]
        for k, name in enumerate(program.states if plan.final else ()):
            of_neuron.append(f"{self.one(f'{self.state(name)}_end', 'final', k)} = {self.state(name)};")
        return self.finished(uniform, of_neuron)


class BackwardWriter(Writer):
    """Writes the backward kernel of a plan: the states before each step, and then the adjoint from the last one on."""

    plan: BackwardPlan
    groups = (*BACKWARD_GROUPS, "history")

    def __init__(self, dialect: Dialect, plan: BackwardPlan) -> None:
        super().__init__(dialect, plan, "backward", [*plan.roots, *plan.following.values()])

    def kernel(self) -> Kernel:
        """The kernel."""
        plan = self.plan
        uniform = [*self._read_params("number", "scalar"), *self._computed_once(self.uniform)]
        of_neuron = [*self._read_params("channel", "full"), *self._computed_once(self.varying)]
        if plan.recomputed_states:
            of_neuron += ["{", *indented(self._recomputed()), "}"]
        for name in plan.carried_cotangents:
            index = self.program.states.index(name)
            final = self.one(f"{self.carried(name)}_end", "grad_final", index) if plan.final else self._zero
            of_neuron.append(self.declared(self.carried(name), final))
        sums = {name: self.free(f"{self.param(name)}_sum") for name in plan.learn}
        of_neuron += [self.declared(name, self._zero) for name in sums.values()]
        of_neuron += [
            f"for ({self.integer} t = steps - 1; t >= 0; --t) {{",
            *indented(self._adjoint(sums)),
            "}",
        ]
        for k, name in enumerate(self.program.states if plan.state else ()):
            of_neuron.append(f"{self.one(f'{self.carried(name)}_start', 'grad_state', k)} = {self.carried(name)};")
        for k, name in enumerate(plan.learn):
            of_neuron.append(f"{self.one(f'grad_{self.param(name)}', 'grad_params', k)} = {sums[name]};")
        return self.finished(uniform, of_neuron)

    @property
    def _zero(self) -> str:
        return self.printer.number(0.0)

    def _history(self, name: str) -> str:
        """A state of this neuron before step t. Threads keep those of all neurons, a loop those of one."""
        index = self.plan.recomputed_states.index(name)
        at = "t * neurons + i" if self.dialect.neuron else "t"
        return f"{self.argument(f'{self.state(name)}_before', 'pointer', 'history', index)}[{at}]"

    def _recomputed(self) -> List[str]:
        """The loop that keeps the states before each step."""
        following = self.plan.following
        names = self.step_names()
        step = [f"{self._history(name)} = {self.state(name)};" for name in following]
        roots = [*following.values()]
        step += [*self.inputs(roots), *self.printer.block(roots, names, self.program.labels, name_roots=False)]
        step += self.moved({self.state(name): node for name, node in following.items()}, names)
        return [*self.starting([*following]), self.over_steps, *indented(step), "}"]

    def _adjoint(self, sums: Dict[str, str]) -> List[str]:
        """The lines of one step backwards."""
        plan, adjoint, program = self.plan, self.plan.adjoint, self.program
        names, leaves, lines = self.step_names(), self.leaves_of(plan.roots), self.inputs(plan.roots)
        for name in plan.recomputed_states:
            if state_leaf(name) in leaves:
                lines.append(self.constant(self.state(name), self._history(name)))
        for k, index in enumerate(plan.arriving):
            leaf = output_cotangent(index)
            if leaf in leaves:
                lines.append(self.constant(self.local[leaf], self.load(f"{self.local[leaf]}s", "grad_outputs", k)))
                names[leaf] = self.local[leaf]
        for name in plan.carried_cotangents:
            names[state_cotangent(name)] = self.carried(name)
        for k, name in enumerate(plan.trace):
            if name in plan.carried_cotangents:
                lines.append(f"{self.carried(name)} += {self.load(f'{self.carried(name)}_trace', 'grad_trace', k)};")
        lines += self.printer.block(plan.roots, names, program.labels, name_roots=False)
        for k, index in enumerate(plan.written):
            name = f"grad_{self.input(program.inputs[index])}s"
            lines.append(self.store(name, "grad_inputs", k, self.value(adjoint.inputs[index], names)))
        for k, index in enumerate(plan.summed, len(plan.learn)):
            name, span = f"grad_{self.input(program.inputs[index])}_sums", self.argument("span", "span")
            tensor = self.argument(name, "pointer", "grad_params", k)
            lines.append(f"{tensor}[t * {span} + i % {span}] += {self.value(adjoint.inputs[index], names)};")
        lines += [f"{sums[name]} += {self.value(node, names)};" for name, node in zip(plan.learn, adjoint.params)]
        of_states = dict(zip(program.states, adjoint.states))
        return [*lines, *self.moved({self.carried(name): of_states[name] for name in plan.carried_cotangents}, names)]


def printed(dialect: Dialect, plan: Union[ForwardPlan, BackwardPlan]) -> Kernel:
    """The kernel of a plan in a dialect."""
    if isinstance(plan, ForwardPlan):
        return ForwardWriter(dialect, plan).kernel()
    return BackwardWriter(dialect, plan).kernel()
