"""A kernel as text: the function at its core, as a C text or as expressions, and the lines around it."""

from __future__ import annotations

import inspect
import logging
import re
import textwrap
from collections import Counter
from numbers import Real
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from spikecore.kernels.writing import ArgumentTable, commented, indented
from spikecore.lang import Expr, Node, Program, topological, trace
from spikecore_cupy.custom.declared import Declared, Typed, of_role
from spikecore_cupy.text import CudaPrinter, declared, first_neuron, head, over_neurons, wrapped

#: Names that a C text may read beside its values: name -> C type.
PLACES = {"i": "long long", "N": "long long", "t": "int", "T": "int"}

Body = Union[str, Callable[..., Any]]


class Core(NamedTuple):
    """The lines of the function, the names that it takes by value, then those that it sets."""

    lines: List[str]
    takes: Tuple[str, ...]
    sets: Tuple[str, ...]


class _Recorded:
    """A body as the dynamics of a neuron: it gets its values by name."""

    def __init__(self, kernel: str, body: Callable[..., Any], values: Sequence[Declared], timed: bool) -> None:
        self.kernel, self.body, self.timed = kernel, body, timed
        self.inputs, self.outputs = of_role(values, "input"), of_role(values, "output")

    def __call__(self, x: Any, s: Any, p: Any) -> Any:
        inputs = (x,) if isinstance(x, Expr) else x
        values = {**dict(zip(self.inputs, inputs)), **{n: getattr(s, n) for n in s}, **{n: getattr(p, n) for n in p}}
        try:
            inspect.signature(self.body).bind(**values)
        except TypeError as error:
            raise TypeError(
                f"kernel {self.kernel}: the body gets its values by name, {', '.join(values)}: {error}"
            ) from None
        returned = self.body(**values)
        outputs, following = self._parts(returned) if self.timed else (returned, {})
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        wrong = [value for value in (*outputs, *following.values()) if not isinstance(value, (Expr, Real))]
        if wrong:
            raise TypeError(f"kernel {self.kernel}: the body returns {wrong[0]!r} where an expression must be")
        if len(outputs) != len(self.outputs):
            declared = ", ".join(self.outputs) or "none"
            raise ValueError(f"kernel {self.kernel}: the body returns {len(outputs)} outputs; declared are: {declared}")
        return outputs or (0.0,), following

    def _parts(self, returned: Any) -> Any:
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
            return returned
        raise TypeError(
            f"kernel {self.kernel}: the body must return (output, {{state: next value}}), "
            f"or ((output, output, ...), {{...}}); it returned {returned!r}"
        )


def recorded(kernel: str, body: Callable[..., Any], values: Sequence[Declared], timed: bool) -> Program:
    """The program of a body that was called once with values that record; with states if it is ``timed``."""
    return trace(
        _Recorded(kernel, body, values, timed),
        name=kernel,
        inputs=of_role(values, "input"),
        states={value.name: value.first for value in values if value.role == "state"},
        params=of_role(values, "param", "number"),
    )


def core_of_text(body: str, values: Sequence[Declared], typed: Typed, places: Sequence[str]) -> Core:
    """The function around a C text, which sets outputs and states by their names and may ``return`` early."""
    reads = of_role(values, "input", "param", "number")
    sets = of_role(values, "state", "output")
    # a place that the text does not mention is no argument: it would be computed for nothing
    places = [place for place in places if mentions(body, place)]
    arguments = [f"const {typed.local(name)} {name}" for name in reads]
    arguments += [f"const {PLACES[place]} {place}" for place in places]
    arguments += [f"{typed.local(name)}& {name}" for name in sets]
    lines = textwrap.dedent(body.expandtabs(4)).strip("\n").rstrip().splitlines()
    return Core(_function(arguments, lines), (*reads, *places), tuple(sets))


