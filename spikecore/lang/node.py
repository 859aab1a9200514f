"""The nodes of the expression language.

Rules of this module:

- A :class:`Node` is immutable and *is* its content: two nodes with the same operation, arguments and attribute are
  equal and have the same key, so a graph shares equal subexpressions by construction.
- Nothing is simplified, reordered or folded. The graph says what was written.
- A value is a number or a truth value; one never stands for the other.
- The modules below this one (:mod:`spikecore.lang.render`, whose text a node's repr is) read nodes and make none.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple, Union

from spikecore.lang._graph import topological
from spikecore.lang.operations import ROWS
from spikecore.lang.render import TextPrinter

#: Leaves: op name -> what its attribute is.
LEAVES = {
    "const": "value",
    "input": "name of an input",
    "state": "name of a state, its value at the start of the step",
    "param": "name of a parameter",
    "argument": "the potential minus threshold that a surrogate derivative is written in",
    "out_grad": "index of an output whose cotangent this is",
    "next_grad": "name of a state whose cotangent at the end of the step this is",
}

#: Every operation that is not a leaf: op name -> number of arguments.
ARITY = {row.name: row.arity for row in ROWS}
OPERATIONS = tuple(ARITY)
#: Truth values in, truth value out.
LOGIC = {row.name: row.arity for row in ROWS if row.kind == "logic"}
#: The choice by a truth value.
CHOICE = "where"

#: Operations that give a truth value.
_BOOLEAN = frozenset(row.name for row in ROWS if row.kind in ("comparison", "logic"))

#: Operations of whole numbers that give whole numbers, and those whose first argument only chooses.
_WHOLE = frozenset(("add", "sub", "mul", "neg", "abs", "minimum", "maximum", "detach"))
_SELECTIONS = frozenset(("select", "where"))

#: Number of operations that a repr writes out at most.
_LONGEST_REPR = 100


class SpikeRule:
    """Comparison of a spike node, and its surrogate derivative.

    ``strict`` fires on ``u > 0`` instead of ``u >= 0``; ``derivative`` is an expression in the leaf ``argument``.
    The label and the recipes are for people only and no part of the rule's identity. ``params`` are the parameters that
    the derivative reads, the numbers of the surrogate; ``recipes`` are pairs of one that the host computes and the
    expression of the surrogate's fields that it is.
    """

    __slots__ = ("derivative", "label", "params", "recipes", "strict")

    def __init__(self, strict: bool, derivative: Node, label: str, recipes: Tuple[Tuple[Node, Node], ...] = ()) -> None:
        self.strict = strict
        self.derivative = derivative
        self.label = label
        self.recipes = recipes
        self.params = parameters([derivative])

    def __reduce__(self) -> Tuple[Any, ...]:
        return (SpikeRule, (self.strict, self.derivative, self.label, self.recipes))


Attribute = Union[None, float, int, str, SpikeRule]


class Node(str):
    """One operation of a graph. Equality and hash are those of the whole expression below it.

    A node is the text of its key, whose hash Python computes once: walks of a graph look nodes up thousands of times.
    """

    __slots__ = ("args", "attr", "is_bool", "is_leaf", "key", "op")

    op: str
    args: Tuple[Node, ...]
    attr: Attribute
    key: bytes
    #: True if the node is a truth value.
    is_bool: bool
    #: True if the node has no arguments by nature.
    is_leaf: bool

    def __new__(cls, op: str, args: Tuple[Node, ...] = (), attr: Attribute = None) -> Node:
        """The node of an operation on other nodes."""
        if isinstance(attr, SpikeRule):
            content = b"spike%c" % attr.strict + attr.derivative.key
        elif isinstance(attr, float):  # hex keeps the sign of zero apart and never rounds
            content = b"float" + attr.hex().encode()
        else:
            content = repr(attr).encode()
        content = op.encode() + b"(" + content + "".join(args).encode("latin-1")
        key = hashlib.blake2b(content, digest_size=16).digest()
        self = super().__new__(cls, key, "latin-1")
        for name, value in zip(cls.__slots__, (args, attr, op in _BOOLEAN, op in LEAVES, key, op)):
            object.__setattr__(self, name, value)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a node never changes; {name!r} cannot be set")

    def __reduce__(self) -> Tuple[Any, ...]:
        # one in the other, a deep expression would be too deep to pickle
        return (_last, (flat([self]),))

    def __repr__(self) -> str:
        # written out, a shared graph can be exponentially long
        waiting, written = [self], 0
        while waiting and written < _LONGEST_REPR:
            waiting.extend(waiting.pop().args)
            written += 1
        return TextPrinter().read(self) if not waiting else f"<a long expression, {self.op} of others>"

    __str__ = __repr__


def const(value: Union[int, float]) -> Node:
    """The node of a number."""
    return Node("const", (), float(value))


def parameters(roots: Iterable[Node]) -> Tuple[Node, ...]:
    """The parameters that the roots need, in order of first need, and then those of their spikes' derivatives."""
    order = topological(roots)
    leaves = [node for node in order if node.op == "param"]
    leaves += [leaf for node in order if isinstance(node.attr, SpikeRule) for leaf in node.attr.params]
    return tuple(dict.fromkeys(leaves))


