"""The operations of tensors that torch has not, or not as the language has them: values and derivatives.

What torch's own functions leave open, or round in another way, is settled here:

- ``spike`` and ``select`` have derivatives that are not those of their values.
- ``minimum(a, b)`` is ``a`` where ``a < b`` or ``a`` is NaN, else ``b``; ``maximum`` is the same with ``>``, and
  ``clamp(x, low, high)`` is ``minimum(maximum(x, low), high)``. Of two zeros torch gives one or the other, depending on
  the place of a number in a vector.
- The derivative of ``floor``, ``round`` and ``sign`` is 0 and ends a path, as ``detach`` does. Torch goes on with a
  cotangent of 0, which an infinite derivative further down makes NaN.
- The derivative of ``remainder`` by the divisor is a difference divided, since the floor of a rounded quotient may
  be another whole number.
- ``softplus`` has no threshold above which it is its argument; torch's has one, 20, where float64 is not done.
- ``sqrt`` is rounded correctly, whatever torch's own does on a device.

Each ``autograd.Function`` has three forms:

- One for reverse mode alone: torch looks up nothing, and values take the quick operations of
  :mod:`spikecore.lang._plain`.
- One that torch.func and torch.compile take, for which torch reads the signature of ``forward`` on every call.
- One with the tangent, too. torch.compile takes no ``Function`` that has one.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from spikecore.context import is_plain, wants_tangents
from spikecore.lang._plain import ZERO, choice, is_chosen, is_few, number, step

# -- spike and select


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


def spike(u: Tensor, strict: bool, derivative: Callable[..., Any], *values: Tensor) -> Tensor:
    """1 where ``u >= 0`` (``u > 0`` if strict), else 0, in the dtype of ``u``; its derivative is the function given."""
    result: Tensor
    if not is_plain(u):
        if wants_tangents():
            result = _ForwardSpike.apply(u, strict, derivative, *values)
        else:
            result = _TransformedSpike.apply(u, strict, derivative, values)
    elif torch.is_grad_enabled() and u.requires_grad:
        result = _Spike.apply(u, strict, derivative, values)
    else:
        result = step(u, strict)
    return result


# -- the forms of an operation of tensors

#: Parts of the cotangents that go to each argument, or of the tangents that come from it; None for None:
#: ``parts(tensors, tangents)``.
Parts = Callable[[Sequence[Tensor], Sequence[Optional[Tensor]]], Sequence[Optional[Tensor]]]


class _Forms(NamedTuple):
    """An operation for reverse mode alone, for torch.func and torch.compile, and in forward mode."""

    reverse: Any
    transformed: Any
    forward: Any

    def followed(self, *tensors: Tensor) -> Tensor:
        """Result of the operation under a tracer beside reverse mode."""
        form = self.forward if wants_tangents() else self.transformed
        return form.apply(*torch.broadcast_tensors(*tensors))  # type: ignore[no-any-return]  # a tensor


def _forms(name: str, quick: Callable[..., Tensor], value: Callable[..., Tensor], parts: Parts) -> _Forms:
    """The forms of an operation: ``quick`` computes it for plain tensors, ``value`` for any. ``name``: what profilers
    and ``grad_fn`` show, as ``SelectBackward``.
    """

    def note(ctx: Any, tensors: Tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*tensors)
        # an absent cotangent is not 0, which an infinite derivative would make NaN
        ctx.set_materialize_grads(False)

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> Tensor:
            note(ctx, tensors)
            return quick(*tensors)

        @staticmethod
        def backward(ctx: Any, grad: Optional[Tensor]) -> Any:
            return tuple(parts(ctx.saved_tensors, [grad if wants else None for wants in ctx.needs_input_grad]))

    class Transformed(Reverse):
        generate_vmap_rule = True
        forward = staticmethod(value)

        @staticmethod
        def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
            note(ctx, inputs)

    class Forward(Transformed):
        @staticmethod
        def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tensor) -> None:
            note(ctx, inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx: Any, *tangents: Optional[Tensor]) -> Tensor:
            # torch asks for no tangent where none came
            first, *others = [part for part in parts(ctx.saved_tensors, tangents) if part is not None]
            for other in others:
                first = first + other
            return first

    # torch takes the name of the backward node from the class when it is made
    forms = {"": Reverse, "Transformed": Transformed, "Forward": Forward}
    named = (type(f"{prefix}{name}", (form,), {"__module__": __name__}) for prefix, form in forms.items())
    reverse, transformed, forward = named
    return _Forms(reverse, transformed, forward)


def select(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where ``z`` is not 0, else ``b``; differentiated as ``z*a + (1-z)*b``."""
    if not is_plain(z):
        return _SELECT.followed(z, a, b)
    if not (torch.is_grad_enabled() and (z.requires_grad or a.requires_grad or b.requires_grad)):
        return choice(z, a, b)
    # expanding first leaves the summing over broadcast dimensions to autograd; a number needs no gradient
    if b.shape != z.shape or (a.shape != z.shape and (a.requires_grad or a.shape)):
        z, a, b = torch.broadcast_tensors(z, a, b)
    if is_few(z) and not z.requires_grad:  # torch's own derivative is the right one
        return torch.where(is_chosen(z), a, b)
    return _SELECT.reverse.apply(z, a, b)  # type: ignore[no-any-return]  # a tensor


