"""The surrogate derivatives in NumPy, from the papers and the peers, each with the points where it jumps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Derivative(NamedTuple):
    """A surrogate with fixed parameters: its name and arguments in ``sc.surrogate``, its derivative, its jumps."""

    name: str
    arguments: Mapping[str, float]
    of: Callable[[Array], Array]
    #: Discontinuities of the derivative, other than in rounding.
    jumps: Tuple[float, ...] = ()
    #: The library's class, where it is none of ``sc.surrogate``.
    library: Any = None

    def __call__(self, u: Array) -> Array:
        """The derivative at ``u``, potential minus threshold."""
        with np.errstate(all="ignore"):
            value: Array = np.asarray(self.of(np.asarray(u, float)), float) * np.ones_like(u, float)
        return value

    def distances(self, u: Array) -> List[Array]:
        """Distance of ``u`` from each jump."""
        return [u - jump for jump in self.jumps]


@dataclass(frozen=True)
class Arctan:
    """ATan whose ``alpha`` a neuron may replace by another number, or by a value that it computes."""

    alpha: Any = 2.0

    def __call__(self, u: Array) -> Array:
        """The derivative at ``u``, potential minus threshold."""
        alpha = getattr(self.alpha, "array", self.alpha)
        return np.asarray(alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2))

    def distances(self, u: Array) -> List[Array]:
        """It has no jumps."""
        return []


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


def _normal(u: Array, mean: float, deviation: float) -> Any:
    return np.exp(-((u - mean) ** 2) / (2 * deviation**2)) / math.sqrt(2 * math.pi * deviation**2)


def _nowhere(**arguments: float) -> Tuple[float, ...]:
    return ()


class _Row(NamedTuple):
    """A surrogate: its defaults, other arguments to try, its derivative and where that jumps, both of the arguments."""

    defaults: Mapping[str, float]
    others: Mapping[str, float]
    formula: Callable[..., Any]
    jumps: Callable[..., Tuple[float, ...]] = _nowhere


_BY_NAME: Dict[str, _Row] = {
    "ATan": _Row({"alpha": 2.0}, {"alpha": 3.5}, lambda u, alpha: alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2)),
    "Sigmoid": _Row({"alpha": 4.0}, {"alpha": 0.75}, _bell),
    "FastSigmoid": _Row({"slope": 25.0}, {"slope": 0.5}, lambda u, slope: 1 / (1 + slope * np.abs(u)) ** 2),
    "Super": _Row({"slope": 100.0}, {"slope": 3.0}, lambda u, slope: (1 + slope * np.abs(u)) ** -2.0),
    "MultiGaussian": _Row(
        {"sigma": 0.5, "h": 0.15, "s": 6.0, "gamma": 0.5},
        {"sigma": 0.8, "h": 0.3, "s": 3.0, "gamma": 1.0},
        lambda u, sigma, h, s, gamma: (
            gamma * ((1 + h) * _normal(u, 0, sigma) - h * sum(_normal(u, m, s * sigma) for m in (sigma, -sigma)))
        ),
    ),
    "SuperSpike": _Row({"alpha": 1.0}, {"alpha": 4.0}, lambda u, alpha: alpha / (1 + np.abs(u)) ** 2),
    "PiecewiseQuadratic": _Row(
        {"alpha": 1.0}, {"alpha": 0.5}, lambda u, alpha: np.maximum(0.0, alpha - alpha * alpha * np.abs(u))
    ),
    "PiecewiseExp": _Row({"alpha": 1.0}, {"alpha": 2.5}, lambda u, alpha: alpha / 2 * np.exp(-alpha * np.abs(u))),
    "SoftSign": _Row({"alpha": 2.0}, {"alpha": 0.75}, lambda u, alpha: 1 / (2 * alpha * (1 / alpha + np.abs(u)) ** 2)),
    "Erf": _Row(
        {"alpha": 2.0}, {"alpha": 0.875}, lambda u, alpha: alpha / math.sqrt(math.pi) * np.exp(-((alpha * u) ** 2))
    ),
    "Rectangular": _Row(
        {"alpha": 1.0},
        {"alpha": 0.5},
        lambda u, alpha: np.where(np.abs(u) < 1 / (2 * alpha), alpha, 0.0),
        lambda alpha: (-0.5 / alpha, 0.5 / alpha),
    ),
    "Triangular": _Row(
        {"gamma": 0.3, "width": 1.0},
        {"gamma": 1.5, "width": 2.0},
        lambda u, gamma, width: gamma * np.maximum(0.0, 1 - np.abs(u) / width),
    ),
    "PiecewiseLeakyReLU": _Row(
        {"w": 1.0, "c": 0.01},
        {"w": 0.5, "c": -0.25},
        lambda u, w, c: np.where(np.abs(u) < w, 1 / (2 * w), c),
        lambda w, c: (-w, w),
    ),
    "NonzeroSignLogAbs": _Row({"alpha": 1.0}, {"alpha": 5.0}, lambda u, alpha: 1 / (1 / alpha + np.abs(u))),
    "SquarewaveFourier": _Row({"n": 2, "period": 8.0}, {"n": 5, "period": 3.0}, _fourier),
    "S2NN": _Row(
        {"alpha": 4.0, "beta": 1.0},
        {"alpha": 2.0, "beta": 0.25},
        lambda u, alpha, beta: np.where(u < 0, _bell(u, alpha), beta / (np.abs(u) + 1)),
        lambda alpha, beta: (0.0,),
    ),
    "QPseudoSpike": _Row({"alpha": 2.0}, {"alpha": 3.0}, lambda u, alpha: (1 + 2 / (alpha - 1) * np.abs(u)) ** -alpha),
    "LeakyKReLU": _Row(
        {"leak": 0.0, "k": 1.0},
        {"leak": 0.125, "k": 2.0},
        lambda u, leak, k: np.where(u >= 0, k, leak),
        lambda leak, k: (0.0,),
    ),
    "FakeNumericalGradient": _Row({"alpha": 0.3}, {"alpha": 2.0}, _reciprocal),
    "LogTailedReLU": _Row({"alpha": 0.0}, {"alpha": 0.25}, _log_tail, lambda alpha: (0.0,)),
    "StraightThrough": _Row({}, {}, np.ones_like),
}


def derivative(name: str, **arguments: float) -> Derivative:
    """A surrogate of the library by name, its other arguments at their defaults."""
    row = _BY_NAME[name]
    full = {**row.defaults, **arguments}
    return Derivative(name, full, lambda u: row.formula(u, **full), row.jumps(**full))


#: Each surrogate at its defaults.
SURROGATES: Mapping[str, Derivative] = {name: derivative(name) for name in _BY_NAME}
#: Each once more with other arguments, where it has some.
OTHER_ARGUMENTS: Mapping[str, Derivative] = {
    name: derivative(name, **row.others) for name, row in _BY_NAME.items() if row.others
}
