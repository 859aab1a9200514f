"""A neuron whose last output comes back through a matrix, in NumPy, and its adjoint by hand.

    u[t] = x[t] + y[t-1] W' + b        (y, s)[t] = step(u[t], s[t-1])

The oracle of the neuron runs on ``u`` as on any input. What comes back is known from its outputs, and so is the ``x``
that makes a given ``u``.
"""

from __future__ import annotations

from types import SimpleNamespace as Values
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

from spikecore.testing._oracle.through_time import Array, Trajectory, summed


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
    ends = dict(final or {})
    shape = seen.outputs[0].shape[1:]
    zero = np.zeros(shape)
    back: Any = ends.get("feedback", zero)
    g: Dict[str, Any] = {name: np.asarray(ends.get(name, zero), float) for name in seen.start}
    g_params = {name: np.zeros(np.shape(value)) for name, value in vars(seen.params).items()}
    to_u: List[Array] = []
    for t in reversed(range(len(seen.steps))):
        for name, cotangent in (trace or {}).items():
            g[name] = g[name] + cotangent[t]
        step = seen.steps[t]
        to_y = back + (zero if output is None else output[t])
        found = seen.oracle.back(step, step.before, seen.params, Values(**g), to_y)
        g = {name: np.asarray(found.states[name]) for name in g}
        to_u.append(np.broadcast_to(found.inputs[0], shape))
        back = to_u[-1] @ matrix.weight
        for name, value in found.params.items():
            g_params[name] = g_params[name] + summed(value, shape, g_params[name].shape)
    for name, initial in seen.oracle.rest.items():
        if seen.at_rest and isinstance(initial, str):
            g_params[initial] = g_params[initial] + summed(g[name], shape, g_params[initial].shape)
    inputs = np.stack(to_u[::-1])
    width = shape[-1]
    rows, before = inputs.reshape(-1, width), matrix.before(seen.outputs[0]).reshape(-1, width)
    return Gradients(inputs, {**g, "feedback": back}, g_params, rows.T @ before, rows.sum(0))
