"""One time step as a pure function of values, for targets without raw memory, such as JAX, XLA or MLX.

A value is whatever a table of functions computes with. Three kinds of values need no table of their own:

- tensors, computed with torch's functions (:data:`spikecore.lang.eager.TORCH`);
- expressions (:class:`spikecore.lang.Expr`), which give expressions;
- numbers among either of them.

Nothing here has a loop over time: a target has a better one (``jax.lax.scan``).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.backend import Unsupported
from spikecore.lang import Expr, Node, SpikeRule, topological
from spikecore.lang.eager import StraightLine, number
from spikecore.lang.node import const, substitute

#: op name -> function of a target's values, for every operation that a program uses. That of ``spike`` is called as
#: ``spike(u, strict, derivative, *values)``, where ``derivative(u, *values)`` is its derivative; a target whose own
#: differentiation does not see the step ignores the latter two. Numbers come as floats of Python.
Functions = Mapping[str, Callable[..., Any]]


class Step:
    """Some expressions as a pure function of the values of their leaves."""

    def __init__(self, leaves: Sequence[Node], roots: Sequence[Node]) -> None:
        self.leaves, self.roots = tuple(leaves), tuple(roots)
        self._straight: Optional[StraightLine] = None

    def __call__(self, values: Sequence[Any], functions: Optional[Functions], like: Optional[Tensor]) -> List[Any]:
        """The values of the roots. One that depends on no leaf is a number, or a tensor ``[]``.

        ``like`` has the dtype and the device of tensors; by default they are those of the first tensor.
        """
        if len(values) != len(self.leaves):
            names = ", ".join(f"{leaf.op} {leaf.attr!r}" for leaf in self.leaves)
            raise ValueError(f"{len(values)} values for {len(self.leaves)} leaves; give one for each of: {names}")
        if functions is not None:
            return _evaluated(self.roots, dict(zip(self.leaves, values)), functions)
        if any(isinstance(value, Expr) for value in values):
            nodes = {leaf: _node_of(value) for leaf, value in zip(self.leaves, values)}
            return [Expr(substitute(root, nodes)) for root in self.roots]
        return self._tensors(values, like)

    def _tensors(self, values: Sequence[Any], like: Optional[Tensor]) -> List[Tensor]:
        if like is None:
            like = next((value for value in values if isinstance(value, Tensor)), torch.empty(()))
        if self._straight is None:
            self._straight = StraightLine(self.leaves, self.roots)
        # a bare number would be divided by through its reciprocal on some devices
        return self._straight([v if isinstance(v, Tensor) else number(float(v), like) for v in values], like)


def _node_of(value: Any) -> Node:
    return value.node if isinstance(value, Expr) else const(float(value))


def _evaluated(roots: Sequence[Node], values: Dict[Node, Any], functions: Functions) -> List[Any]:
    """The values of the roots, each operation by its function in the table."""
    found = dict(values)
    for node in topological(roots, known=values):
        if node.op == "const":
            found[node] = float(node.attr)  # type: ignore[arg-type]  # of a constant it is a number
            continue
        function = functions.get(node.op)
        if function is None:
            raise Unsupported(f"the table of functions has none for the operation {node.op!r}; known: {[*functions]}")
        args = [found[arg] for arg in node.args]
        if isinstance(node.attr, SpikeRule):
            args += [node.attr.strict, _derivative(node.attr, functions), *(found[p] for p in node.attr.params)]
        found[node] = function(*args)
    return [found[root] for root in roots]


def _derivative(rule: SpikeRule, functions: Functions) -> Callable[..., Any]:
    leaves = (Node("argument", (), "u"), *rule.params)

    def derivative(*values: Any) -> Any:
        return _evaluated([rule.derivative], dict(zip(leaves, values)), functions)[0]

    return derivative


def split(values: Sequence[Any], *counts: int) -> Tuple[List[Any], ...]:
    """The values in groups of these sizes."""
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return tuple(list(values[end - count : end]) for count, end in zip(counts, ends))
