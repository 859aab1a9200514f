"""Operations whose derivatives are written into the forward pass, for PopTorch, which records that pass alone.

The backward pass is grown from the forward pass by each operation's own rule: the backward of an ``autograd.Function``
never runs on an IPU. So a derivative that is not an operation's own is written into the forward pass::

    value.detach() + (x - x.detach()) * derivative.detach()

has the value ``value`` and the derivative ``derivative``. Rules:

- Forward values are those of the reference, bit by bit, infinities included: what is added is 0, whatever a
  derivative is.
- Where a value is infinite, so is its difference with itself: there the derivative is 0.
- The second derivative of a spike, and that of a choice by one, is 0.
- Only operations with a handler in PopTorch 3.4; of those only what PopART differentiates as torch does. It gives the
  whole gradient to both arguments of ``maximum`` at a tie, and ``clamp`` takes numbers only.
"""

from __future__ import annotations

from typing import Callable, Dict

import torch
from torch import Tensor

from spikecore.lang.eager import number


def _finite(x: Tensor) -> Tensor:
    """``x``, and 0 in place of infinities and NaN, whose differences with themselves are not 0."""
    return torch.where(torch.abs(x) <= number(torch.finfo(x.dtype).max, x), x, number(0.0, x))


def _spike(u: Tensor, strict: bool, derivative: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``; its derivative is the given one."""
    hard = (u > 0 if strict else u >= 0).to(u.dtype)
    finite = _finite(u)
    return hard.detach() + (finite - finite.detach()) * _finite(derivative(finite.detach(), *values)).detach()


def _select(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``; differentiated as ``z*a + (1-z)*b``."""
    to_z = z * _finite(b - a).detach()
    return torch.where(z != 0, a, b) - (to_z - to_z.detach())


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger of two; half of the gradient to each where they are equal."""
    # where they are equal the choice is b, and half of its gradient moves to a
    return torch.where(torch.logical_or(a > b, a != a), a, b) - _half_of_a_tie(a, b)


def _minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of two; half of the gradient to each where they are equal."""
    return torch.where(torch.logical_or(a < b, a != a), a, b) - _half_of_a_tie(a, b)


def _half_of_a_tie(a: Tensor, b: Tensor) -> Tensor:
    """0, whose gradient is half of one to ``b``, and against it to ``a``, where they are equal."""
    apart = b - a + number(0.0, a)  # never -0, so that zeros keep their sign
    return torch.where(apart == 0, apart, number(0.0, a)) * number(0.5, a)


def _softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``; the tie of ``maximum`` at 0 gives the derivative 1/2, and that of ``abs`` is 0 there."""
    return _maximum(x, number(0.0, x)) + torch.log1p(torch.exp(-torch.abs(x)))


def _remainder(x: Tensor, divisor: Tensor) -> Tensor:
    """``x - divisor * floor(x / divisor)``."""
    value = torch.remainder(x, divisor).detach()
    times = torch.round((x - value) / divisor).detach()
    moved = _finite(x - times * divisor)
    return value - (moved.detach() - moved)


def _clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``min(max(x, low), high)``; at a bound the gradient is that of ``x``."""
    raised = torch.where(torch.logical_or(x > low, x != x), x, low)
    value = torch.where(torch.logical_or(raised < high, raised != raised), raised, high).detach()
    # whose gradient it is
    moved = torch.where(torch.logical_and(x >= low, x <= high), x, value)
    moved = torch.where(torch.logical_and(low < high, x < low), low, moved)
    moved = torch.where(torch.logical_or(x > high, high < low), high, moved)
    moved = _finite(moved)
    return value - (moved.detach() - moved)  # the difference is +0, which leaves zeros their sign


#: The operations whose derivative is written into the forward pass.
RECORDED: Dict[str, Callable[..., Tensor]] = {
    "spike": _spike,
    "select": _select,
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp": _clamp,
    "remainder": _remainder,
    "softplus": _softplus,
}
