"""What is right: every neuron and surrogate in NumPy, equations and adjoints written by hand.

Nothing here uses spikecore.lang, a backend, torch, or automatic differentiation: an error in one of those cannot hide
by being made twice.
"""

from spikecore.testing._oracle import normalised, recurrent
from spikecore.testing._oracle.neurons import ALIF, EIF, IF, KLIF, LI, LIF, PLIF, QIF, Izhikevich, Leaky, Synaptic
from spikecore.testing._oracle.surrogates import SURROGATES, Derivative
from spikecore.testing._oracle.through_time import Array, Gradients, Oracle, Step, Trajectory, adjoint, run

__all__ = [
    "ALIF",
    "EIF",
    "IF",
    "KLIF",
    "LI",
    "LIF",
    "PLIF",
    "QIF",
    "SURROGATES",
    "Array",
    "Derivative",
    "Gradients",
    "Izhikevich",
    "Leaky",
    "Oracle",
    "Step",
    "Synaptic",
    "Trajectory",
    "adjoint",
    "normalised",
    "recurrent",
    "run",
]
