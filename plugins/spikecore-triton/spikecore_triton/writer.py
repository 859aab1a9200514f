"""Shared code generation for forward and backward kernels: arguments, functions of a step, the frame.

A thread owns a few neurons and all their steps; states stay in registers. What a step computes is a function of its
own, which Triton inlines: so a text of many steps has the arithmetic once.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple, Union

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import (
    FILLED,
    Argument,
    KernelWriter,
    filled,
    indented,
    named,
    param_leaf,
)
from spikecore.lang import Node, Program, topological
from spikecore.lang.node import SpikeRule, substitute
from spikecore_triton.chunk import Chunk, load
from spikecore_triton.printer import TritonPrinter

#: Steps whose loads are issued together, and between two checkpoints of the states.
CHUNK = 16
#: Threads of a block.
THREADS = 128
#: Bytes of a tensor that a thread reads at a time, and registers that it may spend on what waits for the way back.
BYTES, BUDGET = 8, 64

#: Kinds of arguments, in the order that a kernel has them; ``"neurons"`` and ``"chunks"`` are sizes of a call.
ORDER = ("neurons", "chunks", "period", "stride", "inner", "channels", "number", "pointer")
_ANNOTATION = {"number": ": tl.float32", "pointer": ""}

#: Place of a block's neurons in a step of an input of each kind.
_PLACES = {"": "at", "period": "in_period", "step": "0 * at"}
#: Leaves that a step is computed from, but for parameters.
_MOVING = ("input", "state", "out_grad", "next_grad")


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


class Writer(KernelWriter):
    """Writes the lines of one kernel."""

    printer: TritonPrinter
    neurons_of = "{} + at"

    def __init__(self, plan: Union[ForwardPlan, BackwardPlan], direction: str, roots: Sequence[Node]) -> None:
        super().__init__(plan, direction, TritonPrinter(_of_surrogates(plan.program)), roots)
        self._functions: List[List[str]] = []
        self._varies: Dict[Node, bool] = {}
        # every kernel masks its lanes with it, so it is the first argument
        self.argument("neurons", "neurons")
        #: The names of what is the same at every step: parameters, and expressions of them alone.
        self.fixed: Dict[Node, str] = {leaf: self.local[leaf] for leaf in plan.program.leaves if leaf.op == "param"}

    # -- names and arguments

    def leaf_name(self, leaf: Node) -> str:
        """Preferred name of a leaf: the cotangent of an only output has no number."""
        only = leaf.op == "out_grad" and len(self.program.outputs) == 1
        return "grad_out" if only else super().leaf_name(leaf)

    def all(self, name: str, group: str, index: int, first: str, step: int) -> str:
        """Where those of a tensor of all steps are, at so many steps after the one that ``first`` names."""
        pointer = self.argument(name, "pointer", group, index)
        place = _PLACES[self.input_kind(index) if group == "inputs" else ""]
        if not first and not step:
            return f"{pointer} + {place}"
        length = "neurons" if group in FILLED else self.argument(f"{name}_step", "stride", group, index)
        # Triton folds constants, but people read the text: no `0 *` and no `1 *`
        count = f"({first} + {step})" if first and step else first or str(step)
        return f"{pointer} + {length} + {place}" if count == "1" else f"{pointer} + {count} * {length} + {place}"

    def checkpoint(self, name: str, chunk: str) -> str:
        """Address of the checkpoint of a state that ``chunk`` starts from; the first chunk has none."""
        tensor = f"{self.state(name)}_checkpoints"
        pointer = self.argument(tensor, "pointer", "checkpoints", self.plan.saved.index(name))
        return f"{pointer} + ({chunk} - 1) * neurons + at"

    def varies(self, node: Node) -> bool:
        """True if a value is another one for each neuron."""
        if node not in self._varies:
            self._varies[node] = any(
                leaf.op in _MOVING or (leaf.op == "param" and self.kinds[str(leaf.attr)] in ("channel", "full"))
                for leaf in topological([node])
            )
        return self._varies[node]

    # -- lines

    def function(self, suffix: str, roots: Sequence[Node], between: Mapping[Node, str] = {}) -> Function:  # only read
        """A function that computes the roots from their leaves, and from what is known ``between``."""
        known = {**self.fixed, **between}
        order = topological(roots, known=known)
        used = {arg for node in order for arg in node.args} | set(roots)
        # leaves in the order of the program, so that equal programs have equal texts
        moving = [leaf for leaf in self.local if leaf.op in _MOVING and leaf in used and leaf not in between]
        leaves = (*moving, *(node for node in known if node in used))
        names = {leaf: known.get(leaf) or self.local[leaf] for leaf in leaves}
        name = self.free(f"{self.owner}_{suffix}")
        # 16-bit numbers are widened inside the function, as late as possible: they take half a register until then
        stored = [names[leaf] for leaf in moving if leaf.op in ("input", "out_grad")]
        lines = [f"{name} = {name}.to(tl.float32)" for name in stored if self.plan.dtype != self.plan.compute]
        lines += self.printer.block(roots, names, self.program.labels, name_roots=False)
        lines.append(f"return {', '.join(self.printer.typed(node, names) for node in roots)}")
        head = f"def {name}({', '.join(names[leaf] for leaf in leaves)}):"
        self._functions.append(["@triton.jit", head, *indented(lines)])
        return Function(name, leaves)

    def load_all(self, lines: List[str], leaf: Node, group: str, index: int, chunk: Chunk) -> List[str]:
        """Load the values of a leaf at every step of a chunk; returns their names."""
        local = self.local[leaf]
        tensor = f"{local}s" if leaf.op == "input" else f"grad_{self.output_name(int(str(leaf.attr)))}"
        names = [self.free(f"{chunk.prefix}{local}_{t}") for t in range(chunk.steps)]
        for t, name in enumerate(names):
            lines.append(f"{name} = {load(self.all(tensor, group, index, chunk.first, t))}")
        return names

    def held(self, function: Function, values: Mapping[Node, str]) -> List[str]:
        """Numbers of 16 bits become wider where a function takes them, not before."""
        if self.plan.dtype == self.plan.compute:
            return []
        stored = [values[leaf] for leaf in function.leaves if leaf.op in ("input", "out_grad")]
        return [f"{name} = hold({name})" for name in stored]

    def opening(self) -> List[str]:
        """The values that do not change from step to step, computed once."""
        lines = []
        for leaf in map(param_leaf, self.program.params):
            local, place = self.local[leaf], self.param_place(leaf)
            if leaf in self.used and self.kinds[str(leaf.attr)] == "number":
                self.argument(local, "number", *place)
            elif leaf in self.used:
                lines.append(f"{local} = {self._loaded(leaf)}")
        for nodes in (self.uniform, self.varying):
            # one block after the other: a value with a number for each neuron may need one that all share
            names = dict(self.fixed)
            lines += self.printer.block(nodes, names, {node: self.label(node, "k") for node in nodes})
            self.fixed.update((node, names[node]) for node in nodes if node in names)
        return lines

    def _loaded(self, leaf: Node) -> str:
        kind, name, place = self.kinds[str(leaf.attr)], f"{self.local[leaf]}s", self.param_place(leaf)
        if kind == "full":
            return load(self.one(name, *place))
        if kind == "scalar":
            return f"tl.load({self.argument(name, 'pointer', *place)})"
        tensor, inner, channels = self.channel(leaf)
        return load(f"{tensor} + at // {inner} % {channels}")

    def start(self, name: str) -> str:
        """The value of a state before the first step, in every lane."""
        local, index = self.state(name), self.program.states.index(name)
        if self.plan.has_initial_state:
            return load(self.one(f"{local}_start", "state", index))
        initial = self.program.initial[index]
        value = self.fixed.get(initial) or self.printer.expression(initial, self.fixed)
        # Triton's loops carry values of one shape: a number must become one per lane
        return value if self.varies(initial) else f"tl.full((BLOCK,), {value}, tl.float32)"

    def finished(self, body: Iterable[str]) -> Source:
        """The kernel: its module text and what a launch needs beside it."""
        if "period" in self.plan.broadcast:
            body = [f"in_period = at % {self.argument('period', 'period')}", *body]
        arguments = self.arguments.ordered(ORDER)
        signature = [f"{a.name}{_ANNOTATION.get(a.kind, ': tl.int64')}," for a in arguments] + ["BLOCK: tl.constexpr,"]
        # Do not specialise on these arguments: Triton would compile further kernels for 1 and for multiples of 16, and
        # none would be faster.
        free = [a.name for a in arguments if a.kind in ("chunks", "inner", "channels")]
        words = ", ".join(f'"{name}"' for name in free)
        decorator = f"@triton.jit(do_not_specialize=[{words}])" if free else "@triton.jit"
        body = [
            # 64 bits: a tensor may have more than 2**31 numbers
            "at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "inside = at < neurons",
            *body,
        ]
        functions = [line for function in self._functions for line in function]
        imports = ["import triton\nimport triton.language as tl", *_imports("\n".join([*functions, *body]))]
        write = self.printer.named([*imports, *functions, self.name, *signature, decorator, *body])
        head = [
            f'"""{self.title(without=_QUOTES)}"""\n',
            *imports,
            "",
            *self.listing("#"),
        ]
        kernel = [f"def {write(self.name)}(", *filled(map(write, signature), 116), "):", *indented(map(write, body))]
        parts = [[*map(write, function)] for function in self._functions]
        text = "\n\n\n".join("\n".join(lines) for lines in (head, *parts, [write(decorator), *kernel])) + "\n"
        return Source(write(self.name), text, named(arguments, write), block_of(self.plan))


def block_of(plan: Union[ForwardPlan, BackwardPlan]) -> int:
    """Neurons of a block. A thread has two at least, and in a backward kernel no more than registers allow for what it
    keeps of every step of a chunk.
    """
    width = BYTES // plan.dtype.itemsize
    if isinstance(plan, BackwardPlan):
        # 16-bit cotangents wait two to a register, those of recorded states take one each
        arriving = sum(plan.outputs) * plan.dtype.itemsize / plan.compute.itemsize + len(plan.trace)
        registers = (plan.spec.steps or CHUNK) * (len(plan.cut) + arriving)
        while width > 2 and width * registers > BUDGET:
            width //= 2
    return THREADS * width


#: Letters that would end a Python string.
_QUOTES = '"\\'


def _imports(body: str) -> List[str]:
    functions = "float32|greater|hold|lesser|modulo|negative_zero|sigmoid|sign|softplus"
    ours = sorted(set(re.findall(rf"(?<!\.)\b({functions})\(|\b(libdevice)\.", body)))
    names = sorted(function or library for function, library in ours)
    return [f"\nfrom spikecore_triton.functions import {', '.join(names)}"] if names else []


def _of_surrogates(program: Program) -> Set[Node]:
    """Divisions of surrogate derivatives, which stand for a derivative and need not be the last digit's."""
    found: Set[Node] = set()
    for node in program.nodes:
        if isinstance(node.attr, SpikeRule):
            derivative = substitute(node.attr.derivative, {Node("argument", (), "u"): node.args[0]})
            found |= {inner for inner in topological([derivative]) if inner.op == "div"}
    return found - set(program.nodes)
