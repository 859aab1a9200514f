"""A neuron as a module of Flax NNX."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

from flax import nnx

import spikecore as sc
from spikecore_jax.arguments import Arrays
from spikecore_jax.pure import Function, State, function
from spikecore_jax.trees import at, fits


class Neuron(nnx.Module):
    """``Neuron(sc.LIF(tau=2.0))``: spikes ``[T, *N]`` of inputs ``[T, *N]``, from rest at every call.

    Parameters that the neuron learns are ``nnx.Param`` under their own names, all others stay what they are. The module
    carries no state: ``run`` takes and gives it, by name, and the caller keeps it from call to call.

    Raises what :func:`spikecore_jax.function` raises, and ``ValueError`` for a learnt parameter whose name is that of
    something else in the module.
    """

    def __init__(self, neuron: sc.Neuron) -> None:
        self.function: Function = function(neuron)
        for name, value in self.function.params.items():
            if name in self.function.learnt:
                if hasattr(self, name):
                    raise ValueError(f"neuron={type(neuron).__name__} learns {name!r}, a name that {nnx.Module} has")
                setattr(self, name, nnx.Param(value))

    def __call__(self, xs: Arrays) -> Any:
        return self.run(xs)[0]

    def run(self, xs: Arrays, state: Optional[State] = None) -> Tuple[Any, State]:
        """Outputs, and the state after the last step; None starts at rest."""
        return self.function(self._params(), state, xs)

    def _params(self) -> Dict[str, Any]:
        return {**self.function.params, **{name: getattr(self, name)[...] for name in self.function.learnt}}


def put(module: nnx.Module, arrays: Mapping[str, Any]) -> None:
    """Set variables of a module by name, such as ``hidden.kernel``, to what :func:`spikecore_jax.weights.load` gave.

    Raises ``KeyError`` for a name that it does not have, ``ValueError`` for another shape; then nothing is set.
    """
    found = [(at(module, name), fits(name, value, at(module, name))) for name, value in arrays.items()]
    for variable, value in found:
        variable[...] = value


def take(module: nnx.Module, names: Iterable[str]) -> Dict[str, Any]:
    """The arrays of variables by name, as :func:`spikecore_jax.weights.state_dict` takes them."""
    return {name: at(module, name)[...] for name in names}
