"""The neuron models, each as its equations.

A class that a module of this package exports is one of :data:`MODELS`.
"""

import inspect
from typing import TYPE_CHECKING, Any, Dict, Type

from spikecore.neuron import Neuron
from spikecore.neurons._adaptive import *
from spikecore.neurons._compartments import *
from spikecore.neurons._complementary import *
from spikecore.neurons._leaky import *
from spikecore.neurons._lif import *
from spikecore.neurons._membrane import *
from spikecore.neurons._nonlinear import *
from spikecore.neurons._recurrent import *
from spikecore.neurons._ternary import *

#: The models with equations of their own, by name.
MODELS: Dict[str, Type[Neuron]] = {
    name: kind
    for name, kind in sorted(globals().items())
    if isinstance(kind, type) and issubclass(kind, Neuron) and name not in ("Neuron", "Membrane")
}

if not TYPE_CHECKING:  # a checker reads the lists of the modules
    __all__ = ["MODELS", *MODELS, "Membrane", "Recurrent", "example"]


def example(name: str, **options: Any) -> Neuron:
    """The model of this name: with its defaults, and the value in ``params`` of an argument that has no default."""
    kind: Any = MODELS[name]
    required = [p.name for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
    made: Neuron = kind(**{**{name: kind.params[name] for name in required if name in kind.params}, **options})
    return made
