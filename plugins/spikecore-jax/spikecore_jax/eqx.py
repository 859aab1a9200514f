"""A neuron as a module of Equinox."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import equinox

import spikecore as sc
from spikecore_jax.arguments import Arrays
from spikecore_jax.pure import Function, State, function


class Neuron(equinox.Module):
    """``Neuron(sc.LIF(tau=2.0))``: spikes ``[T, *N]`` of inputs ``[T, *N]``, from rest at every call.

    ``learnt`` holds the parameters that the neuron learns, by name: the only arrays of the module, so that
    ``equinox.filter_grad`` differentiates in these. ``run`` takes and gives states, by name.
    """

    learnt: Dict[str, Any]
    function: Function = equinox.field(static=True)

    def __init__(self, neuron: sc.Neuron) -> None:
        self.function = function(neuron)
        self.learnt = {name: self.function.params[name] for name in self.function.learnt}

    def __call__(self, xs: Arrays) -> Any:
        return self.run(xs)[0]

    def run(self, xs: Arrays, state: Optional[State] = None) -> Tuple[Any, State]:
        """Outputs, and the state after the last step; None starts at rest."""
        return self.function({**self.function.params, **self.learnt}, state, xs)