def core_of_program(program: Program, values: Sequence[Declared], typed: Typed) -> Core:
    """The function that computes a program's step. All that it takes is a number of arithmetic."""
    reads = of_role(values, "input", "param", "number", "state")
    kinds = {value.name: value.role if value.role in ("input", "state") else "param" for value in values}
    printer = CudaPrinter(typed.compute)
    names = {leaf: printer.symbol(leaf) for leaf in (Node(kinds[name], (), name) for name in reads)}
    used = [printer.symbols.wanted(name) for name in names.values()]
    arguments = [f"const {typed.real} {name}" for name in names.values()]
    roots = [(f"new_{name}", node) for name, node in zip(program.states, program.next)]
    outputs = of_role(values, "output")
    roots += zip(outputs, program.outputs)
    labels = _needed(program.labels, [node for _, node in roots])
    # an output that is called like a value of the step gets another name
    used += labels.values()
    targets = [printer.symbols.new(f"{name}_out" if name in used else name) for name, _ in roots]
    arguments += [f"{typed.real}& {target}" for target in targets]
    lines = printer.block([node for _, node in roots], names, labels, name_roots=False)
    for target, (_, node) in zip(targets, roots):
        lines.append(f"{target} = {names.get(node) or printer.expression(node, names)};")
    write = printer.named([*arguments, *lines])
    function = _function([*map(write, arguments)], [*map(write, lines)])
    return Core(function, tuple(reads), (*program.states, *outputs))


def _needed(labels: Mapping[Node, str], roots: Sequence[Node]) -> Dict[Node, str]:
    """Labels without those of results that nothing else uses, which are written in place."""
    uses = Counter([*roots, *(arg for node in topological(roots) for arg in node.args)])
    return {node: label for node, label in labels.items() if node not in roots or uses[node] > 1}


def mentions(text: str, word: str) -> bool:
    """True if a C text has a word."""
    return re.search(rf"\b{word}\b", text) is not None


def _function(arguments: Sequence[str], lines: Sequence[str]) -> List[str]:
    head = "__device__ __forceinline__ void core("
    return [head, *wrapped(arguments), ") {", *indented(lines), "}"]


_log = logging.getLogger("spikecore")


class Printed(NamedTuple):
    """A printed kernel.

    ``arguments`` are what it takes, as (kind, name): ``"pointer"`` of a tensor (0 for a state that starts at a number),
    ``"step"`` from one step of it to the next, ``"stride"`` from one of a parameter's numbers to the next (0 if it has
    one for all elements), ``"number"``, or ``"N"`` and ``"T"``.
    """

    text: str
    arguments: Tuple[Tuple[str, str], ...]
    #: Their C types.
    types: Tuple[str, ...]


def section(name: str) -> List[str]:
    """A comment that says which part of a kernel begins, where the logger ``spikecore`` is at DEBUG."""
    return [f"// -- {name}"] if _log.isEnabledFor(logging.DEBUG) else []


