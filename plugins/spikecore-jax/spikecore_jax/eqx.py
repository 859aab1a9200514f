"""A neuron as a module of Equinox."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, TypeVar

import equinox

import spikecore as sc
from spikecore_jax.arguments import Arrays
from spikecore_jax.pure import Function, State, function
from spikecore_jax.trees import at, fits

Tree = TypeVar("Tree")


class Neuron(equinox.Module):
    """``Neuron(sc.LIF(tau=2.0))``: spikes ``[T, *N]`` of inputs ``[T, *N]``, from rest at every call.

    ``learnt`` holds the parameters that the neuron learns, by name: the only arrays of the module, so that
    ``equinox.filter_grad`` differentiates in these. The module carries no state: ``run`` takes and gives it, by name,
    and the caller keeps it from call to call.

    Raises what :func:`spikecore_jax.function` raises.
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


def put(module: Tree, arrays: Mapping[str, Any]) -> Tree:
    """The module with arrays by name, such as ``hidden.weight``, that :func:`spikecore_jax.weights.load` gave.

    Raises ``KeyError`` for a name that it does not have, ``ValueError`` for another shape.
    """
    values = [fits(name, value, at(module, name)) for name, value in arrays.items()]
    found: Tree = equinox.tree_at(lambda tree: [at(tree, name) for name in arrays], module, values)
    return found


def take(module: Any, names: Iterable[str]) -> Dict[str, Any]:
    """Arrays by name, as :func:`spikecore_jax.weights.state_dict` takes them."""
    return {name: at(module, name) for name in names}
