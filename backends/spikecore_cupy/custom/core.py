"""The function at the core of a kernel: what it computes for one element, as a C text or as expressions."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from numbers import Real
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from spikecore.kernels.writing import indented
from spikecore.lang import Expr, Node, Program, topological, trace
from spikecore_cupy.custom.declared import Declared, Typed, of_role
from spikecore_cupy.lines import wrapped
from spikecore_cupy.printer import CudaPrinter

#: What a C text may read beside its values: name -> C type.
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
    taken = [printer.symbols.wanted(name) for name in names.values()]
    arguments = [f"const {typed.real} {name}" for name in names.values()]
    roots = [(f"new_{name}", node) for name, node in zip(program.states, program.next)]
    outputs = of_role(values, "output")
    roots += zip(outputs, program.outputs)
    labels = _needed(program.labels, [node for _, node in roots])
    # an output that is called like a value of the step gets another name
    taken += labels.values()
    targets = [printer.symbols.new(f"{name}_out" if name in taken else name) for name, _ in roots]
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
    """Whether a C text has a word."""
    return re.search(rf"\b{word}\b", text) is not None


def _function(arguments: Sequence[str], lines: Sequence[str]) -> List[str]:
    head = "__device__ __forceinline__ void core("
    return [head, *wrapped(arguments), ") {", *indented(lines), "}"]
