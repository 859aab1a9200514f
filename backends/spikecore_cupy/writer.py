"""What the kernels of both directions are written with: names, arguments, device functions, values per neuron."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

from spikecore.kernels import BackwardPlan, ForwardPlan, hoisted
from spikecore.lang import Node, topological
from spikecore.lang.render import on_one_line
from spikecore_cupy.lines import commented, folded, indented, over_neurons, wrapped
from spikecore_cupy.printer import TYPES, CudaPrinter

#: Steps whose inputs a thread holds in registers at a time.
CHUNK = 16

#: Kinds of arguments, in the order that a kernel has them.
ORDER = ("pointer", "sum", "stride", "inner", "channels", "number")

#: Threads of a block.
BLOCK = 128
#: Groups of tensors in the dtype of inputs and outputs; the others are in that of arithmetic.
STORED = ("inputs", "outputs", "grad_outputs", "grad_inputs")
#: Groups that a kernel fills.
FILLED = ("outputs", "final", "trace", "saved", "grad_inputs", "grad_state", "grad_params")


class Argument(NamedTuple):
    """One argument of a kernel.

    ``kind`` is a ``"pointer"`` to tensor ``number`` of a group, such a pointer for the ``"sum"`` that a parameter's
    gradient is, a tensor's ``"stride"`` from step to step, how a channel parameter lies (``"inner"``, ``"channels"``:
    see ``Geometry.channels``), or the ``"number"`` that a parameter is.
    """

    name: str
    kind: str
    group: str
    number: int


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

    @property
    def head(self) -> str:
        """What stands before its arguments."""
        return f"__device__ __forceinline__ void {self.name}("


class Writer:
    """Writes the lines of one kernel.

    ``roots`` are the values that its steps compute, ``rest`` those that it starts from; ``width`` is the number of
    neighbouring neurons that a thread computes. ``approximate`` are divisions that may be off.
    """

    def __init__(
        self,
        plan: Union[ForwardPlan, BackwardPlan],
        direction: str,
        width: int,
        roots: Sequence[Node],
        rest: Sequence[Node],
        approximate: FrozenSet[Node] = frozenset(),
    ) -> None:
        self.plan, self.program, self.direction, self.width = plan, plan.program, direction, width
        self.stored, self.real = TYPES[plan.dtype], TYPES[plan.compute]
        self.uniform, self.varying = hoisted(plan.program, plan.spec, roots)
        self.printer = CudaPrinter(plan.compute, approximate, plan.program.numbers)
        self.name = self.printer.symbols.new(f"{plan.program.name.lower()}_{direction}")
        #: Whether the number of steps is a constant of the kernel.
        self.fixed = plan.spec.steps is not None
        #: Which of a chunk's loaded steps is the one of step t.
        self.now = "t" if self.fixed else "k"
        self._arguments: Dict[str, Argument] = {}
        program = plan.program
        cotangents = [Node("out_grad", (), i) for i in range(len(program.outputs))]
        cotangents += [Node("next_grad", (), name) for name in program.states]
        #: The name of each leaf, and of each expression of parameters that is computed before the first step.
        self.local: Dict[Node, str] = {}
        for leaf in (*program.leaves, *cotangents):
            self.local[leaf] = self.printer.symbol(leaf)
        for node in (*self.uniform, *self.varying):
            word = program.labels.get(node, "k")
            name = self.printer.label(node, word)
            # a value and the same value detached are two arguments of a step
            self.local[node] = self.free(word) if name in self.local.values() else name
        used = set(topological([*roots, *rest]))
        kinds = dict(zip(program.params, plan.spec.params))
        params = [leaf for leaf in program.leaves if leaf.op == "param" and leaf in used]
        self._one = [leaf for leaf in params if kinds[str(leaf.attr)] in ("number", "scalar")]
        self._many = [leaf for leaf in params if leaf not in self._one]
        self._kinds = kinds
        #: Values that are one for all neurons; the others are one for each.
        self.shared: Set[Node] = {*self._one, *self.uniform}

    # -- names and arguments

    def free(self, name: str) -> str:
        """A symbol that would like this name, and is no other one."""
        return self.printer.symbols.new(name)

    def unique(self, name: str) -> str:
        """The symbol that would like this name, the same wherever it is asked for."""
        return self.printer.symbols.of(("unique", name), name)

    def argument(self, name: str, kind: str, group: str, index: int) -> str:
        """The name of an argument, which the kernel has from now on."""
        key = f"{kind} {group} {index}"
        if key not in self._arguments:
            self._arguments[key] = Argument(self.printer.symbols.of(key, name), kind, group, index)
        return self._arguments[key].name

    def one(self, name: str, group: str, index: int) -> str:
        """Where a tensor of one step has this thread's neurons."""
        kind = "sum" if group == "grad_params" else "pointer"
        return f"{self.argument(name, kind, group, index)} + i"

    def all(self, name: str, group: str, index: int) -> str:
        """Where a tensor of all steps has this thread's neurons at step t."""
        step = "t" if self.fixed else "(begin + t)"
        stride = "neurons" if group in FILLED else self.argument(f"{name}_step", "stride", group, index)
        return f"{self.argument(name, 'pointer', group, index)} + {step} * {stride} + i"

    def output_name(self, index: int) -> str:
        """What the tensor of an output is called."""
        return "outs" if len(self.program.outputs) == 1 else f"outs{index}"

    # -- values

    def at(self, node: Node, index: str = "j") -> str:
        """A value computed before the first step, at a neuron of this thread."""
        return self.local[node] if node in self.shared else f"{self.local[node]}[{index}]"

    def value(self, text: str) -> str:
        """A number of the dtype of inputs and outputs, as one of arithmetic."""
        return text if self.stored == self.real else f"value({text})"

    def conversion(self, node: Node) -> str:
        """The function from a number of arithmetic to the dtype of outputs; a spike is only ever 0 or 1."""
        return f"{'spike' if node.op == 'spike' else 'rounded'}<{self.stored}>"

    def type_of(self, node: Node) -> str:
        """The type of a value of arithmetic."""
        return "bool" if node.is_bool else self.real

    def pack(self, name: str, kind: str = "") -> str:
        """The declaration of numbers of this thread's neurons."""
        return f"Pack<{kind or self.real}, V> {name};"

    def opening(self) -> List[str]:
        """What is computed before the first step."""
        lines = []
        names: Dict[Node, str] = {}
        for leaf in self._one:
            name = names[leaf] = self.local[leaf]
            if self._kinds[str(leaf.attr)] == "scalar":
                lines.append(f"const {self.real} {name} = *{self.argument(f'{name}s', 'pointer', *self._param(leaf))};")
            else:
                self.argument(name, "number", *self._param(leaf))
        lines += self.printer.block(self.uniform, names, self.local)
        for node in self.uniform:
            # a detached value has no line in a block
            if names.get(node) != self.local[node]:
                value = names.get(node) or self.printer.expression(node, names)
                lines.append(f"const {self.real} {self.local[node]} = {value};")
                names[node] = self.local[node]
        for leaf in self._many:
            name = self.local[leaf]
            if self._kinds[str(leaf.attr)] == "full":
                place = self.one(f"{name}s", *self._param(leaf))
                lines.append(f"const Pack<{self.real}, V> {name} = load<V>({place});")
            else:
                lines += [self.pack(name), *over_neurons([f"{name}[j] = {self._channel(leaf)};"])]
        for node in self.varying:
            inside = {**names, **{leaf: self.at(leaf) for leaf in self._many}}
            inside.update((other, self.at(other)) for other in self.varying if other is not node)
            within = self.printer.block([node], inside, name_roots=False)
            name, text = self.local[node], inside.get(node) or self.printer.expression(node, inside)
            lines += [self.pack(name, self.type_of(node)), *over_neurons([*within, f"{name}[j] = {text};"])]
        return lines

    def _param(self, leaf: Node) -> Tuple[str, int]:
        return "params", self.program.params.index(str(leaf.attr))

    def _channel(self, leaf: Node) -> str:
        name = self.local[leaf]
        tensor = self.argument(f"{name}s", "pointer", *self._param(leaf))
        inner = self.argument(f"{name}_inner", "inner", *self._param(leaf))
        return f"{tensor}[channel(i + j, {inner}, {self.argument(f'{name}_channels', 'channels', *self._param(leaf))})]"

    def starting(self, state: str, target: str) -> List[str]:
        """Lines that give a state its first value."""
        index = self.program.states.index(state)
        if self.plan.has_initial_state:
            name = f"{self.local[Node('state', (), state)]}_start"
            return [f"{target} = load<V>({self.one(name, 'state', index)});"]
        names = {leaf: self.at(leaf) for leaf in (*self._one, *self._many)}
        return over_neurons([f"{target}[j] = {self.printer.expression(self.program.rest[index], names)};"])

    # -- text

    def function(
        self,
        name: str,
        results: Mapping[str, Node],
        sums: Mapping[str, Node] = {},
        known: Mapping[Node, str] = {},
    ) -> Function:
        """A device function that sets its last arguments to the results and adds to the sums.

        ``known`` are values that it takes, and need not compute, by their names.
        """
        roots = [*results.values(), *sums.values()]
        order = topological(roots, known=[*self.uniform, *self.varying, *known])
        used = {arg for node in order for arg in node.args} | set(order) | set(roots)
        names = {node: self.local[node] for node in self.local if node in used}
        names.update((node, given) for node, given in known.items() if node in used)
        takes = tuple(names)
        targets = [self.unique(target) for target in (*results, *sums)]
        arguments = [f"const {self.type_of(node)} {names[node]}" for node in takes]
        arguments += [f"{self.real}& {target}" for target in targets]
        body = self.printer.block(roots, names, self.program.labels, name_roots=False)
        for k, (target, root) in enumerate(zip(targets, roots)):
            sign = "=" if k < len(results) else "+="
            body.append(f"{target} {sign} {names.get(root) or self.printer.expression(root, names)};")
        return Function(name, arguments, body, takes)

    def finished(self, functions: Sequence[Function], body: Sequence[str]) -> Source:
        """The kernel: its text, and what a launch needs beside it."""
        arguments = sorted(self._arguments.values(), key=lambda argument: ORDER.index(argument.kind))
        steps = self.plan.spec.steps if self.fixed else CHUNK
        types = ["long long", *([] if self.fixed else ["int"]), *map(self._type, arguments)]
        names = ["neurons", *([] if self.fixed else ["steps"]), *(argument.name for argument in arguments)]
        words = [_declared(kind, name) for kind, name in zip(types, names)]
        around = [
            '#include "spikecore.cuh"',
            "",
            f"constexpr int V = {self.width};  // neighbouring neurons of a thread",
            f"constexpr int T = {steps};  // time steps" + ("" if self.fixed else " of a chunk"),
        ]
        head = f'extern "C" __global__ void __launch_bounds__({BLOCK}) {self.name}('
        body = ["const long long i = V * (blockIdx.x * (long long)blockDim.x + threadIdx.x);", *body]
        inside = [line for f in functions for line in (f.head, *f.arguments, *f.body)]
        write = self.printer.named([*around, *inside, head, *words, *body])
        what = f"{_words(self.plan.dtype)} in memory, {_words(self.plan.compute)} arithmetic"
        lines = [
            f"// {on_one_line(self.program.name)}, {self.direction}: {what}.",
            "//",
            *commented(str(self.program)),
            "",
            *around,
            "",
        ]
        for function in functions:
            lines += [function.head, *wrapped(map(write, function.arguments)), ") {"]
            lines += [*indented(map(write, function.body)), "}", ""]
        lines += [write(head), *wrapped(map(write, words)), ") {", *indented(map(write, body)), "}"]
        text = "\n".join(part for line in lines for part in folded(line))
        named = tuple(argument._replace(name=write(argument.name)) for argument in arguments)
        return Source(write(self.name), f"{text}\n", self.fixed, named, tuple(types))

    def _type(self, argument: Argument) -> str:
        if argument.kind == "number":
            return self.real
        if argument.kind in ("stride", "inner", "channels"):
            return "long long"
        kind = self.stored if argument.group in STORED else self.real
        reads = argument.group not in FILLED or (argument.group == "saved" and self.direction == "backward")
        return f"{'const ' if reads else ''}{kind}*"


def _declared(kind: str, name: str) -> str:
    return f"{kind} __restrict__ {name}" if "*" in kind else f"const {kind} {name}"


def _words(dtype: object) -> str:
    return str(dtype).partition(".")[2]
