"""What the kernels of both directions are written with: names, arguments, rows of scratch, loops over neurons."""

from __future__ import annotations

import re
import textwrap
from functools import partial
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple, Union

import torch

from spikecore.kernels import BackwardPlan, ForwardPlan, hoisted
from spikecore.lang import Node, Program, topological
from spikecore.lang.render import on_one_line
from spikecore_numba.printer import NumbaPrinter

#: Neurons of a block at most. With float32, a row of them is a page of memory.
BLOCK = 1024

#: Kinds of arguments, in the order that a kernel has them.
ORDER = ("inner", "channels", "stride", "number", "history", "pointer")

_STORAGE = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
#: Tensors of all steps that a kernel fills; their steps are N numbers apart.
_FILLED = ("outputs", "trace", "grad_inputs")


class Argument(NamedTuple):
    """One argument of a kernel.

    ``kind`` is a ``"pointer"`` to tensor ``number`` of a group, its ``"stride"`` from step to step, how a channel
    parameter lies (``"inner"``, ``"channels"``: see ``Geometry.channels``), the ``"number"`` that a parameter is, or
    memory for the ``"history"`` of a state.
    """

    name: str
    kind: str
    group: str
    number: int


class Source(NamedTuple):
    """A printed kernel."""

    name: str
    text: str
    #: Names of the arguments that every kernel of its direction has; ``arguments`` come behind them.
    head: Tuple[str, ...]
    arguments: Tuple[Argument, ...]
    #: Number of rows of scratch that it uses.
    rows: int

    @property
    def histories(self) -> int:
        """Number of states that it keeps a history of."""
        return sum(argument.kind == "history" for argument in self.arguments)


#: What to store, and the line that stores it, with ``{}`` for the value.
Store = Tuple[Node, str]
#: Where values come from, as text that is asked for when it is needed.
Loads = Mapping[Node, Callable[[], str]]


