"""The neuron models, each as its equations."""

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
]
