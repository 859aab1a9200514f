"""Shared code generation for forward and backward kernels: arguments, rows of scratch, loops over neurons.

Every kernel has one frame. Neurons are taken in blocks; for a block all time steps run one after the other, and the
innermost loop goes over its neurons, so that it becomes vector instructions. Between two steps the values of a block
are kept in the array ``scratch``: a row is the part of it that has one value, a state for example, of every neuron.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple, Union

import torch

from spikecore.kernels import BackwardPlan, ForwardPlan
from spikecore.kernels.writing import (
    FILLED,
    Argument,
    KernelWriter,
    filled,
    indented,
    input_leaf,
    named,
    state_leaf,
)
from spikecore.lang import Node, topological
from spikecore.lang.node import const
from spikecore_numba.printer import NumbaPrinter, imports

#: Neurons of a block at most. With float32, a row of them is a page of memory.
BLOCK = 1024
#: The neurons of a period at least, each of which has a loop of its own: shorter ones are repeated.
SHORTEST_PERIOD = 128

#: Kinds of arguments, in the order that a kernel has them. A ``"history"`` is memory for the values of a state, a
#: ``"period"`` for an input's period, repeated, or the input itself.
ORDER = ("inner", "channels", "stride", "number", "history", "period", "pointer")
#: Arguments that every kernel has, before its own, and those of one that keeps a history of states.
HEAD = ("begin", "end", "steps", "neurons", "width", "scratch")
HISTORY_HEAD = ("begin", "end", "steps", "neurons", "width", "scratch", "length", "chunks")
#: The last one of a kernel whose blocks add up what groups of neurons give that lie so far apart.
SPAN = "span"
#: The last ones of a kernel with inputs of a period, or that lie side by side: how many neurons it is, and how many
#: numbers inputs have for it.
PERIOD = ("period", "numbers")
#: Place of the next neuron in a step of an input of each kind.
PLACES = {"": " + first + i", "period": " + shift + i", "step": "", "beside": " + aside + i"}

#: The part of a conversion's name that says how 16-bit numbers are stored.
STORAGE = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


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
#: Where values come from, as text that is asked for when it is needed: asking makes an argument or a row.
Loads = Mapping[Node, Callable[[], str]]


class Writer(KernelWriter):
    """Writes the lines of one kernel."""

    neurons_of = "{}[first + i]"

    def __init__(self, plan: Union[ForwardPlan, BackwardPlan], direction: str, roots: Sequence[Node]) -> None:
        super().__init__(plan, direction, NumbaPrinter(plan.compute), roots)
        self._rows: Dict[str, str] = {}
        #: Where an input's period is repeated, and the input; and the distance of its steps.
        self._periods: Dict[Tuple[str, str], str] = {}
        #: The channel of the next neuron, and how many neurons of that channel lie directly before it.
        self._at, self._past = self.free("channel"), self.free("past")
        #: The first neuron of a run whose channels follow from that, and the neurons of the run.
        self._begun, self._run = self.free("begun"), self.free("run")
        #: The channel of a neuron of a run whose channels are neighbours.
        self._beside = self.free("beside")
        # one value for all neurons is a local variable of the kernel; one for each neuron is a row of scratch
        for node in self.varying:
            self.local[node] = self.label(node, "k")
        # steps read what was computed from a channel parameter before them; only one that they read itself needs a row
        direct = topological(roots, known=self.varying)
        per_channel = [leaf for leaf in self.params_of("channel") if leaf in direct]
        #: Values per neuron that get a row before the first step. A full parameter is read from its tensor instead.
        self.prepared: Sequence[Node] = (*per_channel, *self.varying)
        #: The local variable that is 0: a kernel of many states has it in a hundred places.
        self.zero = self.free("zero")
        self._uniform_names: Dict[Node, str] = {const(0.0): self.zero}
        self.opening = self._opening()

    # -- places

    def row(self, name: str, index: str = "i") -> str:
        """The element for neuron ``index`` in the row of this value; a value without a row gets one."""
        if name not in self._rows:
            # constants have capitals in Python; the name must not be that of a local variable, which is another symbol
            self._rows[name] = self.free(self.printer.symbols.wanted(name).upper())
        return f"scratch[{self._rows[name]} + {index}]"

    def all(self, name: str, group: str, index: int) -> str:
        """A tensor of all steps, at step and neuron."""
        # one step that stands for all has stride 0
        step = "neurons" if group in FILLED else self.argument(f"{name}_step", "stride", group, index)
        kind = self.input_kind(index) if group == "inputs" else ""
        if group in ("inputs", "grad_inputs") and self._is_beside(group, index):
            kind, step = "beside", step if group == "inputs" else f"{len(self.plan.side_by_side)} * neurons"
        pointer = self.argument(name, "pointer", group, index)
        if kind == "period":
            period = self.argument(f"{name}_period", "period", group, index)
            self._periods[period, pointer], pointer = step, period
        return f"{pointer}[t * {step}{PLACES[kind]}]"

    def _is_beside(self, group: str, index: int) -> bool:
        """True for an input that lies beside others, or its gradient."""
        number = self.plan.written[index] if isinstance(self.plan, BackwardPlan) and group != "inputs" else index
        return number in self.plan.side_by_side

    def history(self, name: str) -> str:
        """Memory for a state's values of a chunk of steps: an argument of its own, so that nothing overlaps with it."""
        return self.argument(f"{name}_history", "history", name)

    def read(self, name: str, group: str, index: int) -> str:
        """A number of all steps in the dtype of inputs and outputs, as one of arithmetic."""
        # Numba has no 16-bit floats: they are integers in memory, converted by functions of ours
        text, storage = self.all(name, group, index), STORAGE.get(self.plan.dtype)
        return f"from_{storage}({text})" if storage else text

    def stored(self, target: str) -> str:
        """The line that stores a number in the dtype of inputs and outputs."""
        storage = STORAGE.get(self.plan.dtype)
        return f"{target} = to_{storage}({{}})" if storage else f"{target} = {{}}"

    # -- what comes back

    def product(self, into: str, of: str, first: str) -> List[str]:
        """Lines that set a row to ``first`` and add, for each neuron of a row of the batch, its number in the row
        ``of`` times its row of the weight. Neurons whose number is 0 are skipped.
        """
        index = len(self.program.params)
        weights = self.argument("weights", "pointer", "params", index)
        # the neurons of a block are those of a row of the batch, so the weight has as many rows and columns
        return [
            "for i in range(count):",
            f"    {self.row(into)} = {first}",
            "for j in range(count):",
            f"    factor = {self.row(of, 'j')}",
            f"    if factor != {self.zero}:",
            "        beside = j * count",
            "        for i in range(count):",
            f"            {self.row(into)} += factor * {weights}[beside + i]",
        ]

    # -- lines

    def _opening(self) -> List[str]:
        """The values that are the same for all neurons, computed once."""
        lines = []
        for leaf in self.params_of("number", "scalar"):
            name, place = self.local[leaf], self.param_place(leaf)
            if leaf in self.used and self.kinds[str(leaf.attr)] == "scalar":
                lines.append(f"{name} = {self.argument(f'{name}s', 'pointer', *place)}[0]")
            elif leaf in self.used:
                self.argument(name, "number", *place)
            self._uniform_names[leaf] = name
        return [*lines, *self.printer.block(self.uniform, self._uniform_names, self.program.labels)]

    def loop(
        self,
        stores: Sequence[Store],
        loads: Loads,
        known: Mapping[Node, str] = {},  # never written to
        over: str = "for i in range(count):",
        first: Sequence[str] = (),
    ) -> List[str]:
        """A loop over neurons of a block: load what the stored values are computed from, compute, store. ``known`` has
        names of values that are loaded before it; ``first`` are lines before all others, such as a place in memory.
        """
        names = {**self._uniform_names, **known}
        roots = [node for node, _ in stores]
        # a load is a line only if a stored value is computed from it
        order = topological(roots, known=[*names, *loads])
        used = {arg for node in order for arg in node.args} | set(roots)
        lines = []
        for node, text in loads.items():
            if node in used:
                names[node] = self.local[node]
                lines.append(f"{self.local[node]} = {text()}")
        lines += self.printer.block(roots, names, self.program.labels, name_roots=False)
        # all loads and arithmetic come before the first store, which may overwrite a state that another value needs
        lines += [line.format(names.get(node) or self.printer.expression(node, names)) for node, line in stores]
        return [over, *indented([*first, *lines])] if stores else []

    def step_loop(self, stores: Sequence[Store], loads: Loads, first: Sequence[str] = ()) -> List[str]:
        """The loop of one step. Where it reads inputs of a period, that is a loop over each period of the block."""
        if "period" not in self.plan.broadcast:
            return self.loop(stores, loads, first=first)
        begun, run = self._begun, self._run
        return [
            "shift = offset",
            f"{begun} = 0",
            f"while {begun} < count:",
            f"    {run} = min(period - shift - {begun}, count - {begun})",
            *indented(self.loop(stores, loads, {}, f"for i in range({begun}, {begun} + {run}):", first)),
            f"    {begun} += {run}",
            f"    shift = -{begun}",
        ]

    def step_loads(self) -> Dict[Node, Callable[[], str]]:
        """Where the leaves of a step come from."""
        loads = self._param_loads()
        # what is prepared before the first step comes from its row
        for node in self.prepared:
            loads[node] = partial(self._prepared, node)
        for index, name in enumerate(self.program.inputs):
            leaf = input_leaf(name)
            loads[leaf] = partial(self.read, f"{self.local[leaf]}s", "inputs", index)
        for leaf in map(state_leaf, self.program.states):
            loads[leaf] = partial(self.row, self.local[leaf])
        return loads

    def starting(self, states: Sequence[str]) -> List[str]:
        """The loop that gives these states their first values and prepares parameters."""
        loads = self._param_loads()
        stores: List[Store] = [(node, self._preparing(node)) for node in self.prepared]
        given = self.plan.has_initial_state
        for index, (name, initial) in enumerate(zip(self.program.states, self.program.initial)):
            leaf = state_leaf(name)
            # backward computes only the states again that its adjoint is computed from
            if name in states:
                if given:
                    loads[leaf] = partial(self.one, f"{self.local[leaf]}_start", "state", index)
                stores.append((leaf if given else initial, f"{self.row(self.local[leaf])} = {{}}"))
        needed = topological([node for node, _ in stores])
        walked = [leaf for leaf in self.params_of("channel") if leaf in needed]
        if not walked:
            return self.loop(stores, loads)
        # a kernel has the loop over runs twice, so that one copies, and what is computed has a loop of its own
        copies: List[Store] = [(leaf, f"{self.row(self.local[leaf])} = {{}}") for leaf in walked]
        rows = {leaf: partial(self.row, self.local[leaf]) for leaf in walked}
        computed = [store for store in stores if store not in copies]
        return [*self._by_runs(copies, loads, walked), *self.loop(computed, {**loads, **rows})]

    def _by_runs(self, stores: Sequence[Store], loads: Loads, walked: Sequence[Node]) -> List[str]:
        """The loop that copies parameters with one number per channel into rows: over runs of neurons of a channel, or
        of neighbouring channels, so that it becomes vector instructions. Two divisions for every neuron took longer
        than all its steps, and to count from neuron to neuron as long as one of four steps.
        """
        tensors = {leaf: self.channel(leaf) for leaf in walked}
        _, inner, channels = tensors[walked[0]]
        at, past, begun, run, beside = self._at, self._past, self._begun, self._run, self._beside
        over_run = f"for i in range({begun}, {begun} + {run}):"
        side_by_side = {leaf: f"{tensor}[{beside}]".format for leaf, (tensor, _, _) in tensors.items()}
        first = [f"{beside} = {at} + i - {begun}"]
        names = {leaf: self.local[leaf] for leaf in walked}
        return [
            f"{at} = first // {inner} % {channels}",
            f"{past} = first % {inner}",
            f"{begun} = 0",
            f"while {begun} < count:",
            f"    if {inner} == 1:",
            f"        {run} = min({channels} - {at}, count - {begun})",
            *indented(indented(self.loop(stores, {**loads, **side_by_side}, {}, over_run, first))),
            f"        {at} = 0",
            "    else:",
            f"        {run} = min({inner} - {past}, count - {begun})",
            *(f"        {names[leaf]} = {tensors[leaf][0]}[{at}]" for leaf in walked),
            *indented(indented(self.loop(stores, loads, names, over_run))),
            f"        {past} = 0",
            f"        {at} = {at} + 1 if {at} + 1 < {channels} else 0",
            f"    {begun} += {run}",
        ]

    def _param_loads(self) -> Dict[Node, Callable[[], str]]:
        """Where parameters with one value for each neuron come from."""
        loads: Dict[Node, Callable[[], str]] = {}
        for leaf in self.params_of("full"):
            loads[leaf] = partial(self.one, f"{self.local[leaf]}s", *self.param_place(leaf))
        return loads

    def _prepared(self, node: Node) -> str:
        """A value from its row. A row holds numbers, and ``&`` and ``|`` need truth values."""
        row = self.row(self.local[node])
        return f"{row} != {self.zero}" if node.is_bool else row

    def _preparing(self, node: Node) -> str:
        """The line that puts a value into its row."""
        choice = f"{self.printer.number(1.0)} if {{}} else {self.zero}"
        return f"{self.row(self.local[node])} = {choice if node.is_bool else '{}'}"

    def _repeated(self) -> List[str]:
        """The loops that repeat short periods, so that those over neurons become vector instructions."""
        lines = []
        for (period, tensor), step in self._periods.items():
            lines += [
                "if numbers < period:",
                "    for t in range(steps):",
                "        for i in range(numbers):",
                f"            {period}[t * period + i] = {tensor}[t * {step} + i]",
                "        for i in range(t * period + numbers, t * period + period):",
                f"            {period}[i] = {period}[i - numbers]",
                f"    {step} = period",
            ]
        return lines

    # -- text

    def finished(self, head: Sequence[str], body: Iterable[str], sums: Sequence[str] = ()) -> Source:
        """The kernel: its module text and what a launch needs beside it. ``sums``: lines before the first group of
        neurons of a block, where a block has several.
        """
        begins, ends = ("origin", "span") if SPAN in head else ("first", "neurons")
        # the last block may have fewer neurons than the others
        body_begins = [
            f"{begins} = block * width",
            f"count = width if {begins} + width <= {ends} else {ends} - {begins}",
        ]
        beside = len(self.plan.side_by_side)
        if beside:
            # blocks that lie within a row of an input, where each begins in rows of several
            self.opening.append("per_period = (period + width - 1) // width")
            body_begins = [
                "offset = block % per_period * width",
                f"{begins} = block // per_period * period + offset",
                "count = width if offset + width <= period else period - offset",
            ]
            body = [f"aside = (first - offset) * {beside} + offset", *body]
        if "period" in self.plan.broadcast:
            body = ["offset = first % period", *body]
        if beside or "period" in self.plan.broadcast:
            head = (*head, *PERIOD)
        if SPAN in head:
            # groups of neurons of the same channels; the last group may have fewer
            body = [
                *body_begins,
                *sums,
                "for first in range(origin, neurons, span):",
                *indented(["if first + count > neurons:", "    count = neurons - first", *body]),
            ]
        else:
            body = [*body_begins, *body]
        arguments = self.arguments.ordered(ORDER)
        names = [*head, *(argument.name for argument in arguments)]
        body = [*self.opening, *self._repeated(), "for block in range(begin, end):", *indented(body)]
        if any(self.zero in line for line in body):
            body.insert(0, f"{self.zero} = {self.printer.number(0.0)}")
        before = [
            *imports("\n".join(body), bool(self._rows)),
            "",
            # the offsets of rows are constants of the text, so each row is as long as the widest block
            *(f"{row} = np.int64({k * BLOCK})" for k, row in enumerate(self._rows.values())),
        ]
        # every line is known now, so every symbol can choose a name that no line has
        write = self.printer.named([*before, self.name, *names, *body])
        lines = [
            f'"""{self.title(without=_QUOTES)}"""\n',
            *map(write, before),
            "",
            *self.listing("#"),
            "",
            "",
            f"def {write(self.name)}(",
            *filled([f"{write(name)}," for name in names], 116),
            "):",
            *indented(map(write, body)),
        ]
        return Source(write(self.name), "\n".join(lines) + "\n", tuple(head), named(arguments, write), len(self._rows))


#: Letters that would end a Python string: a class may have any name, and the title is a docstring.
_QUOTES = '"\\'
