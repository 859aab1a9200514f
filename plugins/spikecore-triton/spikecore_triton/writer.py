"""What the kernels of both directions are written with: names, arguments, functions of a step, the frame."""

from __future__ import annotations

import re
import textwrap
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

import torch

from spikecore.kernels import BackwardPlan, ForwardPlan, hoisted
from spikecore.lang import Node, Program, topological
from spikecore.lang.node import SpikeRule, substitute
from spikecore.lang.render import on_one_line
from spikecore_triton.printer import TritonPrinter

#: Steps whose loads are issued together, and between two checkpoints of the states.
CHUNK = 16
#: Threads of a block.
THREADS = 128
#: Bytes of a tensor that a thread reads at a time, and registers that it may spend on what waits for the way back.
BYTES, BUDGET = 8, 64

#: Kinds of arguments, in the order that a kernel has them.
ORDER = ("neurons", "chunks", "stride", "inner", "channels", "number", "pointer")
_ANNOTATION = {"number": ": tl.float32", "pointer": ""}

#: Tensors of all steps that a kernel fills; their steps are N numbers apart.
_FILLED = ("outputs", "trace", "grad_inputs")
#: Leaves that a step is computed from, but for parameters.
_MOVING = ("input", "state", "out_grad", "next_grad")


class Argument(NamedTuple):
    """One argument of a kernel.

    ``kind`` is a ``"pointer"`` to tensor ``number`` of a group, its ``"stride"`` from step to step, how a channel
    parameter lies (``"inner"``, ``"channels"``: see ``Geometry.channels``), the ``"number"`` that a parameter is, or
    one of the sizes ``"neurons"`` and ``"chunks"``.
    """

    name: str
    kind: str
    group: str = ""
    number: int = 0


class Source(NamedTuple):
    """A printed kernel."""

    name: str
    text: str
    arguments: Tuple[Argument, ...]
    #: Neurons of a block.
    block: int


class Function(NamedTuple):
    """A function of a step: what it is called, and the leaves that are its arguments."""

    name: str
    leaves: Tuple[Node, ...]

    def call(self, values: Mapping[Node, str]) -> str:
        """The text of a call."""
        return f"{self.name}({', '.join(values[leaf] for leaf in self.leaves)})"