def loop_invariant(nodes: Sequence[Node]) -> Tuple[Node, ...]:
    """Of these nodes (arguments first), the operations on parameters and constants alone: the same at every step."""
    fixed = {node for node in nodes if node.op in ("param", "const")}
    invariant = []
    for node in nodes:
        if node.args and fixed.issuperset(node.args):
            fixed.add(node)
            invariant.append(node)
    return tuple(invariant)


def computed_once(nodes: Sequence[Node], roots: Sequence[Node]) -> Tuple[Node, ...]:
    """The loop-invariant values of these nodes (arguments first) that others of them read, or that are roots.

    ``detach`` is none: a text has one symbol for a value and itself detached, which would be computed twice.
    """
    inside = {node: None for node in loop_invariant(nodes) if node.op != "detach"}
    read = {arg for node in nodes if node not in inside for arg in node.args}.union(roots)
    return tuple(node for node in inside if node in read)


#: Nodes as a list, arguments before users: operation, places of the arguments, attribute.
Flat = List[Tuple[str, Tuple[int, ...], Attribute]]


def flat(roots: Iterable[Node]) -> Flat:
    """The nodes that the roots need, and the roots, in the order of :func:`topological`."""
    order = topological(roots)
    place = {node: k for k, node in enumerate(order)}
    return [(node.op, tuple(place[arg] for arg in node.args), node.attr) for node in order]


def unflat(entries: Flat) -> List[Node]:
    """The nodes of a list that :func:`flat` made."""
    nodes: List[Node] = []
    for op, args, attr in entries:
        nodes.append(Node(op, tuple(nodes[k] for k in args), attr))
    return nodes


def _last(entries: Flat) -> Node:
    return unflat(entries)[-1]


def substitute(root: Node, replace: Dict[Node, Node]) -> Node:
    """The expression with every occurrence of the given nodes replaced."""
    new = dict(replace)
    for node in topological([root], known=replace):
        args = tuple(new[arg] for arg in node.args)
        new[node] = node if args == node.args else Node(node.op, args, node.attr)
    return new[root]


def largest_count(node: Node) -> Optional[int]:
    """Largest value of an expression that is a spike or a number of spikes; None for any other."""
    if node.op == "spike":
        return 1
    if node.op == "detach" or (node.op == "sub" and _is_nothing(node.args[1])):
        return largest_count(node.args[0])
    if node.op == "add":
        counts = [largest_count(arg) for arg in node.args]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]  # none is None
    if node.op in ("round", "floor") and node.args[0].op == "clamp":
        low, high = node.args[0].args[1:]
        if low == const(0.0) and high.op == "const" and float(high.attr).is_integer():  # type: ignore[arg-type]  # a number
            return int(high.attr)  # type: ignore[arg-type]
    return None


@lru_cache(maxsize=512)
def spiking_output(outputs: Tuple[Node, ...]) -> Tuple[Optional[int], bool, int]:
    """The first output that is spikes, None without one; whether it may be below 0; the largest number in a step."""
    for index, node in enumerate(outputs):
        if _is_whole(node):
            largest = largest_count(node)
            return index, largest is None, largest or 1
    return None, False, 1


def _is_whole(node: Node) -> bool:
    """True if a value is a spike, 0 or 1, or a whole number made of spikes."""
    if node.op == "const":
        return float(node.attr).is_integer()  # type: ignore[arg-type]  # a number
    if node.op in _SELECTIONS:
        return all(map(_is_whole, node.args[1:]))
    return bool(largest_count(node)) or (node.op in _WHOLE and all(map(_is_whole, node.args)))


def _is_nothing(node: Node) -> bool:
    """True for ``detach(x) - x``, which is 0 and has a derivative."""
    return node.op == "sub" and node.args[0] == Node("detach", node.args[1:])
