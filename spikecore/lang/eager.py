"""The operations of the language computed with PyTorch, and what ``sc.ops`` does with its arguments.

:data:`TORCH` defines the language for everybody, value and derivative: ``sc.ops`` on tensors, the torch backend, and
the tests of every other backend.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from spikecore._base.contract import Unsupported
from spikecore.context import is_plain as is_plain  # backends take these two from here
from spikecore.lang import _numbers as numbers
from spikecore.lang import operations
from spikecore.lang._expr import Expr, TraceError, defining, definition, here, lift, make, name_value, record
from spikecore.lang._graph import topological
from spikecore.lang._plain import Constants, choice, masked, silent, zero_of
from spikecore.lang._plain import number as number
from spikecore.lang.node import Node, SpikeRule
from spikecore.lang.operations import ROWS
from spikecore.lang.vectors import VectorExpr, by_element, total

if TYPE_CHECKING:
    from spikecore.surrogate import Surrogate

#: op name -> function of tensors; that of ``spike`` is called as ``spike(u, strict, derivative, *values)``, where
#: ``derivative(u, *values)`` is its derivative.
Functions = Mapping[str, Callable[..., Tensor]]

TORCH: Functions = {row.name: row.torch for row in ROWS}
#: The same for plain tensors on which no graph is built, and for :func:`with_masks`.
PLAIN: Functions = {**TORCH, "select": choice, "silent": silent, "masked": masked}

#: One instruction: function, slots of its arguments, slots that nothing reads after it. Its result is appended to the
#: slots.
Instruction = Tuple[Callable[..., Tensor], Tuple[int, ...], Tuple[int, ...]]


def operands(node: Node) -> Tuple[Node, ...]:
    """Operands of the function of a node: its arguments, then the parameters that a spike's derivative reads."""
    return (*node.args, *node.attr.params) if isinstance(node.attr, SpikeRule) else node.args


def function_of(node: Node, functions: Functions = TORCH) -> Callable[..., Tensor]:
    """The function of the table that computes a node from its operands; raises :class:`Unsupported` without one."""
    if isinstance(node.attr, SpikeRule):
        return SpikeFunction(node.attr, functions)
    function = functions.get(node.op)
    if function is None:
        raise Unsupported(f"there is no function for the operation {node.op!r}")
    return function


class SpikeFunction:
    """A spike node as a function of ``u`` and of the parameters that its derivative reads."""

    def __init__(self, rule: SpikeRule, functions: Functions = TORCH) -> None:
        self.strict = rule.strict
        self.spike = functions["spike"]
        self.derivative = StraightLine([Node("argument", (), "u"), *rule.params], [rule.derivative], functions)

    def __call__(self, u: Tensor, *values: Tensor) -> Tensor:
        """Spikes for ``u``."""
        return self.spike(u, self.strict, self._derivative, *values)

    def _derivative(self, u: Tensor, *values: Tensor) -> Tensor:
        (value,) = self.derivative([u, *values], like=u)
        return value


class StraightLine:
    """Straight-line code for some roots: leaves in, roots out, every node once, by the functions of a table."""

    def __init__(self, leaves: Sequence[Node], roots: Sequence[Node], functions: Functions = TORCH) -> None:
        nodes = [node for node in topological(roots, known=leaves) if node.op != "const"]
        constants = [node for node in topological(roots) if node.op == "const" and node not in leaves]
        missing = [node for node in nodes if node.is_leaf]
        missing += [leaf for node in nodes for leaf in operands(node)[len(node.args) :] if leaf not in leaves]
        if missing:
            raise KeyError(f"no value given for {missing}")
        slot = {node: i for i, node in enumerate([*leaves, *constants, *nodes])}
        self.constants = Constants([float(node.attr) for node in constants])  # type: ignore[arg-type]  # all numbers
        self.results: Tuple[int, ...] = tuple(slot[root] for root in roots)
        reads = [tuple(slot[a] for a in operands(node)) for node in nodes]
        last = {place: at for at, places in enumerate(reads) for place in places}
        done = [tuple({p for p in places if last[p] == at} - {*self.results}) for at, places in enumerate(reads)]
        self.code: List[Instruction] = list(zip([function_of(n, functions) for n in nodes], reads, done))

    def __call__(self, leaves: Sequence[Tensor], like: Tensor) -> List[Tensor]:
        """Values of the roots, in the dtype and on the device of ``like``."""
        slots: List[Any] = [*leaves, *self.constants(like)]
        for function, args, done in self.code:
            if len(args) == 2:
                slots.append(function(slots[args[0]], slots[args[1]]))
            else:
                slots.append(function(*[slots[i] for i in args]))
            for place in done:  # memory that is free now is the next result's, in the cache of the processor
                slots[place] = None
        return [slots[i] for i in self.results]


