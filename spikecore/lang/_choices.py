"""``spike`` and ``select``, whose derivatives are not those of their values.

Each is an ``autograd.Function`` in three forms (as are those of :mod:`spikecore.lang._exact`):

- ``_X`` for reverse mode alone: torch looks up nothing, and values take the quick operations of
  :mod:`spikecore.lang._plain`.
- ``_TransformedX`` in the form that torch.func and torch.compile take, for which torch reads the signature of
  ``forward`` on every call.
- ``_ForwardX`` with the tangent, too. torch.compile takes no ``Function`` that has one.

While ``torch.jit.trace`` records, they are plain operations (:mod:`spikecore.lang.recorded`): a saved trace holds no
``Function``.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.lang import recorded
from spikecore.lang._plain import ZERO, choice, is_chosen, is_few, is_jit_tracing, is_plain, step, wants_tangents


class _Spike(torch.autograd.Function):
    """Heaviside step with a given derivative.

    The values of the derivative's parameters, which have no gradient, are one argument: before it calls ``forward``,
    torch.compile compares the number of arguments with that of the signature.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, strict: bool, derivative: Callable[..., Any], values: Tuple[Tensor, ...]
    ) -> Tensor:
        ctx.derivative = derivative
        ctx.save_for_backward(u, *values)
        ctx.set_materialize_grads(False)
        return step(u, strict)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        if grad is None:  # an absent cotangent is not 0, which an infinite derivative would make NaN
            return None, None, None, None
        u, *values = ctx.saved_tensors
        return grad * ctx.derivative(u, *values), None, None, None


class _TransformedSpike(_Spike):
    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, strict: bool, derivative: Callable[..., Any], values: Tuple[Tensor, ...]) -> Tensor:  # type: ignore[override]  # this form has no ctx
        return (u > 0).to(u.dtype) if strict else (u >= 0).to(u.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        u, _, ctx.derivative, values = inputs
        ctx.save_for_backward(u, *values)
        ctx.set_materialize_grads(False)


class _ForwardSpike(_TransformedSpike):
    # values are separate arguments, since torch's vmap of a tangent finds no tensors in a tuple; nothing compiles this
    @staticmethod
    def forward(u: Tensor, strict: bool, derivative: Callable[..., Any], *values: Tensor) -> Tensor:  # type: ignore[override]  # this form has no ctx
        return _TransformedSpike.forward(u, strict, derivative, values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        u, strict, derivative, *values = inputs
        _TransformedSpike.setup_context(ctx, (u, strict, derivative, values), output)
        ctx.save_for_forward(u, *values)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
        return (_Spike.backward(ctx, grad)[0], *[None] * (len(ctx.needs_input_grad) - 1))

    @staticmethod
    def jvp(ctx: Any, tangent: Optional[Tensor], *_: Any) -> Tensor:
        u, *values = ctx.saved_tensors
        if tangent is None:  # only a parameter of the derivative moves
            return torch.zeros_like(u)
        result: Tensor = tangent * ctx.derivative(u, *values)
        return result


class _Select(torch.autograd.Function):
    """Exact choice by a 0/1 spike, with the derivative of the arithmetic form."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(z, a, b)
        ctx.set_materialize_grads(False)
        return choice(z, a, b)

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor]) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        if grad is None:
            return None, None, None
        return _gradients(ctx.needs_input_grad, grad, *ctx.saved_tensors)


def _gradients(
    wanted: Sequence[bool], grad: Tensor, z: Tensor, a: Tensor, b: Tensor, chosen: Optional[Tensor] = None
) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    """Gradients of a choice by ``z``; ``chosen``: the truth values ``z != 0``, if forward saved them."""
    to_z, to_a, to_b = wanted
    (zero,) = ZERO(grad)
    choose: Any = torch.where
    if chosen is None or torch.is_grad_enabled():
        # a choice by the spike again, so that the second derivative is that of the arithmetic form, too
        chosen, choose = z, select
    return (
        grad * (a - b) if to_z else None,
        choose(chosen, grad, zero) if to_a else None,
        choose(chosen, zero, grad) if to_b else None,
    )


class _FewSelect(_Select):
    """``_Select`` for few numbers on a CPU: it saves the truth values, which are small and slow to compute again."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        chosen = is_chosen(z)
        ctx.save_for_backward(z, a, b, chosen)
        ctx.set_materialize_grads(False)
        return torch.where(chosen, a, b)


class _TransformedSelect(_Select):
    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]  # this form has no ctx
        return torch.where(z != 0, a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)


class _ForwardSelect(_TransformedSelect):
    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
        _TransformedSelect.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, of_z: Optional[Tensor], of_a: Optional[Tensor], of_b: Optional[Tensor]) -> Tensor:
        z, a, b = ctx.saved_tensors
        zero = torch.zeros_like(z)
        chosen = select(z, zero if of_a is None else of_a, zero if of_b is None else of_b)
        # an absent tangent is not one of 0, which an infinite difference would make NaN
        return chosen if of_z is None else chosen + of_z * (a - b)


def spike(u: Tensor, strict: bool, derivative: Callable[..., Any], *values: Tensor) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``; its derivative is the function given."""
    result: Tensor
    if not is_plain(u):
        if is_jit_tracing():
            result = recorded.spike(u, strict, derivative, *values)
        elif wants_tangents():
            result = _ForwardSpike.apply(u, strict, derivative, *values)
        else:
            result = _TransformedSpike.apply(u, strict, derivative, values)
    elif torch.is_grad_enabled() and u.requires_grad:
        result = _Spike.apply(u, strict, derivative, values)
    else:
        result = step(u, strict)
    return result


def select(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``; differentiated as ``z*a + (1-z)*b``."""
    result: Tensor
    if not is_plain(z):
        if is_jit_tracing():
            return recorded.select(z, a, b)
        result = (_ForwardSelect if wants_tangents() else _TransformedSelect).apply(*torch.broadcast_tensors(z, a, b))
    elif torch.is_grad_enabled() and (z.requires_grad or a.requires_grad or b.requires_grad):
        # expanding first leaves the summing over broadcast dimensions to autograd
        z, a, b = _broadcast(z, a, b)
        if not is_few(z):
            result = _Select.apply(z, a, b)
        elif z.requires_grad:
            result = _FewSelect.apply(z, a, b)
        else:  # torch's own derivative is the right one
            result = torch.where(is_chosen(z), a, b)
    else:
        result = choice(z, a, b)
    return result


def _broadcast(z: Tensor, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    # a number needs no gradient, and torch broadcasts it
    if b.shape == z.shape and (a.shape == z.shape or (not a.requires_grad and not a.shape)):
        return z, a, b
    z, a, b = torch.broadcast_tensors(z, a, b)
    return z, a, b
