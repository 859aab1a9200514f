"""A neuron whose last output comes back through a matrix, in NumPy.

    u[t] = x[t] + y[t-1] W' + b        (y, s)[t] = step(u[t], s[t-1])

The oracle of the neuron runs on ``u`` as on any input. What comes back is known from its outputs, and so is the ``x``
that makes a given ``u``.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional

import numpy as np

from spikecore.testing._oracle import through_time
from spikecore.testing._oracle.rules import Array
from spikecore.testing._oracle.through_time import Trajectory


class Matrix(NamedTuple):
    """What outputs come back through."""

    weight: Array
    bias: Optional[Array]
    #: The output before the first step.
    first: Array

    def before(self, outputs: Array) -> Array:
        """The output of the step before each step."""
        return np.concatenate([self.first[None], outputs])[: len(outputs)]

    def back(self, outputs: Array) -> Array:
        """What comes back at each step."""
        return np.asarray(self.before(outputs) @ self.weight.T + (0.0 if self.bias is None else self.bias))


class Gradients(NamedTuple):
    """The derivative of ``sum(output * cotangent) + ...``."""

    inputs: Array
    #: With respect to the state before the first step, the last output among it as ``"feedback"``.
    state: Dict[str, Array]
    params: Dict[str, Array]
    weight: Array
    bias: Array


def adjoint(
    seen: Trajectory,
    matrix: Matrix,
    output: Optional[Array],
    final: Optional[Mapping[str, Array]] = None,
    trace: Optional[Mapping[str, Array]] = None,
) -> Gradients:
    """Gradients, given cotangents of the output, of the final state (``"feedback"`` among it) and of recorded states.

    ``seen`` is the run of the neuron's oracle on ``u``, in float64.
    """
    (inputs,), state, params = through_time.adjoint(seen, [output], final, trace, feedback=matrix.weight)
    width = inputs.shape[-1]
    rows, before = inputs.reshape(-1, width), matrix.before(seen.outputs[0]).reshape(-1, width)
    return Gradients(inputs, state, params, rows.T @ before, rows.sum(0))