class Writer:
    """Writes the lines of one kernel. ``roots`` are the values that its steps compute."""

    def __init__(self, plan: Union[ForwardPlan, BackwardPlan], direction: str, roots: Sequence[Node]) -> None:
        self.plan, self.program, self.direction = plan, plan.program, direction
        self.printer = TritonPrinter(_of_surrogates(plan.program))
        self.name = self.printer.symbols.new(f"{plan.program.name.lower()}_{direction}")
        self._arguments: Dict[Tuple[str, str, int], Argument] = {}
        self._functions: List[List[str]] = []
        self._varies: Dict[Node, bool] = {}
        self.argument("neurons", "neurons")
        #: The name of each leaf.
        self.local: Dict[Node, str] = {}
        for leaf in (*plan.program.leaves, *_cotangents(plan.program)):
            only = leaf.op == "out_grad" and len(plan.program.outputs) == 1
            self.local[leaf] = self.printer.symbols.of(leaf, "grad_out" if only else self.printer.leaf(leaf))
        self._uniform, self._varying = hoisted(plan.program, plan.spec, roots)
        self._used = set(topological(roots))
        #: The names of what is the same at every step: parameters, and expressions of them alone.
        self.fixed: Dict[Node, str] = {leaf: self.local[leaf] for leaf in plan.program.leaves if leaf.op == "param"}

    # -- names and arguments

    def free(self, name: str) -> str:
        """A symbol that would like this name, and is no other one."""
        return self.printer.symbols.new(name)

    def label(self, node: Node, otherwise: str) -> str:
        """The symbol of a value: the definition's name for it, or another one."""
        return self.printer.label(node, self.program.labels.get(node, otherwise))

    def kept(self, node: Node, between: Mapping[Node, str]) -> str:
        """The symbol of a value of a forward step that backward keeps, beside those between the two already."""
        if node.op == "state":
            return self.free(f"{self.local[node]}_before")
        name = self.label(node, "kept")
        # a value that is kept and detached, too, is kept twice
        return self.free(name) if name in between.values() else name

    def argument(self, name: str, kind: str, group: str = "", number: int = 0) -> str:
        """The name of an argument, which the kernel has from now on."""
        key = (kind, group, number)
        if key not in self._arguments:
            # the frame's own names are reserved for it
            self._arguments[key] = Argument(name if kind == name else self.free(name), kind, group, number)
        return self._arguments[key].name

    def one(self, name: str, group: str, index: int) -> str:
        """Where the numbers of a tensor of one step are."""
        return f"{self.argument(name, 'pointer', group, index)} + at"

    def all(self, name: str, group: str, index: int, first: str, step: int) -> str:
        """Where those of a tensor of all steps are, at so many steps after the one that ``first`` names."""
        pointer = self.argument(name, "pointer", group, index)
        if not first and not step:
            return f"{pointer} + at"
        length = "neurons" if group in _FILLED else self.argument(f"{name}_step", "stride", group, index)
        count = f"({first} + {step})" if first and step else first or str(step)
        return f"{pointer} + {length} + at" if count == "1" else f"{pointer} + {count} * {length} + at"

    def output_name(self, index: int) -> str:
        """What the tensor of an output is called."""
        return "outs" if len(self.program.outputs) == 1 else f"outs{index}"

    def varies(self, node: Node) -> bool:
        """Whether a value is another one for each neuron."""
        if node not in self._varies:
            kinds = dict(zip(self.program.params, self.plan.spec.params))
            self._varies[node] = any(
                leaf.op in _MOVING or (leaf.op == "param" and kinds[str(leaf.attr)] in ("channel", "full"))
                for leaf in topological([node])
            )
        return self._varies[node]

    # -- lines

    def function(self, suffix: str, roots: Sequence[Node], between: Mapping[Node, str] = {}) -> Function:  # only read
        """A function that computes the roots from their leaves, and from what is known ``between``."""
        known = {**self.fixed, **between}
        order = topological(roots, known=known)
        used = {arg for node in order for arg in node.args} | set(roots)
        moving = [leaf for leaf in self.local if leaf.op in _MOVING and leaf in used and leaf not in between]
        leaves = (*moving, *(node for node in known if node in used))
        names = {leaf: known.get(leaf) or self.local[leaf] for leaf in leaves}
        name = self.free(f"{self.program.name.lower()}_{suffix}")
        stored = [names[leaf] for leaf in moving if leaf.op in ("input", "out_grad")]
        lines = [f"{name} = {name}.to(tl.float32)" for name in stored if self.plan.dtype != self.plan.compute]
        lines += self.printer.block(roots, names, self.program.labels, name_roots=False)
        lines.append(f"return {', '.join(self.printer.typed(node, names) for node in roots)}")
        head = f"def {name}({', '.join(names[leaf] for leaf in leaves)}):"
        self._functions.append(["@triton.jit", head, *indented(lines)])
        return Function(name, leaves)

    def opening(self, rest: Sequence[Node]) -> List[str]:
        """What does not change from step to step, computed once; ``rest`` are values that are needed besides."""
        used = self._used | set(topological(rest))
        lines = []
        for index, (name, kind) in enumerate(zip(self.program.params, self.plan.spec.params)):
            leaf = Node("param", (), name)
            local = self.local[leaf]
            if leaf in used and kind == "number":
                self._arguments["number", "params", index] = Argument(local, "number", "params", index)
            elif leaf in used:
                lines.append(f"{local} = {self._loaded(f'{local}s', kind, index)}")
        for nodes in (self._uniform, self._varying):
            names = dict(self.fixed)
            lines += self.printer.block(nodes, names, {node: self.label(node, "k") for node in nodes})
            self.fixed.update((node, names[node]) for node in nodes if node in names)
        return lines

    def _loaded(self, name: str, kind: str, index: int) -> str:
        if kind == "full":
            return load(self.one(name, "params", index))
        pointer = self.argument(name, "pointer", "params", index)
        if kind == "scalar":
            return f"tl.load({pointer})"
        inner = self.argument(f"{name[:-1]}_inner", "inner", "params", index)
        channels = self.argument(f"{name[:-1]}_channels", "channels", "params", index)
        return load(f"{pointer} + at // {inner} % {channels}")

    def start(self, index: int) -> str:
        """The value of a state before the first step, in every lane."""
        local = self.local[Node("state", (), self.program.states[index])]
        if self.plan.has_initial_state:
            return load(self.one(f"{local}_start", "state", index))
        rest = self.program.rest[index]
        if self.varies(rest):
            return self.fixed[rest]
        return f"tl.full((BLOCK,), {self.fixed.get(rest) or self.printer.expression(rest)}, tl.float32)"

    def finished(self, body: Iterable[str]) -> Source:
        """The kernel: its module text and what a launch needs beside it."""
        arguments = sorted(self._arguments.values(), key=lambda a: ORDER.index(a.kind))
        signature = [f"{a.name}{_ANNOTATION.get(a.kind, ': tl.int64')}," for a in arguments] + ["BLOCK: tl.constexpr,"]
        # of these, no value is better than another
        free = [a.name for a in arguments if a.kind in ("chunks", "inner", "channels")]
        words = ", ".join(f'"{name}"' for name in free)
        decorator = f"@triton.jit(do_not_specialize=[{words}])" if free else "@triton.jit"
        body = [
            "at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "inside = at < neurons",
            *body,
        ]
        functions = [line for function in self._functions for line in function]
        imports = ["import triton\nimport triton.language as tl", *_imports("\n".join([*functions, *body]))]
        write = self.printer.named([*imports, *functions, self.name, *signature, decorator, *body])
        title = on_one_line(self.program.name).translate({ord(c): None for c in '"\\'})
        what = f"{_text(self.plan.dtype)} in memory, {_text(self.plan.compute)} arithmetic"
        head = [
            f'"""{title}, {self.direction}: {what}."""\n',
            *imports,
            "",
            *(f"# {line}" for line in str(self.program).splitlines()),
        ]
        kernel = [f"def {write(self.name)}(", _filled([*map(write, signature)]), "):", *indented(map(write, body))]
        parts = [[*map(write, function)] for function in self._functions]
        text = "\n\n\n".join("\n".join(lines) for lines in (head, *parts, [write(decorator), *kernel])) + "\n"
        named = tuple(argument._replace(name=write(argument.name)) for argument in arguments)
        return Source(write(self.name), text, named, block_of(self.plan))


