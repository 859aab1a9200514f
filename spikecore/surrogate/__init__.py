"""Surrogate derivatives: what stands for the derivative of the spike.

A spike is ``z = [u >= 0]`` with ``u`` the membrane potential minus the threshold. Its derivative is zero almost
everywhere, so the backward pass uses ``derivative(u)`` instead. Rules of this module:

- A surrogate is one formula in the language (`sc.ops`, ``+ - * /``); every backend compiles it from there.
- It is finite for every finite ``u``, at zero and at the tails.
- ``primitive(u)`` is a function with that derivative, on tensors, where a closed form exists. Nothing but plots and
  tests needs it: the forward pass is always the step.
- A surrogate is a value: equal parameters make equal surrogates; it hashes, prints and pickles, and once a neuron has
  it, it never changes. To anneal, give the neuron a new one: its floats are arguments of kernels, which stay the same.

Your own::

    @dataclass(frozen=True)
    class Box(sc.Surrogate):
        width: float = 1.0

        def derivative(self, u):
            return sc.ops.where(abs(u) < self.width / 2, 1.0 / self.width, 0.0)
"""

from typing import Dict, Type

from spikecore.surrogate._base import Surrogate as Surrogate
from spikecore.surrogate._piecewise import *
from spikecore.surrogate._smooth import *

__all__ = [
    "S2NN",
    "ATan",
    "Erf",
    "FakeNumericalGradient",
    "FastSigmoid",
    "LeakyKReLU",
    "LogTailedReLU",
    "MultiGaussian",
    "NonzeroSignLogAbs",
    "PiecewiseExp",
    "PiecewiseLeakyReLU",
    "PiecewiseQuadratic",
    "QPseudoSpike",
    "Rectangular",
    "Sigmoid",
    "SoftSign",
    "SquarewaveFourier",
    "StraightThrough",
    "Super",
    "SuperSpike",
    "Surrogate",
    "Triangular",
]
__dir__ = __all__.copy

#: The surrogates by name.
SURROGATES: Dict[str, Type[Surrogate]] = {
    name: globals()[name] for name in sorted(__all__, key=str.lower) if name != "Surrogate"
}