def _chosen(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(z != 0, a, b)


def _parts_of_select(
    tensors: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]
) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
    (z, a, b), (to_z, to_a, to_b) = tensors, tangents
    (zero,) = ZERO(z)
    # a choice by the spike again, so that the second derivative is that of the arithmetic form, too
    return (
        None if to_z is None else to_z * (a - b),
        None if to_a is None else select(z, to_a, zero),
        None if to_b is None else select(z, zero, to_b),
    )


# -- minimum, maximum and clamp; floor, round, sign, softplus and detach


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller one; ``b`` at a tie. NaN if one is NaN."""
    return _computed(_MINIMUM, _smaller, a, b)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger one; ``b`` at a tie. NaN if one is NaN."""
    return _computed(_MAXIMUM, _larger, a, b)


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``minimum(maximum(x, low), high)``."""
    # torch.clamp itself has no derivative for an x that has fewer numbers than its bounds
    return _computed(_CLAMP, _clamped, x, low, high)


def _computed(forms: _Forms, value: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    if not is_plain(tensors[0]):
        return forms.followed(*tensors)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return forms.reverse.apply(*torch.broadcast_tensors(*tensors))  # type: ignore[no-any-return]  # a tensor
    return value(*tensors)


def _smaller(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a < b) | (a != a), a, b)


def _larger(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a > b) | (a != a), a, b)


def _clamped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return _smaller(_larger(x, low), high)


def _parts_of_minimum(tensors: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]) -> Sequence[Optional[Tensor]]:
    a, b = tensors
    return _halved_at_a_tie(a, b, (a > b, a < b), tangents)


def _parts_of_maximum(tensors: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]) -> Sequence[Optional[Tensor]]:
    a, b = tensors
    return _halved_at_a_tie(a, b, (a < b, a > b), tangents)


def remainder(x: Tensor, divisor: Tensor) -> Tensor:
    """``x - divisor * floor(x / divisor)``."""
    return _computed(_REMAINDER, _wrapped, x, divisor)


def _wrapped(x: Tensor, divisor: Tensor) -> Tensor:
    return torch.remainder(x, divisor)


def _parts_of_remainder(tensors: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]) -> Sequence[Optional[Tensor]]:
    (x, divisor), (to_x, to_divisor) = tensors, tangents
    times = torch.round((x - torch.remainder(x, divisor)) / divisor)
    return to_x, None if to_divisor is None else -to_divisor * times


def _halved_at_a_tie(
    a: Tensor, b: Tensor, cuts: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]
) -> Sequence[Optional[Tensor]]:
    tie = a == b
    return [t if t is None else torch.where(tie, t / 2.0, t).masked_fill(cut, 0.0) for t, cut in zip(tangents, cuts)]


def _parts_of_clamp(tensors: Sequence[Tensor], tangents: Sequence[Optional[Tensor]]) -> Sequence[Optional[Tensor]]:
    """At a bound the gradient is that of ``x``."""
    x, low, high = tensors
    chosen = ((x >= low) & (x <= high), (low < high) & (x < low), (x > high) | (high < low))
    return [t if t is None else torch.where(mask, t, torch.zeros_like(t)) for mask, t in zip(chosen, tangents)]


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


def detach(x: Tensor) -> Tensor:
    """The value without its graph."""
    return x.detach()


# -- square roots, rounded correctly on every device
#
# - CPU: torch takes Intel's vector library there, whose roots are off by one unit in the last place for some values
#   (for a quarter of all float32 from 0.5 to 1 on a processor with AVX-512). float32 goes through float64.
# - GPUs of NVIDIA's and AMD's: torch's own is correct. It is compiled with the compilers' default, ``-prec-sqrt=true``
#   for one.
# - IPU: the device's. PopTorch compiles the one operation.
# - Every other device, and float64 on a CPU: torch's own, of which up to three units in the last place are corrected in
#   arithmetic of the same dtype. MPS and some GPUs of Intel's have no float64, and neither Metal nor SYCL promises a
#   root that is rounded correctly. What is needed is that ``+ - * /`` are, and that a product is rounded before it is
#   added.

#: Device types whose own root is taken.
_OWN = ("cuda", "ipu")


class _RootNumbers(NamedTuple):
    """Constants for the exact remainder of a root in a dtype."""

    #: Times this number, a number splits into two halves whose products are exact (Dekker, 1971).
    split: float
    #: A number times this one, added to it or subtracted, is rounded to the next one (Rump, Zimmermann, Boldo and
    #: Melquiond, 2009: "Computing predecessor and successor in rounding to nearest").
    beside: float
    #: Below this one, and above its inverse, ``x`` is scaled, so that no part of a product is lost.
    small: float
    #: By how much the root is scaled there; ``x`` is by its square.
    scale: float


_ROOT_NUMBERS = {
    torch.float32: _RootNumbers(2.0**12 + 1.0, 2.0**-24 * (1.0 + 2.0**-23), 2.0**-60, 2.0**50),
    torch.float64: _RootNumbers(2.0**27 + 1.0, 2.0**-53 * (1.0 + 2.0**-52), 2.0**-900, 2.0**100),
}


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    device = x.device.type
    if device == "cpu" and x.dtype == torch.float32:
        # no root of a float32 is so close to the midpoint of two float32 that an error in float64 rounds it wrongly
        return x.double().sqrt().to(x.dtype)
    y = torch.sqrt(x)
    if device in _OWN or x.dtype not in _ROOT_NUMBERS:
        return y
    return y + correction(x.detach(), y.detach())


def correction(x: Tensor, y: Tensor) -> Tensor:
    """Correction of ``y``, a root of ``x`` to three units in the last place, to have the nearest one."""
    by = _ROOT_NUMBERS[x.dtype]
    small, large = x < by.small, x > 1.0 / by.small
    square = _scaled(x, small, large, by.scale * by.scale)
    near = _scaled(y, small, large, by.scale)
    # one step of Newton's leaves less than a unit
    near = near + _remainder(square, near, by.split) / (2.0 * near)
    # The remainder is a whole multiple of the square of a unit, and so is each bound: comparisons are exact. The next
    # number is nearer where near + unit / 2 is below the root: where the remainder is above near * unit + unit^2 / 4.
    left = _remainder(square, near, by.split)
    step = near * by.beside
    above, below = near + step, near - step
    root = torch.where(left <= -(near * (near - below)), below, near)
    root = torch.where(left > near * (above - near), above, root)
    moved = _scaled(root, large, small, by.scale) - y
    # 0, infinity and NaN have none; none is -0, so that the root of -0 is -0
    return torch.where(torch.isfinite(moved), moved, -torch.zeros_like(y))


def _scaled(value: Tensor, up: Tensor, down: Tensor, by: float) -> Tensor:
    return torch.where(up, value * by, torch.where(down, value / by, value))


def _remainder(x: Tensor, y: Tensor, split: float) -> Tensor:
    """``x - y * y``, of which only the last sum is rounded."""
    turned = y * split
    high = turned - (turned - y)
    low = y - high
    product = y * y
    return (x - product) - (((high * high - product) + 2.0 * high * low) + low * low)


_SELECT = _forms("Select", choice, _chosen, _parts_of_select)
_MINIMUM = _forms("Minimum", _smaller, _smaller, _parts_of_minimum)
_MAXIMUM = _forms("Maximum", _larger, _larger, _parts_of_maximum)
_REMAINDER = _forms("Remainder", _wrapped, _wrapped, _parts_of_remainder)
_CLAMP = _forms("Clamp", _clamped, _clamped, _parts_of_clamp)