def load(address: str, where: str = "inside", other: str = "") -> str:
    """The text that loads a block's numbers."""
    return f"tl.load({address}, mask={where}, other={other})" if other else f"tl.load({address}, mask={where})"


def store(address: str, value: str, where: str = "inside") -> str:
    """The line that stores a block's numbers, in the dtype of the memory."""
    return f"tl.store({address}, {value}, mask={where})"


def indented(lines: Iterable[str]) -> List[str]:
    """The lines, further in."""
    return ["    " + line for line in lines]


def block_of(plan: Union[ForwardPlan, BackwardPlan]) -> int:
    """Neurons of a block. A thread has two at least, and in a backward kernel no more than registers allow for what it
    keeps of every step of a chunk.
    """
    width = BYTES // plan.dtype.itemsize
    if isinstance(plan, BackwardPlan):
        arriving = sum(plan.outputs) * plan.dtype.itemsize / plan.compute.itemsize + len(plan.trace)
        registers = (plan.spec.steps or CHUNK) * (len(plan.cut) + arriving)
        while width > 2 and width * registers > BUDGET:
            width //= 2
    return THREADS * width


def _filled(words: Sequence[str]) -> str:
    """The words on as many lines as it takes, none of them broken."""
    # spaces within a word are replaced while textwrap breaks lines at the others
    text = textwrap.fill(
        " ".join(word.replace(" ", "\0") for word in words),
        116,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
    )
    return text.replace("\0", " ")


def _imports(body: str) -> List[str]:
    functions = "float32|greater|hold|lesser|negative_zero|sigmoid|sign"
    ours = sorted(set(re.findall(rf"(?<!\.)\b({functions})\(|\b(libdevice)\.", body)))
    names = sorted(function or library for function, library in ours)
    return [f"\nfrom spikecore_triton.functions import {', '.join(names)}"] if names else []


def _text(dtype: torch.dtype) -> str:
    return str(dtype).partition(".")[2]


def _cotangents(program: Program) -> List[Node]:
    outputs = [Node("out_grad", (), i) for i in range(len(program.outputs))]
    return [*outputs, *(Node("next_grad", (), name) for name in program.states)]


def _of_surrogates(program: Program) -> Set[Node]:
    """Divisions of surrogate derivatives, which stand for a derivative and need not be the last digit's."""
    found: Set[Node] = set()
    for node in program.nodes:
        if isinstance(node.attr, SpikeRule):
            derivative = substitute(node.attr.derivative, {Node("argument", (), "u"): node.args[0]})
            found |= {inner for inner in topological([derivative]) if inner.op == "div"}
    return found - set(program.nodes)
