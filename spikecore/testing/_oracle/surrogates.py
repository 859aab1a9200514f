"""The nineteen surrogate derivatives in NumPy, from the papers and the peers, each with the points where it jumps."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Derivative(NamedTuple):
    """A surrogate with fixed parameters: its name and arguments in ``sc.surrogate``, its derivative, its jumps."""

    name: str
    arguments: Mapping[str, float]
    of: Callable[[Array], Array]
    #: Where the derivative is discontinuous, other than in rounding.
    jumps: Tuple[float, ...] = ()
    #: The library's class, where it is none of ``sc.surrogate``.
    library: Any = None

    def __call__(self, u: Array) -> Array:
        """The derivative at ``u``, potential minus threshold."""
        with np.errstate(all="ignore"):
            value: Array = np.asarray(self.of(np.asarray(u, float)), float) * np.ones_like(u, float)
        return value

    def distances(self, u: Array) -> List[Array]:
        """How far ``u`` is from each jump."""
        return [u - jump for jump in self.jumps]


def _logistic(u: Array) -> Array:
    e = np.exp(-np.abs(u))
    return np.asarray(np.where(u >= 0, 1.0 / (1.0 + e), e / (1.0 + e)))


def _bell(u: Array, alpha: float) -> Any:
    """``a s (1 - s)`` with ``s`` the logistic function of ``a u``; 1 - s is that of ``-a u``."""
    return alpha * _logistic(alpha * u) * _logistic(-alpha * u)


def _fourier(u: Array, n: float, period: float) -> Array:
    # the phase within one period, or a large u would lose it
    phase = np.fmod(u, period)
    terms = [np.cos((2 * i - 1) * 2.0 * math.pi * phase / period) for i in range(1, int(n))]
    return np.asarray(4.0 / period * sum(terms))


def _reciprocal(u: Array, alpha: float) -> Any:
    return np.where(np.abs(u) > 1.0 / alpha, 1.0 / np.maximum(np.abs(u), 1.0 / alpha), alpha)


def _log_tail(u: Array, alpha: float) -> Any:
    return np.where(u > 1, 1.0 / np.maximum(u, 1.0), np.where(u > 0, 1.0, alpha))


#: Name -> defaults, derivative, jumps.
_BY_NAME: Dict[str, Tuple[Mapping[str, float], Callable[..., Any], Callable[..., Tuple[float, ...]]]] = {
    "ATan": ({"alpha": 2.0}, lambda u, alpha: alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2), lambda alpha: ()),
    "Sigmoid": ({"alpha": 4.0}, _bell, lambda alpha: ()),
    "FastSigmoid": ({"slope": 25.0}, lambda u, slope: 1 / (1 + slope * np.abs(u)) ** 2, lambda slope: ()),
    "SuperSpike": ({"alpha": 1.0}, lambda u, alpha: alpha / (1 + np.abs(u)) ** 2, lambda alpha: ()),
    "PiecewiseQuadratic": (
        {"alpha": 1.0},
        lambda u, alpha: np.maximum(0.0, alpha - alpha * alpha * np.abs(u)),
        lambda alpha: (),
    ),
    "PiecewiseExp": ({"alpha": 1.0}, lambda u, alpha: alpha / 2 * np.exp(-alpha * np.abs(u)), lambda alpha: ()),
    "SoftSign": ({"alpha": 2.0}, lambda u, alpha: 1 / (2 * alpha * (1 / alpha + np.abs(u)) ** 2), lambda alpha: ()),
    "Erf": (
        {"alpha": 2.0},
        lambda u, alpha: alpha / math.sqrt(math.pi) * np.exp(-((alpha * u) ** 2)),
        lambda alpha: (),
    ),
    "Rectangular": (
        {"alpha": 1.0},
        lambda u, alpha: np.where(np.abs(u) < 1 / (2 * alpha), alpha, 0.0),
        lambda alpha: (-0.5 / alpha, 0.5 / alpha),
    ),
    "Triangular": (
        {"gamma": 0.3, "width": 1.0},
        lambda u, gamma, width: gamma * np.maximum(0.0, 1 - np.abs(u) / width),
        lambda gamma, width: (),
    ),
    "PiecewiseLeakyReLU": (
        {"w": 1.0, "c": 0.01},
        lambda u, w, c: np.where(np.abs(u) < w, 1 / (2 * w), c),
        lambda w, c: (-w, w),
    ),
    "NonzeroSignLogAbs": ({"alpha": 1.0}, lambda u, alpha: 1 / (1 / alpha + np.abs(u)), lambda alpha: ()),
    "SquarewaveFourier": ({"n": 2, "period": 8.0}, _fourier, lambda n, period: ()),
    "S2NN": (
        {"alpha": 4.0, "beta": 1.0},
        lambda u, alpha, beta: np.where(u < 0, _bell(u, alpha), beta / (np.abs(u) + 1)),
        lambda alpha, beta: (0.0,),
    ),
    "QPseudoSpike": (
        {"alpha": 2.0},
        lambda u, alpha: (1 + 2 / (alpha - 1) * np.abs(u)) ** -alpha,
        lambda alpha: (),
    ),
    "LeakyKReLU": ({"leak": 0.0, "k": 1.0}, lambda u, leak, k: np.where(u >= 0, k, leak), lambda leak, k: (0.0,)),
    "FakeNumericalGradient": ({"alpha": 0.3}, _reciprocal, lambda alpha: ()),
    "LogTailedReLU": ({"alpha": 0.0}, _log_tail, lambda alpha: (0.0,)),
    "StraightThrough": ({}, np.ones_like, tuple),
}


def derivative(name: str, **arguments: float) -> Derivative:
    """A surrogate of the library by name, its other arguments at their defaults."""
    defaults, formula, jumps = _BY_NAME[name]
    full = {**defaults, **arguments}
    return Derivative(name, full, lambda u: formula(u, **full), jumps(**full))


#: Each surrogate at its defaults.
SURROGATES: Mapping[str, Derivative] = {name: derivative(name) for name in _BY_NAME}
#: Each once more with other arguments, where it has some.
OTHER_ARGUMENTS: Mapping[str, Derivative] = {
    "ATan": derivative("ATan", alpha=3.5),
    "Sigmoid": derivative("Sigmoid", alpha=0.75),
    "FastSigmoid": derivative("FastSigmoid", slope=0.5),
    "SuperSpike": derivative("SuperSpike", alpha=4.0),
    "PiecewiseQuadratic": derivative("PiecewiseQuadratic", alpha=0.5),
    "PiecewiseExp": derivative("PiecewiseExp", alpha=2.5),
    "SoftSign": derivative("SoftSign", alpha=0.75),
    "Erf": derivative("Erf", alpha=0.875),
    "Rectangular": derivative("Rectangular", alpha=0.5),
    "Triangular": derivative("Triangular", gamma=1.5, width=2.0),
    "PiecewiseLeakyReLU": derivative("PiecewiseLeakyReLU", w=0.5, c=-0.25),
    "NonzeroSignLogAbs": derivative("NonzeroSignLogAbs", alpha=5.0),
    "SquarewaveFourier": derivative("SquarewaveFourier", n=5, period=3.0),
    "S2NN": derivative("S2NN", alpha=2.0, beta=0.25),
    "QPseudoSpike": derivative("QPseudoSpike", alpha=3.0),
    "LeakyKReLU": derivative("LeakyKReLU", leak=0.125, k=2.0),
    "FakeNumericalGradient": derivative("FakeNumericalGradient", alpha=2.0),
    "LogTailedReLU": derivative("LogTailedReLU", alpha=0.25),
}
