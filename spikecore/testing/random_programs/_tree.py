"""A drawn neuron: a graph of our own, and the Python source that says the same."""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import textwrap
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch

import spikecore as sc
from spikecore.lang._expr import FROM_TORCH


@dataclass(frozen=True, eq=False)
class Node:
    """One operation, or a leaf: ``const`` (value), ``input``, ``state``, ``param``, ``field`` (name), ``u``."""

    op: str
    args: Tuple[Node, ...] = ()
    value: Any = None


@dataclass
class Tree:
    """A neuron: what it declares, what its step computes, and how its source is written."""

    name: str
    inputs: Tuple[str, ...]
    states: Dict[str, Union[float, str]]
    params: Dict[str, float]
    outputs: List[Node]
    next: Dict[str, Node]
    #: The surrogate: its class, its numbers, its derivative in ``u``.
    surrogate: str
    fields: Dict[str, float]
    derivative: Node
    #: None for a program without spikes of its own rule.
    detach_reset: bool = False
    reset_states: Optional[Tuple[str, ...]] = None
    #: Names of local variables: node -> name.
    locals: Dict[Node, str] = field(default_factory=dict)
    #: Whether functions are torch's where there is such a name.
    by_torch: bool = False

    @property
    def roots(self) -> List[Node]:
        """All that a step computes."""
        return [*self.outputs, *self.next.values()]

    @property
    def used_params(self) -> Tuple[str, ...]:
        """Parameters that a step, or the state at rest, depends on."""
        used = {node.value for node in order(self.roots) if node.op == "param"} | set(self.states.values())
        return tuple(name for name in self.params if name in used)


def order(roots: Iterable[Node]) -> List[Node]:
    """Every node that the roots need, arguments first."""
    seen: Dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in seen:
            for arg in node.args:
                visit(arg)
            seen[node] = None

    for root in roots:
        visit(root)
    return list(seen)


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_INFIX.update({"eq": "==", "ne": "!=", "and": "&", "or": "|"})
#: Operations that torch itself has under the same name, less those whose arguments torch wants otherwise.
_TORCH = frozenset(op for name, op in FROM_TORCH.items() if name == op and hasattr(torch, op)) - {
    "clamp",
    "detach",
    "where",
}


class _Text:
    """Expressions as Python."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.known: Dict[Node, str] = {}

    def of(self, node: Node) -> str:
        """One expression; what has a name by its name."""
        if node in self.known:
            return self.known[node]
        if node.op == "const":
            return repr(float(node.value)) if node.value >= 0 and str(node.value)[0] != "-" else f"({node.value!r})"
        if node.op == "input":
            return f"x.{node.value}" if len(self.tree.inputs) > 1 else "x"
        leaf = {"state": "s.{}", "param": "p.{}", "field": "self.{}", "u": "u"}.get(node.op)
        if leaf is not None:
            return leaf.format(node.value)
        args = [self.of(arg) for arg in node.args]
        if node.op in _INFIX:
            return f"({args[0]} {_INFIX[node.op]} {args[1]})"
        if node.op in ("neg", "not"):
            return f"({'-' if node.op == 'neg' else '~'}{args[0]})"
        if node.op == "spike":
            return f"self.spike({args[0]}, strict={node.value})"
        # torch's own functions take no Python number on the left
        torch_too = self.tree.by_torch and node.op in _TORCH and all(arg.op != "const" for arg in node.args)
        return f"{'torch' if torch_too else 'sc.ops'}.{node.op}({', '.join(args)})"


def source(tree: Tree) -> str:
    """Functions ``dynamics`` and ``derivative`` in Python."""
    text, lines = _Text(tree), []
    for node in order(tree.roots):
        if node in tree.locals:
            lines.append(f"{tree.locals[node]} = {text.of(node)}")
            text.known[node] = tree.locals[node]
    outputs = ", ".join(text.of(node) for node in tree.outputs)
    returned = ", ".join(f"{name!r}: {text.of(node)}" for name, node in tree.next.items())
    lines.append(f"return {f'({outputs})' if len(tree.outputs) > 1 else outputs}, {{{returned}}}")
    body = textwrap.indent("\n".join(lines), "    ")
    derivative = _Text(tree).of(tree.derivative)
    return f"def dynamics(self, x, s, p):\n{body}\n\ndef derivative(self, u):\n    return {derivative}\n"


_count = itertools.count()


def built(tree: Tree) -> Tuple[type, Any]:
    """The neuron's class, and a surrogate for it, from source."""
    text = source(tree)
    file = f"<random program {next(_count)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: Dict[str, Any] = {"sc": sc, "torch": torch}
    exec(compile(text, file, "exec"), space)
    held = {"derivative": space["derivative"], "__annotations__": dict.fromkeys(tree.fields, float), **tree.fields}
    kind: type = dataclasses.dataclass(frozen=True)(type(tree.surrogate, (sc.Surrogate,), held))
    declared = {
        "inputs": tree.inputs,
        "states": dict(tree.states),
        "params": dict(tree.params),
        "reset_states": tree.reset_states,
        "dynamics": space["dynamics"],
    }
    return type(tree.name, (sc.Neuron,), declared), kind()
