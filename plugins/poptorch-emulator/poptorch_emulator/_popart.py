"""Operations that PopART computes or differentiates differently from torch.

| operation            | what differs                                                                                  |
|----------------------|-----------------------------------------------------------------------------------------------|
| maximum, minimum     | where the two are equal, each gets the whole gradient; torch gives each a half                |
| clamp by tensors     | a maximum and a minimum, as above                                                             |
| attention            | a row that is masked as a whole gives NaN, as in torch 2.0.1; 0 in a newer torch              |
| where, masked_fill   | the gradient is multiplied by the condition: infinity gives NaN where nothing was chosen      |
| binary_cross_entropy | ``t log x + (1-t) log(1-x)`` as it stands: NaN at exactly 0 and 1, where torch clamps logs    |
| log_sigmoid          | ``log(sigmoid(x))``: -infinity below -104                                                     |
| embedding_bag        | with a gradient, which torch leaves out where it records for inference                        |
| floor_divide         | ``floor(a / b)``                                                                              |
| trunc, frac          | through int32: refused at 2^31 and above                                                      |
| sqrt of float32      | correctly rounded, through float64, so that it is the same number on every host               |
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Tuple

import torch
from torch import Tensor

from ._errors import py_error

#: The first number that int32 cannot hold.
_TOO_LARGE = 2.0**31


class _WholeGradient(torch.autograd.Function):
    """The larger (smaller) of two; the gradient goes, whole, to each argument that is equal to it."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, choose: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        chosen = choose(a, b)
        ctx.save_for_backward(a, b, chosen)
        return chosen

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, Tensor, None]:
        a, b, chosen = ctx.saved_tensors
        to_a = torch.where(a == chosen, gradient, torch.zeros_like(gradient))
        to_b = torch.where(b == chosen, gradient, torch.zeros_like(gradient))
        return to_a.sum_to_size(a.shape).to(a.dtype), to_b.sum_to_size(b.shape).to(b.dtype), None


class _Where(torch.autograd.Function):
    """``where``; the gradient is multiplied by the condition, and by its negation."""

    @staticmethod
    def forward(ctx: Any, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(condition, a, b)
        return torch.where(condition, a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[None, Tensor, Tensor]:
        condition, a, b = ctx.saved_tensors
        chosen = condition.to(gradient.dtype)
        to_a, to_b = gradient * chosen, gradient * (1 - chosen)
        return None, to_a.sum_to_size(a.shape).to(a.dtype), to_b.sum_to_size(b.shape).to(b.dtype)


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    chosen: Tensor = _Where.apply(condition.bool(), a, b)
    return chosen


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    filled = value if isinstance(value, Tensor) else x.new_tensor(value)
    return _where(mask, filled.to(x.dtype), x)


def _clamp(x: Tensor, low: Optional[Tensor] = None, high: Optional[Tensor] = None) -> Tensor:
    if low is not None:
        x = _WholeGradient.apply(x, low.to(x.dtype), torch.maximum)
    return x if high is None else _WholeGradient.apply(x, high.to(x.dtype), torch.minimum)


def _softmax(x: Tensor, dim: int, dtype: Optional[torch.dtype] = None) -> Tensor:
    return torch.softmax(x, dim, dtype=dtype)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Optional[Tensor] = None, reduction: int = 1) -> Tensor:
    loss = -(target * torch.log(x) + (1 - target) * torch.log(1 - x))
    if weight is not None:
        loss = loss * weight
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, *args: Any, **kwargs: Any) -> Any:
    return torch.ops.aten._embedding_bag(weight, indices.long(), offsets.long(), *args, **kwargs)


def _log_sigmoid(x: Tensor) -> Tuple[Tensor, Tensor]:
    return torch.log(torch.sigmoid(x)), torch.zeros(0)  # torch's operator returns a buffer for its backward, too


def _trunc(x: Tensor) -> Tensor:
    _check_int32(x, "trunc")
    return torch.trunc(x)


def _frac(x: Tensor) -> Tensor:
    _check_int32(x, "frac")
    return torch.frac(x)


def _check_int32(x: Tensor, name: str) -> None:
    if bool((x.detach().abs() >= _TOO_LARGE).any()):
        raise py_error(
            f"aten::{name} of a number of 2^31 or more: PopTorch goes through int32, and gives another number, without "
            "a word. Clamp the argument first"
        )


def _floor_divide(a: Any, b: Any) -> Tensor:
    return torch.floor(torch.true_divide(a, b))


def _sqrt(x: Tensor) -> Tensor:
    return x.double().sqrt().float() if x.dtype == torch.float32 else torch.sqrt(x)


#: Name and overload of an operation -> the function that computes it.
COMPUTED: Mapping[str, Callable[..., Any]] = {
    "maximum.default": lambda a, b: _WholeGradient.apply(a, b, torch.maximum),
    "minimum.default": lambda a, b: _WholeGradient.apply(a, b, torch.minimum),
    "clamp.Tensor": _clamp,
    "clamp_min.Tensor": _clamp,
    "clamp_max.Tensor": lambda x, high: _clamp(x, None, high),
    "_embedding_bag_forward_only.default": _embedding_bag,
    "_embedding_bag.default": _embedding_bag,
    "_safe_softmax.default": _softmax,
    "where.self": _where,
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "binary_cross_entropy.default": _binary_cross_entropy,
    "log_sigmoid_forward.default": _log_sigmoid,
    "floor_divide.default": _floor_divide,
    "floor_divide.Scalar": _floor_divide,
    "trunc.default": _trunc,
    "frac.default": _frac,
    "sqrt.default": _sqrt,
}
