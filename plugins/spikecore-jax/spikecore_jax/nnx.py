"""A neuron as a module of Flax NNX."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from flax import nnx

import spikecore as sc
from spikecore_jax.arguments import Arrays
from spikecore_jax.pure import Function, State, function


class Neuron(nnx.Module):
    """``Neuron(sc.LIF(tau=2.0))``: spikes ``[T, *N]`` of inputs ``[T, *N]``, from rest at every call.

    Parameters that the neuron learns are ``nnx.Param`` under their own names, all others stay what they are. ``run``
    takes and gives states, by name.
    """

    def __init__(self, neuron: sc.Neuron) -> None:
        self.function: Function = function(neuron)
        for name in self.function.learnt:
            setattr(self, name, nnx.Param(self.function.params[name]))

    def __call__(self, xs: Arrays) -> Any:
        return self.run(xs)[0]

    def run(self, xs: Arrays, state: Optional[State] = None) -> Tuple[Any, State]:
        """Outputs, and the state after the last step; None starts at rest."""
        return self.function(self._params(), state, xs)

    def _params(self) -> Dict[str, Any]:
        return {**self.function.params, **{name: getattr(self, name)[...] for name in self.function.learnt}}
