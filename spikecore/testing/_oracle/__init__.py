"""What is right: every neuron and surrogate in NumPy, equations and adjoints written by hand.

Nothing here computes with spikecore.lang, a backend, torch, or automatic differentiation: an error in one of those
cannot hide by being made twice. The names of operations are the language's.
"""

from spikecore.testing._oracle import normalised, recurrent
from spikecore.testing._oracle.neurons import ALIF, EIF, IF, KLIF, LI, LIF, PLIF, QIF, Izhikevich, Leaky, Synaptic
from spikecore.testing._oracle.papers import BRF, CLIF, GLIF, TCLIF, SEAdLIF, TernaryLIF
from spikecore.testing._oracle.snntorch import Alpha, Lapicque, SynapticLeaky
from spikecore.testing._oracle.surrogates import SURROGATES, Derivative
from spikecore.testing._oracle.through_time import Array, Gradients, Oracle, Step, Trajectory, adjoint, run

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
    "SURROGATES",
    "TCLIF",
    "Alpha",
    "Array",
    "Derivative",
    "Gradients",
    "Izhikevich",
    "Lapicque",
    "Leaky",
    "Oracle",
    "SEAdLIF",
    "Step",
    "Synaptic",
    "SynapticLeaky",
    "TernaryLIF",
    "Trajectory",
    "adjoint",
    "normalised",
    "recurrent",
    "run",
]
