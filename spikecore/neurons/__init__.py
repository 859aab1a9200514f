"""The neuron models, each as its equations."""

import inspect
from typing import Any, Dict, Type

from spikecore.core.neuron import Neuron
from spikecore.neurons._adaptive import *
from spikecore.neurons._compartments import *
from spikecore.neurons._leaky import *
from spikecore.neurons._lif import *
from spikecore.neurons._nonlinear import *
from spikecore.neurons._recurrent import *
from spikecore.neurons._vectors import *

__all__ = [
    "ALIF",
    "BRF",
    "CLIF",
    "DHLIF",
    "EIF",
    "FEEDBACK",
    "GLIF",
    "IF",
    "ILIF",
    "KLIF",
    "LI",
    "LIF",
    "MODELS",
    "PLIF",
    "QIF",
    "TCLIF",
    "Alpha",
    "CobaLIF",
    "Izhikevich",
    "Lapicque",
    "Leaky",
    "Membrane",
    "Recurrent",
    "SEAdLIF",
    "SpikingSSM",
    "Synaptic",
    "SynapticLeaky",
    "TernaryLIF",
    "example",
]

_OTHERS = ("FEEDBACK", "MODELS", "Membrane", "Recurrent", "example")
#: The models with equations of their own, by name.
MODELS: Dict[str, Type[Neuron]] = {name: globals()[name] for name in sorted(__all__) if name not in _OTHERS}


def example(name: str, **options: Any) -> Neuron:
    """The model of this name: with its defaults, and the value in ``params`` of an argument that has no default."""
    kind: Any = MODELS[name]
    required = [p.name for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
    made: Neuron = kind(**{**{name: kind.params[name] for name in required if name in kind.params}, **options})
    return made
