"""The neuron models, each as its equations."""

import inspect
from typing import Any, Dict, Type

from spikecore.neuron import Neuron
from spikecore.neurons._adaptive import ALIF, LI, Synaptic
from spikecore.neurons._compartments import BRF, TCLIF, SEAdLIF
from spikecore.neurons._complementary import CLIF, GLIF
from spikecore.neurons._leaky import Alpha, Lapicque, Leaky, SynapticLeaky
from spikecore.neurons._lif import IF, KLIF, LIF, PLIF
from spikecore.neurons._membrane import Membrane
from spikecore.neurons._nonlinear import EIF, QIF, Izhikevich
from spikecore.neurons._recurrent import Recurrent
from spikecore.neurons._ternary import TernaryLIF

__all__ = [
    "ALIF",
    "BRF",
    "CLIF",
    "EIF",
    "GLIF",
    "IF",
    "KLIF",
    "LI",
    "LIF",
    "MODELS",
    "PLIF",
    "QIF",
    "TCLIF",
    "Alpha",
    "Izhikevich",
    "Lapicque",
    "Leaky",
    "Membrane",
    "Recurrent",
    "SEAdLIF",
    "Synaptic",
    "SynapticLeaky",
    "TernaryLIF",
    "example",
]

#: The models with equations of their own, by name.
MODELS: Dict[str, Type[Neuron]] = {
    name: kind
    for name, kind in ((name, globals().get(name)) for name in __all__)
    if isinstance(kind, type) and issubclass(kind, Neuron) and kind is not Membrane
}


def example(name: str, **options: Any) -> Neuron:
    """The model of this name: with its defaults, and the value in ``params`` of an argument that has no default."""
    kind: Any = MODELS[name]
    required = [p.name for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
    made: Neuron = kind(**{**{name: kind.params[name] for name in required if name in kind.params}, **options})
    return made
