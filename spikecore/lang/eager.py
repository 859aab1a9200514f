"""The operations of the language computed with PyTorch: what each one means, value and derivative.

:data:`TORCH` defines the language for everybody: ``sc.ops`` on tensors, the torch backend, and the tests of every other
backend. :data:`RECORDED` has the operations whose derivative is written into the forward pass, for PopTorch and
``torch.jit.trace``, which record that pass alone.
"""

from __future__ import annotations

from typing import Callable, List, Mapping, Sequence, Tuple

from torch import Tensor

from spikecore._base.errors import Unsupported
from spikecore.lang._functions import RECORDED as RECORDED
from spikecore.lang._graph import topological
from spikecore.lang._plain import Constants
from spikecore.lang._plain import is_plain as is_plain  # backends take these two from here
from spikecore.lang._plain import number as number
from spikecore.lang.node import Node, SpikeRule
from spikecore.lang.operations import ROWS

#: op name -> function of tensors; that of ``spike`` is called as ``spike(u, strict, derivative, *values)``, where
#: ``derivative(u, *values)`` is its derivative.
Functions = Mapping[str, Callable[..., Tensor]]

TORCH: Functions = {row.name: row.torch for row in ROWS}

#: One instruction: (function, slots of its arguments). Its result is appended to the slots.
Instruction = Tuple[Callable[..., Tensor], Tuple[int, ...]]


def operands(node: Node) -> Tuple[Node, ...]:
    """What the function of a node takes: its arguments, then the parameters that a spike's derivative reads."""
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
        self.code: List[Instruction] = [(function_of(n, functions), tuple(slot[a] for a in operands(n))) for n in nodes]
        self.results: Tuple[int, ...] = tuple(slot[root] for root in roots)

    def __call__(self, leaves: Sequence[Tensor], like: Tensor) -> List[Tensor]:
        """Values of the roots, in the dtype and on the device of ``like``."""
        slots = [*leaves, *self.constants(like)]
        for function, args in self.code:
            if len(args) == 2:
                slots.append(function(slots[args[0]], slots[args[1]]))
            else:
                slots.append(function(*[slots[i] for i in args]))
        return [slots[i] for i in self.results]


def evaluate(roots: Sequence[Node], values: Mapping[Node, Tensor], like: Tensor) -> List[Tensor]:
    """Values of some expressions, given those of their leaves."""
    return StraightLine(list(values), roots)(list(values.values()), like)