class PlainLine:
    """The same for plain tensors on which no graph is built: straight-line code, written as a function of Python.

    Values are those of :class:`StraightLine`, bit for bit.
    """

    def __init__(self, leaves: Sequence[Node], roots: Sequence[Node]) -> None:
        order = topological(roots, known=leaves)
        constants = [node for node in order if node.op == "const"]
        nodes = [node for node in order if node.op != "const"]
        self.constants = Constants([float(node.attr) for node in constants])  # type: ignore[arg-type]  # all numbers
        known = {node: f"a{i}" for i, node in enumerate([*leaves, *constants])}
        names, free = dict(known), [f"t{i}" for i in reversed(range(len(nodes)))]
        last = {arg: node for node in nodes for arg in node.args if arg not in roots}
        scope: Dict[str, Any] = {"ge": torch.ge, "gt": torch.gt, "like": torch.empty_like}
        lines = [f"def line({''.join(f'{name}, ' for name in known.values())}zero):"]
        for node in nodes:
            args = [names[arg] for arg in node.args]
            # a name is used again where nothing reads its value any more, and so is its memory
            free += [names[arg] for arg in dict.fromkeys(node.args) if last.get(arg) is node and arg not in known]
            names[node] = free.pop()
            lines.append(f"    {names[node]} = {self._call(node, args, scope)}")
        lines.append(f"    return [{', '.join(names[root] for root in roots)}]")
        exec("\n".join(lines), scope)
        self._line: Callable[..., List[Tensor]] = scope["line"]

    @staticmethod
    def _call(node: Node, args: Sequence[str], scope: Dict[str, Any]) -> str:
        if isinstance(node.attr, SpikeRule):
            return f"{'gt' if node.attr.strict else 'ge'}({args[0]}, zero, out=like({args[0]}))"
        function = function_of(node, PLAIN)
        name = f"f_{len(scope)}"
        scope[name] = function
        return f"{name}({', '.join(args)})"

    def __call__(self, leaves: Sequence[Tensor], like: Tensor) -> List[Tensor]:
        """Values of the roots, in the dtype and on the device of ``like``."""
        return self._line(*leaves, *(self.constants.of_plain(like) if self.constants.values else ()), zero_of(like))


def with_masks(roots: Sequence[Node]) -> List[Node]:
    """The same values, in which spikes choose by their masks: all choices by a spike share one."""
    new: Dict[Node, Node] = {}
    for node in topological(roots):
        args = tuple([new[arg] for arg in node.args])
        if node.op == "select" and args[0].op == "spike":
            new[node] = Node("masked", (Node("silent", args[:1]), *args[1:]))
        else:
            new[node] = node if args == node.args else Node(node.op, args, node.attr)
    return [new[root] for root in roots]


def evaluate(roots: Sequence[Node], values: Mapping[Node, Tensor], like: Tensor) -> List[Tensor]:
    """Values of some expressions, given those of their leaves."""
    return StraightLine(list(values), roots)(list(values.values()), like)


# -- functions of the language


def apply(op: str, *args: Any) -> Any:
    """Result of a function of ``sc.ops``: it records traced values, and computes tensors and numbers."""
    if op == "sum":
        return total(*args)
    if op == "named":
        return name_value(*args)
    if any(isinstance(arg, VectorExpr) for arg in args):
        return by_element(functools.partial(apply, op), *args)
    if op == "spike":
        return _spike(*args)
    if any(isinstance(arg, Expr) for arg in args):
        return record(op, *args)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if not tensors:
        # on the CPU, whatever torch's default device is: not all have float64
        values = [
            torch.tensor(arg, dtype=torch.bool if isinstance(arg, bool) else torch.float64, device="cpu")
            for arg in args
        ]
        return TORCH[op](*values).item()
    # numbers take the dtype of the floating-point tensors, or the default one beside a mask alone
    floating = [arg for arg in tensors if arg.is_floating_point()]
    dtype = floating[0].dtype if floating else torch.get_default_dtype()
    device = tensors[0].device  # and not new_tensor(), which torch 2.0 refuses inside torch.func.grad
    values = [arg if isinstance(arg, torch.Tensor) else torch.full((), arg, dtype=dtype, device=device) for arg in args]
    return TORCH[op](*values)


def _derivative(surrogate: Any) -> Node:
    return lift(surrogate.derivative(Expr(Node("argument", (), "u"))), "surrogate derivative")


def _spike(u: Any, surrogate: Surrogate, strict: bool) -> Any:
    if not isinstance(strict, bool):
        raise TypeError(f"spike: strict={strict!r} must be True or False; a threshold is subtracted: v - threshold")
    if not callable(getattr(surrogate, "derivative", None)) or isinstance(surrogate, type):
        raise TypeError(f"spike: surrogate={surrogate!r} must be a surrogate, such as sc.surrogate.ATan(alpha=2.0)")
    # a traced program has parameters for the surrogate's numbers; computed now, they are the numbers themselves
    of = definition()
    followed = of.numbers if isinstance(u, Expr) else None
    used, values = numbers.with_tensors(surrogate) if isinstance(u, torch.Tensor) else (surrogate, {})
    # no gradient flows through a derivative, with and without torch.no_grad()
    with defining(of._replace(refuses_no_grad=False)) if isinstance(u, Expr) else nullcontext():
        recipes: Tuple[Tuple[Node, Node], ...] = ()
        derivative, label = _derivative(used), repr(surrogate)
        if followed is not None:
            with suppress(Exception):  # it decides by a number, which is then a constant
                settled = followed.settled(_derivative(followed.copy_of(surrogate)), derivative)
                if settled is not None:
                    (derivative, recipes), label = settled, followed.label(surrogate)
    if derivative.is_bool:
        raise TraceError(f"{surrogate!r}.derivative gives a comparison{here()}; return sc.ops.where(comparison, a, b)")
    if not isinstance(u, (Expr, torch.Tensor)):
        return float(u > 0 if strict else u >= 0)
    others = [leaf for leaf in topological([derivative]) if leaf.op in ("input", "state")]
    if others:
        raise TraceError(
            f"the derivative of {type(surrogate).__name__} depends on {others[0].op} {others[0].attr!r}{here()}; the "
            "numbers of a surrogate may be expressions of parameters only"
        )
    rule = SpikeRule(strict, derivative, label, recipes)
    if isinstance(u, Expr):
        return Expr(make("spike", u.node, attr=rule))
    return SpikeFunction(rule)(u, *[values[leaf].detach().to(u.dtype) for leaf in rule.params])


operations.apply = apply
