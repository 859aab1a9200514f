"""The neuron models, each as its equations."""

from spikecore.neurons._adaptive import ALIF, LI, Synaptic
from spikecore.neurons._leaky import Alpha, Lapicque, Leaky, SynapticLeaky
from spikecore.neurons._lif import IF, KLIF, LIF, PLIF
from spikecore.neurons._membrane import Membrane
from spikecore.neurons._nonlinear import EIF, QIF, Izhikevich
from spikecore.neurons._recurrent import Recurrent

__all__ = [
    "ALIF",
    "EIF",
    "IF",
    "KLIF",
    "LI",
    "LIF",
    "PLIF",
    "QIF",
    "Alpha",
    "Izhikevich",
    "Lapicque",
    "Leaky",
    "Membrane",
    "Recurrent",
    "Synaptic",
    "SynapticLeaky",
]
