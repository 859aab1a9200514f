"""Oracle: every neuron and surrogate in NumPy, and operation by operation back through time.

Nothing here computes with spikecore.lang, a backend or torch: an error in one of those cannot hide by being made twice.
Which operations there are is said by :mod:`spikecore.lang.operations`; what they are, by :mod:`rules` alone.
"""

from spikecore.testing._oracle.layers import FEEDBACK, Affine, Matrices, Matrix, Norm, names_of_outputs
from spikecore.testing._oracle.rules import Array
from spikecore.testing._oracle.surrogates import OTHER_ARGUMENTS, SURROGATES, Derivative
from spikecore.testing._oracle.through_time import Gradients, Next, Oracle, Step, Trajectory, adjoint, run, summed
from spikecore.testing._oracle.values import Value, distances, ops

__all__ = [
    "FEEDBACK",
    "OTHER_ARGUMENTS",
    "SURROGATES",
    "Affine",
    "Array",
    "Derivative",
    "Gradients",
    "Matrices",
    "Matrix",
    "Next",
    "Norm",
    "Oracle",
    "Step",
    "Trajectory",
    "Value",
    "adjoint",
    "distances",
    "names_of_outputs",
    "ops",
    "run",
    "summed",
]
