"""The neuron models, each as its equations."""

from spikecore.neurons.adaptive import ALIF, LI, Synaptic
from spikecore.neurons.leaky import Leaky
from spikecore.neurons.lif import IF, KLIF, LIF, PLIF
from spikecore.neurons.membrane import Membrane
from spikecore.neurons.nonlinear import EIF, QIF, Izhikevich
from spikecore.neurons.recurrent import Recurrent

__all__ = [
    "ALIF",
    "EIF",
    "IF",
    "KLIF",
    "LI",
    "LIF",
    "PLIF",
    "QIF",
    "Izhikevich",
    "Leaky",
    "Membrane",
    "Recurrent",
    "Synaptic",
]
