"""Neurons in fixed point as cases see them: the oracle of a program, and states that lie on its grids.

``sc.quant.fixed`` rewrites a neuron's program, which a backend runs as any other. The oracle takes the operations of
that program, and computes them with NumPy. What the rewriting must do is no matter of backends: Python's integers say
that, in the tests of ``sc.quant``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch

import spikecore as sc
from spikecore.core.neuron import Neuron
from spikecore.lang import Node, Program, topological
from spikecore.lang.node import SpikeRule
from spikecore.testing._oracle import Array, Derivative, Next, Oracle, Value
from spikecore.testing._oracle.values import apply

#: Operation -> its table, for neurons that need one.
TABLES: Mapping[str, Any] = {"sigmoid": (-4.0, 4.0, 16), "exp": (-4.0, 2.0, 12)}


class NoFixedPoint(ValueError):
    """No word has enough bits for the thresholds of a program, and few enough for its products."""


def fixed(neuron: Neuron, word: int, rounding: str, dtype: torch.dtype) -> Neuron:
    """The neuron with words of so many bits, or of as many as its thresholds need and this dtype holds its products of.

    Raises :class:`NoFixedPoint` if there is no such word.
    """
    how: Dict[str, Any] = {"rounding": rounding, "tables": TABLES, "dtype": dtype}
    last: Optional[ValueError] = None
    for bits in (word, *[bits for bits in (12, 10, 8) if bits < word], *[bits for bits in (10, 12, 16) if bits > word]):
        try:
            return sc.quant.fixed(neuron, bits, **how)
        except ValueError as error:
            last = error
    raise NoFixedPoint(str(last)) from last


class Rewritten(Oracle):
    """The oracle of a program that is given: its operations, in the order in which it has them."""

    def __init__(self, program: Program, surrogate: Derivative) -> None:
        super().__init__(surrogate)
        self.program = program
        self.inputs, self.outputs = program.inputs, len(program.outputs)
        self.params = tuple(name for name in program.params if name not in program.numbers)
        self.rest = dict.fromkeys(program.states, 0.0)
        self._order = topological([*program.outputs, *program.next])

    def start(self, params: Mapping[str, Value]) -> Dict[str, Value]:
        """States at rest; see :class:`Oracle`."""
        leaves = {Node("param", (), name): value for name, value in params.items()}
        initial = self.program.initial
        return dict(zip(self.program.states, self._values(leaves, topological(initial), initial)))

    def step(self, s: Any, p: Any, *x: Value) -> Next:
        """Outputs and next states of a step; see :class:`Oracle`."""
        leaves = dict(zip(self.program.leaves, [*x, *[getattr(s, name) for name in self.program.states]]))
        leaves.update({Node("param", (), name): value for name, value in vars(p).items()})
        roots = self._values(leaves, self._order, [*self.program.outputs, *self.program.next])
        return tuple(roots[: self.outputs]), dict(zip(self.program.states, roots[self.outputs :]))

    def _values(self, leaves: Mapping[Node, Value], order: Sequence[Node], roots: Sequence[Node]) -> List[Value]:
        values = dict(leaves)
        dtype = next((leaf.array.dtype for leaf in leaves.values()), np.dtype(float))
        for node in order:
            if node.op == "const":
                values[node] = Value(np.asarray(node.attr, dtype))
            elif isinstance(node.attr, SpikeRule):
                values[node] = self.fire(values[node.args[0]], node.attr.strict)
            elif node not in values:
                values[node] = apply(node.op, *[values[arg] for arg in node.args])
        return [values[root] for root in roots]


def on_grids(program: Program, states: Mapping[str, Array], dtype: torch.dtype) -> Dict[str, Array]:
    """The nearest values of states that the program may have."""
    formats = sc.quant.analyse(program, dtype=dtype)
    nearest = {}
    for name, value in states.items():
        known = formats[Node("state", (), name)]
        unit = 2.0 ** -int(known.frac or 0)
        # an integer has no -0
        nearest[name] = np.clip(np.rint(value / unit), float(known.low), float(known.high)) * unit + 0.0
    return nearest
