"""Batch normalisation of ``[T, B, C, ...]`` over all but C, in NumPy, and its adjoint by hand."""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Norm(NamedTuple):
    """A layer as it is: ``y = (x - mean) / sqrt(variance + eps) * weight + bias``, ``[C]`` each."""

    weight: Array
    bias: Array
    eps: float

    def inverse(self, y: Array, scale: float, shift: float) -> Tuple[Norm, Array]:
        """The layer and the input ``scale * y + shift`` that it normalises to ``y``."""
        over = _over(y)
        norm = Norm(np.sqrt(y.var(over) + self.eps / scale**2), y.mean(over), self.eps)
        return norm, y * scale + shift


class Passed(NamedTuple):
    """A forward pass in training."""

    norm: Norm
    #: Input less mean, over the standard deviation.
    hat: Array
    rstd: Array
    mean: Array
    #: The unbiased one, which running statistics follow.
    variance: Array


def forward(norm: Norm, x: Array) -> Passed:
    """Mean, variance and what is normalised by them."""
    over = _over(x)
    mean, variance = x.mean(over), x.var(over)
    rstd = 1.0 / np.sqrt(variance + norm.eps)
    return Passed(norm, (x - _wide(mean, x)) * _wide(rstd, x), rstd, mean, x.var(over, ddof=1))


def back(k: Passed, g: Array) -> Tuple[Array, Array, Array]:
    """Gradients of input, weight and bias for the cotangent of y; mean and variance are functions of the input."""
    over = _over(g)
    bias, weight = g.sum(over), (g * k.hat).sum(over)
    n = g.size / len(bias)
    inner = g - _wide(bias / n, g) - k.hat * _wide(weight / n, g)
    return inner * _wide(k.norm.weight * k.rstd, g), weight, bias


def back_given(weight: Array, rstd: Array, g: Array) -> Array:
    """The gradient of the input where mean and variance are given."""
    return g * _wide(weight * rstd, g)


def _over(x: Array) -> Tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != 2)


def _wide(value: Array, x: Array) -> Array:
    return value.reshape([-1 if d == 2 else 1 for d in range(x.ndim)])
