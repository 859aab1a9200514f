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
    class Box(sc.surrogate.Surrogate):
        width: float = 1.0

        def derivative(self, u):
            return sc.ops.where(abs(u) < self.width / 2, 1.0 / self.width, 0.0)
"""

from spikecore.surrogate._base import Surrogate
from spikecore.surrogate._piecewise import (
    S2NN,
    FakeNumericalGradient,
    LeakyKReLU,
    LogTailedReLU,
    PiecewiseLeakyReLU,
    PiecewiseQuadratic,
    Rectangular,
    StraightThrough,
    Triangular,
)
from spikecore.surrogate._smooth import (
    ATan,
    Erf,
    FastSigmoid,
    NonzeroSignLogAbs,
    PiecewiseExp,
    QPseudoSpike,
    Sigmoid,
    SoftSign,
    SquarewaveFourier,
    SuperSpike,
)

__all__ = [  # noqa: RUF022  # the order in which `spikecore kernel` lists them
    "Surrogate",
    "ATan",
    "Sigmoid",
    "FastSigmoid",
    "SuperSpike",
    "PiecewiseQuadratic",
    "PiecewiseExp",
    "SoftSign",
    "Erf",
    "Rectangular",
    "Triangular",
    "PiecewiseLeakyReLU",
    "NonzeroSignLogAbs",
    "SquarewaveFourier",
    "S2NN",
    "QPseudoSpike",
    "LeakyKReLU",
    "FakeNumericalGradient",
    "LogTailedReLU",
    "StraightThrough",
]
