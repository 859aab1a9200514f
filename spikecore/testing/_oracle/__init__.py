"""What is right: every neuron and surrogate in NumPy, equations and adjoints written by hand.

Nothing here computes with spikecore.lang, a backend, torch, or automatic differentiation: an error in one of those
cannot hide by being made twice. The names of operations are the language's.
"""

from spikecore.testing._oracle import normalised, recurrent
from spikecore.testing._oracle.surrogates import SURROGATES, Derivative
from spikecore.testing._oracle.through_time import Array, Gradients, Oracle, Step, Trajectory, adjoint, run

__all__ = [
    "SURROGATES",
    "Array",
    "Derivative",
    "Gradients",
    "Oracle",
    "Step",
    "Trajectory",
    "adjoint",
    "normalised",
    "recurrent",
    "run",
]