class CustomWriter:
    """Writes one kernel for ``width`` neighbouring elements a thread.

    With ``restrict``, tensors are promised not to share memory.
    """

    def __init__(self, values: Sequence[Declared], typed: Typed, core: Core, width: int, restrict: bool) -> None:
        self.values, self.typed, self.core, self.width = values, typed, core, width
        self._restrict = restrict
        self._printer = CudaPrinter(typed.compute)
        symbols = self._printer.symbols
        #: Names of values in the kernel; the core has the declared names.
        self.local = {value.name: symbols.new(value.name) for value in values}
        #: Names of an output's number before it is stored.
        self._late = {name: symbols.new(f"{self.local[name]}_j") for name in of_role(values, "output")}
        self._arguments = ArgumentTable(self._printer)
        #: The C type of each argument, by its kind and what it is of, in the order in which a kernel has them.
        self._types: Dict[Tuple[str, str], str] = {}
        self.argument("N", "N", "long long", "N")

    def argument(self, kind: str, of: str, c_type: str, name: str) -> str:
        """The name of an argument, which the kernel has from now on; ``N`` and ``T`` are called so."""
        self._types.setdefault((kind, of), c_type)
        return self._arguments.name(name, kind, of)

    def pointer(self, name: str, fills: bool = False) -> str:
        """The argument that says where a tensor is."""
        kind = f"{'' if fills else 'const '}{self.typed.stored(name)}*"
        return self.argument("pointer", name, kind, f"{self.local[name]}s")

    def opening(self) -> List[str]:
        """Which elements a thread has, and its parameters."""
        lines = [first_neuron(), "if (i >= N) return;"]
        for name in of_role(self.values, "param"):
            local = self.local[name]
            stride = self.argument("stride", name, "long long", f"{local}_apart")
            place = self.typed.read(name, f"{self.pointer(name)}[{stride} * (i + j)]")
            lines += [f"{self.typed.local(name)} {local}[V];", *over_neurons([f"{local}[j] = {place};"])]
        for name in of_role(self.values, "number"):
            self.argument("number", name, self.typed.local(name), self.local[name])
        return lines

    def starting(self) -> List[str]:
        """The first values of states."""
        lines = []
        for name in of_role(self.values, "state"):
            local = self.local[name]
            start = self.argument("pointer", name, f"const {self.typed.real}*", f"{local}_start")
            first = self.argument("number", name, self.typed.real, f"{local}_first")
            lines += [f"Pack<{self.typed.real}, V> {local};"]
            # one text for both ways to start: a null pointer says that the state starts at a number
            lines += over_neurons([f"{local}[j] = {start} ? {start}[i + j] : {first};"])
        return lines

    def step(self, timed: bool) -> List[str]:
        """Load, compute and store one step of all elements of a thread."""
        lines = []
        for name in of_role(self.values, "input"):
            local, place = self.local[name], self.pointer(name)
            if timed:
                place += f" + t * {self.argument('step', name, 'long long', f'{local}_step')}"
            # packs are read and written as a whole, whatever the body does with the numbers
            lines.append(f"const Pack<{self.typed.stored(name)}, V> {local} = load<V>({place} + i);")
        outputs = of_role(self.values, "output")
        lines += [f"Pack<{self.typed.stored(name)}, V> {self.local[name]};" for name in outputs]
        # an output that a C text returns without setting is 0, never what a register held
        inner = [f"{self.typed.local(name)} {self._late[name]} = 0;" for name in outputs]
        inner.append(f"core({', '.join(self._core_arguments())});")
        inner += [f"{self.local[n]}.set(j, {self.typed.written(n, self._late[n])});" for n in outputs]
        lines += over_neurons(inner)
        offset = "t * N + i" if timed else "i"
        stores = [f"store({self.pointer(name, fills=True)} + {offset}, {self.local[name]});" for name in outputs]
        return [*lines, *stores]

    def _core_arguments(self) -> List[str]:
        """Arguments of the core for element j."""
        texts = {"i": "i + j"}
        for name, role in ((value.name, value.role) for value in self.values):
            local = self.local[name]
            at = self.typed.read(name, f"{local}[j]") if role == "input" else f"{local}[j]"
            texts[name] = {"number": local, "output": self._late.get(name, "")}.get(role, at)
        return [texts.get(name, name) for name in (*self.core.takes, *self.core.sets)]

    def ending(self) -> List[str]:
        """Stores of states after the last step."""
        lines = []
        for name in of_role(self.values, "end"):
            place = self.argument("pointer", name, f"{self.typed.real}*", self.local[name])
            lines.append(f"store({place} + i, {self.local[name[: -len('_end')]]});")
        return lines

    def finished(self, kernel: str, title: Sequence[str], header: str, body: Sequence[str]) -> Printed:
        """The kernel around these lines."""
        arguments = self._arguments.all()
        types = tuple(self._types[argument.kind, argument.group] for argument in arguments)
        words = [declared(kind, argument.name, self._restrict) for kind, argument in zip(types, arguments)]
        # a macro of the header would replace a name of ours in silence
        defined = re.findall(r"# *define +(\w+)", header)
        write = self._printer.named([*defined, head(kernel), *words, *body])
        needs_real = mentions("\n".join([header, *self.core.lines]), "real")
        lines = [
            *section("declaration"),
            *(comment for line in title for comment in commented(line, "//") or ["//"]),
            "",
            '#include "spikecore.cuh"',
            "",
            f"constexpr int V = {self.width};  // neighbouring elements of a thread",
            *([f"using real = {self.typed.real};"] if needs_real else []),
            "",
            *([*header.strip("\n").splitlines(), ""] if header.strip() else []),
            *section("core"),
            *self.core.lines,
            "",
            *section("head"),
            head(kernel),
            *wrapped(map(write, words)),
            ") {",
            *indented(map(write, body)),
            "}",
        ]
        return Printed("\n".join(lines) + "\n", tuple((a.kind, a.group) for a in arguments), types)
