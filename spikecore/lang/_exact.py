"""Operations that torch computes almost as the language has them.

What torch's own functions leave open, or round in another way, is settled here:

- ``minimum(a, b)`` is ``a`` where ``a < b`` or ``a`` is NaN, else ``b``; ``maximum`` is the same with ``>``, and
  ``clamp(x, low, high)`` is ``minimum(maximum(x, low), high)``. Of two zeros torch gives one or the other, depending on
  the place of a number in a vector.
- The derivative of ``floor``, ``round`` and ``sign`` is 0 and ends a path, as ``detach`` does. Torch goes on with a
  cotangent of 0, which an infinite derivative further down makes NaN.
- ``softplus`` has no threshold above which it is its argument; torch's has one, 20, where float64 is not done.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.lang import recorded
from spikecore.lang._plain import is_jit_tracing, is_plain, number, wants_tangents


class _Extremum(torch.autograd.Function):
    """``minimum``, or ``maximum`` if ``largest``, of tensors of one shape; half of the gradient to each at a tie.

    Of its three forms see :mod:`spikecore.lang._choices`.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, largest: bool) -> Tensor:
        ctx.largest = largest
        ctx.save_for_backward(a, b)
        ctx.set_materialize_grads(False)
        return _extremum(a, b, largest)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor], None]:
        if grad is None:  # an absent cotangent is not 0, which an infinite derivative would make NaN
            return None, None, None
        return (*_parts_of_extremum(ctx, grad, grad), None)


class _TransformedExtremum(_Extremum):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, largest: bool) -> Tensor:  # type: ignore[override]  # this form has no ctx
        return _extremum(a, b, largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.largest = inputs
        ctx.save_for_backward(a, b)
        ctx.set_materialize_grads(False)


class _ForwardExtremum(_TransformedExtremum):
    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        _TransformedExtremum.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, of_a: Optional[Tensor], of_b: Optional[Tensor], _: None) -> Tensor:
        return _sum(_parts_of_extremum(ctx, of_a, of_b))


def _parts_of_extremum(
    ctx: Any, of_a: Optional[Tensor], of_b: Optional[Tensor]
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """What the derivative leaves of the cotangents that go to each argument, or of the tangents that come from it."""
    a, b = ctx.saved_tensors
    tie, below, above = a == b, a < b, a > b
    if not ctx.largest:
        below, above = above, below

    def part(given: Optional[Tensor], cut: Tensor) -> Optional[Tensor]:
        return None if given is None else torch.where(tie, given / 2.0, given).masked_fill(cut, 0.0)

    return part(of_a, below), part(of_b, above)


class _Clamp(torch.autograd.Function):
    """``minimum(maximum(x, low), high)`` of tensors of one shape; at a bound the gradient is that of ``x``.

    Of its three forms see :mod:`spikecore.lang._choices`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ctx.save_for_backward(x, low, high)
        ctx.set_materialize_grads(False)
        return _clamped(x, low, high)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        if grad is None:
            return None, None, None
        return _parts_of_clamp(ctx, grad, grad, grad)


class _TransformedClamp(_Clamp):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: Tensor, high: Tensor) -> Tensor:  # type: ignore[override]  # this form has no ctx
        return _clamped(x, low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)


class _ForwardClamp(_TransformedClamp):
    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        _TransformedClamp.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Optional[Tensor]) -> Tensor:
        return _sum(_parts_of_clamp(ctx, *tangents))


def _parts_of_clamp(ctx: Any, *given: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    """As :func:`_parts_of_extremum`."""
    x, low, high = ctx.saved_tensors
    chosen = ((x >= low) & (x <= high), (low < high) & (x < low), (x > high) | (high < low))
    return tuple([None if t is None else torch.where(mask, t, torch.zeros_like(t)) for mask, t in zip(chosen, given)])


def _sum(parts: Sequence[Optional[Tensor]]) -> Tensor:
    first, *others = [part for part in parts if part is not None]  # torch asks for no tangent where none came
    for other in others:
        first = first + other
    return first


def _extremum(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    return torch.where((a > b if largest else a < b) | (a != a), a, b)


def _clamped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return _extremum(_extremum(x, low, True), high, False)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller one; ``b`` at a tie. NaN if one is NaN."""
    return _of_two(a, b, False)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger one; ``b`` at a tie. NaN if one is NaN."""
    return _of_two(a, b, True)


def _of_two(a: Tensor, b: Tensor, largest: bool) -> Tensor:
    result: Tensor
    if not is_plain(a):
        if is_jit_tracing():
            return (recorded.maximum if largest else recorded.minimum)(a, b)
        form = _ForwardExtremum if wants_tangents() else _TransformedExtremum
        result = form.apply(*torch.broadcast_tensors(a, b), largest)
    elif torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        result = _Extremum.apply(*torch.broadcast_tensors(a, b), largest)
    else:
        result = _extremum(a, b, largest)
    return result


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``minimum(maximum(x, low), high)``."""
    result: Tensor
    if not is_plain(x):
        if is_jit_tracing():
            return recorded.clamp(x, low, high)
        result = (_ForwardClamp if wants_tangents() else _TransformedClamp).apply(
            *torch.broadcast_tensors(x, low, high)
        )
    elif torch.is_grad_enabled() and (x.requires_grad or low.requires_grad or high.requires_grad):
        # torch.clamp itself has no derivative for an x that has fewer numbers than its bounds
        result = _Clamp.apply(*torch.broadcast_tensors(x, low, high))
    else:
        result = _clamped(x, low, high)
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


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, as ``maximum(x, 0) + log1p(exp(-abs(x)))``; its derivative is ``sigmoid(x)``."""
    return torch.logaddexp(x, number(0.0, x))
