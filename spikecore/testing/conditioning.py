"""Allowed deviation of a call's numbers that are ill-conditioned (:mod:`spikecore.testing._oracle.moved`).

A comparison asks for this where a number is beyond its tolerance, and only there: a backend whose numbers are all
within tolerance costs no moved run. Tolerances stay as they are. What has none, bits that are fixed, is not excused.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import numpy as np

from spikecore.testing._oracle import Array, Gradients, Oracle, run, summed
from spikecore.testing._oracle.moved import COPIES, MULTIPLE, Moves, crossed, spread


class Conditioning:
    """A moved run of an oracle on ``inputs`` ``[T, *N]``: what each number may be off, in the number's shape.

    dtype: that of the backend's arithmetic. bits: whether the values are those of this dtype, to the bit.
    """

    def __init__(
        self,
        oracle: Oracle,
        inputs: Sequence[Array],
        params: Mapping[str, Any],
        state: Optional[Mapping[str, Array]],
        dtype: Any,
        bits: bool = False,
    ) -> None:
        self.shape = tuple(inputs[0].shape[1:])
        dims = len(self.shape)
        self._moves = Moves(dims, float(np.finfo(dtype).eps), not bits)
        copied = [np.broadcast_to(x[:, None], (len(x), COPIES, *self.shape)) for x in inputs]
        lying = {name: np.asarray(value, float) for name, value in params.items()}
        lying = {name: value.reshape((1,) * (dims - value.ndim) + value.shape) for name, value in lying.items()}
        lying = {name: np.broadcast_to(value, (COPIES, *value.shape)) for name, value in lying.items()}
        with self._moves.applied():
            self.seen = run(oracle, copied, lying, state, dtype if bits else np.float64, decisions=not bits)
        beyond = [crossed(step.distances, self.shape) for step in self.seen.steps]
        #: The neurons whose spikes hang on the last digits, from this step on.
        self.beyond = np.logical_or.accumulate(np.stack([np.zeros(self.shape, bool), *beyond]))

    def outputs(self, number: int) -> Array:
        """Of an output."""
        return self._over_time(self.seen.outputs[number])

    def states(self, name: str) -> Array:
        """Of a state after each step."""
        return self._over_time(self.seen.states[name])

    def gradients(self, adjoint: Callable[[Any], Gradients]) -> Gradients:
        """Of gradients, which ``adjoint`` computes of a trajectory; those of parameters with an axis for each of N."""
        with self._moves.applied():
            of = adjoint(self.seen)
        ever = self.beyond[-1]
        params: Dict[str, Array] = {}
        for name, copies in of.params.items():
            theirs = spread(copies)
            params[name] = np.where(summed(ever * 1.0, self.shape, theirs.shape) > 0, np.inf, MULTIPLE * theirs)
        return Gradients(
            tuple(np.where(ever, np.inf, MULTIPLE * spread(g.swapaxes(0, 1))) for g in of.inputs),
            {name: np.where(ever, np.inf, MULTIPLE * spread(g)) for name, g in of.state.items()},
            params,
        )

    def _over_time(self, copies: Array) -> Array:
        return np.where(self.beyond[1:], np.inf, MULTIPLE * spread(copies.swapaxes(0, 1)))
