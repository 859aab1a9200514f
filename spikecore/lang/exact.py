"""Operations that torch computes almost as the language has them.

What torch's own functions leave open, or round in another way, is settled here:

- ``minimum(a, b)`` is ``a`` where ``a < b`` or ``a`` is NaN, else ``b``; ``maximum`` is the same with ``>``, and
  ``clamp(x, low, high)`` is ``minimum(maximum(x, low), high)``. Of two zeros torch gives one or the other, depending on
  the place of a number in a vector.
- The derivative of ``floor``, ``round`` and ``sign`` is 0 and ends a path, as ``detach`` does. Torch goes on with a
  cotangent of 0, which an infinite derivative further down makes NaN.
- ``sqrt`` is rounded correctly. Torch's is not on every CPU: those of Intel's vector library are off by one unit in the
  last place for some values.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from spikecore.lang.plain import is_plain


class _Extremum(torch.autograd.Function):
    """``minimum``, or ``maximum`` if ``largest``, of tensors of one shape; half of the gradient to each at a tie."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, largest: bool) -> Tensor:
        return _extremum(a, b, largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.largest = inputs
        ctx.save_for_backward(a, b)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor], None]:
        if grad is None:  # no cotangent is not one of 0, which an infinite derivative would make NaN
            return None, None, None
        a, b = ctx.saved_tensors
        shared = torch.where(a == b, grad / 2.0, grad)
        below, above = a < b, a > b
        if not ctx.largest:
            below, above = above, below
        return shared.masked_fill(below, 0.0), shared.masked_fill(above, 0.0), None


class _Clamp(torch.autograd.Function):
    """``minimum(maximum(x, low), high)`` of tensors of one shape; at a bound the gradient is that of ``x``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return _extremum(_extremum(x, low, True), high, False)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        if grad is None:
            return None, None, None
        x, low, high = ctx.saved_tensors
        zero = torch.zeros_like(grad)
        return (
            torch.where((x >= low) & (x <= high), grad, zero),
            torch.where((low < high) & (x < low), grad, zero),
            torch.where((x > high) | (high < low), grad, zero),
        )


def _extremum(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    return torch.where((a > b if largest else a < b) | (a != a), a, b)


def _is_followed(*tensors: Tensor) -> bool:
    """Whether the derivative of what is computed from these tensors may be asked for."""
    return (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)) or not is_plain(tensors[0])


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller one; ``b`` at a tie. NaN if one is NaN."""
    return _of_two(a, b, False)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger one; ``b`` at a tie. NaN if one is NaN."""
    return _of_two(a, b, True)


def _of_two(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    if not _is_followed(a, b):
        return _extremum(a, b, largest)
    result: Tensor = _Extremum.apply(*torch.broadcast_tensors(a, b), largest)
    return result


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``minimum(maximum(x, low), high)``."""
    if not _is_followed(x, low, high):
        return _extremum(_extremum(x, low, True), high, False)
    # torch.clamp itself has no derivative for an x that has fewer numbers than its bounds
    result: Tensor = _Clamp.apply(*torch.broadcast_tensors(x, low, high))
    return result


def floor(x: Tensor) -> Tensor:
    """Largest whole number not above ``x``."""
    return torch.floor(x.detach())


def round(x: Tensor) -> Tensor:
    """Nearest whole number, ties to even."""
    return torch.round(x.detach())


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; 0 for NaN."""
    return torch.sign(x.detach())


def sqrt(x: Tensor) -> Tensor:
    """Square root, rounded correctly: float32 by way of float64, float64 on a CPU with one step of Newton's."""
    if x.dtype == torch.float32:
        return x.double().sqrt().to(x.dtype)
    y = torch.sqrt(x)
    return y + _error_of_sqrt(x.detach(), y.detach()) if x.dtype == torch.float64 and x.device.type == "cpu" else y


#: Times this number, a float64 splits into two halves whose products are exact (Dekker, 1971).
_SPLIT = 2.0**27 + 1.0
#: Below the first, ``x`` is scaled up by the second, whose root is the third, so that no part of a product is lost.
_SMALL, _UP, _ROOT_UP = 2.0**-900, 2.0**200, 2.0**100


def _error_of_sqrt(x: Tensor, y: Tensor) -> Tensor:
    """What must be added to ``y``, a float64 root of ``x`` to one unit in the last place, to have the nearest one."""
    small = x < _SMALL
    root, square = torch.where(small, y * _ROOT_UP, y), torch.where(small, x * _UP, x)
    turned = root * _SPLIT
    high = turned - (turned - root)
    low = root - high
    product = root * root
    rest = (square - product) - (((high * high - product) + 2.0 * high * low) + low * low)
    error = rest / (2.0 * root)
    # 0, infinity and NaN have none; no error is -0, so that the root of -0 is -0
    return torch.where(torch.isfinite(error), torch.where(small, error / _ROOT_UP, error), -torch.zeros_like(y))