class Writer:
    """Writes the lines of one kernel.

    ``roots`` are the values that its steps compute, ``rest`` those that it starts from.
    """

    def __init__(
        self, plan: Union[ForwardPlan, BackwardPlan], direction: str, roots: Sequence[Node], rest: Sequence[Node]
    ) -> None:
        self.plan, self.program = plan, plan.program
        self.direction = direction
        self.printer = NumbaPrinter(plan.compute)
        self.name = self.printer.symbols.new(f"{plan.program.name.lower()}_{direction}")
        self._arguments: Dict[str, Argument] = {}
        self._rows: Dict[str, str] = {}
        program = plan.program
        #: The name of each leaf, and of each expression of varying parameters that is computed before the first step.
        self.local: Dict[Node, str] = {}
        for leaf in (*program.leaves, *_cotangents(program)):
            self.local[leaf] = self.printer.symbol(leaf)
        self.uniform, varying = hoisted(program, plan.spec, roots)
        for node in varying:
            self.local[node] = self.printer.label(node, program.labels.get(node, "k"))
        direct = topological(roots, known=varying)
        per_channel = [leaf for leaf in self._params("channel") if leaf in direct]
        #: Values per neuron that get a row before the first step.
        self.prepared: Sequence[Node] = (*per_channel, *varying)
        self._used = set(topological([*roots, *rest]))
        self._uniform_names: Dict[Node, str] = {}
        self.opening = self._opening()

    # -- names and arguments

    def row(self, name: str) -> str:
        """A number of the block that lies in scratch, under a local name."""
        if name not in self._rows:
            self._rows[name] = self.printer.symbols.new(self.printer.symbols.wanted(name).upper())
        return f"scratch[{self._rows[name]} + i]"

    def one(self, name: str, group: str, index: int) -> str:
        """A tensor of one step, at the neuron."""
        return f"{self._argument(name, 'pointer', group, index)}[first + i]"

    def all(self, name: str, group: str, index: int) -> str:
        """A tensor of all steps, at step and neuron."""
        step = "neurons" if group in _FILLED else self._argument(f"{name}_step", "stride", group, index)
        return f"{self._argument(name, 'pointer', group, index)}[t * {step} + first + i]"

    def history(self, name: str) -> str:
        """Memory for a state's values of a chunk of steps: an argument of its own, so that nothing overlaps with it."""
        return self._argument(f"{name}_history", "history", name, 0)

    def output_name(self, index: int) -> str:
        """What the tensor of an output is called."""
        return "outs" if len(self.program.outputs) == 1 else f"outs{index}"

    def read(self, name: str, group: str, index: int) -> str:
        """A number of all steps in the dtype of inputs and outputs, as one of arithmetic."""
        text, storage = self.all(name, group, index), _STORAGE.get(self.plan.dtype)
        return f"from_{storage}({text})" if storage else text

    def stored(self, target: str) -> str:
        """The line that stores a number in the dtype of inputs and outputs."""
        storage = _STORAGE.get(self.plan.dtype)
        return f"{target} = to_{storage}({{}})" if storage else f"{target} = {{}}"

    def _argument(self, name: str, kind: str, group: str, index: int) -> str:
        key = f"{kind} {group} {index}"
        if key not in self._arguments:
            self._arguments[key] = Argument(self.printer.symbols.of(key, name), kind, group, index)
        return self._arguments[key].name

    def _params(self, *kinds: str) -> List[Node]:
        return [Node("param", (), n) for n, kind in zip(self.program.params, self.plan.spec.params) if kind in kinds]

    def _index(self, param: Node) -> int:
        return self.program.params.index(str(param.attr))

    # -- lines

    def _opening(self) -> List[str]:
        """What is one value for all neurons, computed once."""
        lines = []
        for leaf in self._params("number", "scalar"):
            name, index = self.local[leaf], self._index(leaf)
            if leaf in self._used and self.plan.spec.params[index] == "scalar":
                lines.append(f"{name} = {self._argument(f'{name}s', 'pointer', 'params', index)}[0]")
            elif leaf in self._used:
                self._arguments[name] = Argument(name, "number", "params", index)
            self._uniform_names[leaf] = name
        return [*lines, *self.printer.block(self.uniform, self._uniform_names, self.program.labels)]

    def loop(self, stores: Sequence[Store], loads: Loads) -> List[str]:
        """A loop over the neurons of a block: load what the stored values are computed from, compute, store."""
        names = dict(self._uniform_names)
        roots = [node for node, _ in stores]
        order = topological(roots, known=[*names, *loads])
        used = {arg for node in order for arg in node.args} | set(roots)
        lines = []
        for node, text in loads.items():
            if node in used:
                names[node] = self.local[node]
                lines.append(f"{self.local[node]} = {text()}")
        lines += self.printer.block(roots, names, self.program.labels, name_roots=False)
        lines += [line.format(names.get(node) or self.printer.expression(node, names)) for node, line in stores]
        return ["for i in range(count):", *indented(lines)] if stores else []

    def param_loads(self, first: bool) -> Dict[Node, Callable[[], str]]:
        """Where parameters with many values come from: before the first step from their tensors, later from rows."""
        loads: Dict[Node, Callable[[], str]] = {}
        for leaf in self._params("full"):
            loads[leaf] = partial(self.one, f"{self.local[leaf]}s", "params", self._index(leaf))
        if first:
            for leaf in self._params("channel"):
                loads[leaf] = partial(self._channel, leaf)
        else:
            for node in self.prepared:
                loads[node] = partial(self._prepared, node)
        return loads

    def _prepared(self, node: Node) -> str:
        """A value from its row; a row holds numbers, and ``&`` of a number is no truth value."""
        row = self.row(self.local[node])
        return f"{row} != {self.printer.number(0.0)}" if node.is_bool else row

    def _preparing(self, node: Node) -> str:
        """The line that puts a value into its row."""
        choice = f"{self.printer.number(1.0)} if {{}} else {self.printer.number(0.0)}"
        return f"{self.row(self.local[node])} = {choice if node.is_bool else '{}'}"

    def _channel(self, leaf: Node) -> str:
        name, index = self.local[leaf], self._index(leaf)
        tensor = self._argument(f"{name}s", "pointer", "params", index)
        inner = self._argument(f"{name}_inner", "inner", "params", index)
        channels = self._argument(f"{name}_channels", "channels", "params", index)
        return f"{tensor}[(first + i) // {inner} % {channels}]"

    def starting(self, states: Sequence[str]) -> List[str]:
        """The loop that gives these states their first values and prepares parameters."""
        loads = self.param_loads(first=True)
        stores: List[Store] = [(node, self._preparing(node)) for node in self.prepared]
        for index, (name, rest) in enumerate(zip(self.program.states, self.program.rest)):
            leaf = Node("state", (), name)
            if name in states:
                if self.plan.has_initial_state:
                    loads[leaf] = partial(self.one, f"{self.local[leaf]}_start", "state", index)
                stores.append((leaf if self.plan.has_initial_state else rest, f"{self.row(self.local[leaf])} = {{}}"))
        return self.loop(stores, loads)

    def finished(self, head: Sequence[str], body: Iterable[str]) -> Source:
        """The kernel: its module text and what a launch needs beside it."""
        order = {kind: k for k, kind in enumerate(ORDER)}
        arguments = sorted(self._arguments.values(), key=lambda a: order[a.kind])
        names = [*head, *(a.name for a in arguments)]
        body = [
            *self.opening,
            "for block in range(begin, end):",
            *indented(["first = block * width", "count = width if first + width <= neurons else neurons - first"]),
            *indented(body),
        ]
        before = [
            *_imports("\n".join(body)),
            "",
            *(f"{row} = {k * BLOCK}" for k, row in enumerate(self._rows.values())),
        ]
        write = self.printer.named([*before, self.name, *names, *body])
        title = on_one_line(self.program.name).translate({ord(c): None for c in '"\\'})
        signature = textwrap.fill(
            f"{', '.join(map(write, names))},",
            116,
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
        )
        what = f"{_text(self.plan.dtype)} in memory, {_text(self.plan.compute)} arithmetic"
        lines = [
            f'"""{title}, {self.direction}: {what}."""\n',
            *map(write, before),
            "",
            *(f"# {line}" for line in str(self.program).splitlines()),
            "",
            "",
            f"def {write(self.name)}(\n{signature}\n):",
            *indented(map(write, body)),
        ]
        named = tuple(argument._replace(name=write(argument.name)) for argument in arguments)
        return Source(write(self.name), "\n".join(lines) + "\n", tuple(head), named, len(self._rows))


def indented(lines: Iterable[str], levels: int = 1) -> List[str]:
    """The lines, further in."""
    return ["    " * levels + line for line in lines]


def _imports(body: str) -> List[str]:
    """The imports that these lines need."""
    ours = sorted(set(re.findall(r"\b(expf|signf?|lesser|greater|(?:from|to)_b?float16)\(", body)))
    lines = ["import math\n"] if "math." in body else []
    lines += ["import numpy as np"] if "np." in body else []
    lines += ["from numba import float32"] if "float32(" in body else []
    return [*lines, *([f"\nfrom spikecore_numba.functions import {', '.join(ours)}"] if ours else [])]


def _text(dtype: torch.dtype) -> str:
    return str(dtype).partition(".")[2]


def _cotangents(program: Program) -> List[Node]:
    outputs = [Node("out_grad", (), i) for i in range(len(program.outputs))]
    return [*outputs, *(Node("next_grad", (), name) for name in program.states)]
