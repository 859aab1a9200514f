"""Computes one recorded operation: with torch, except where PopART computes or differentiates it differently.

| operation            | what differs                                                                                  |
|----------------------|-----------------------------------------------------------------------------------------------|
| maximum, minimum     | where the two are equal, each gets the whole gradient; torch gives each a half. Of two zeros  |
|                      | the second, so that it is the same one on every host                                          |
| clamp by tensors     | a maximum and a minimum, as above                                                             |
| attention            | a row that is masked as a whole gives NaN, as in torch 2.0.1; 0 in a newer torch              |
| where, masked_fill   | the gradient is multiplied by the condition: infinity gives NaN where nothing was chosen      |
| binary_cross_entropy | ``t log x + (1-t) log(1-x)`` as it stands: NaN at exactly 0 and 1, where torch clamps logs    |
| log_sigmoid          | ``log(sigmoid(x))``: -infinity below -104                                                     |
| embedding_bag        | with a gradient, which torch leaves out where it records for inference                        |
| floor_divide         | ``floor(a / b)``                                                                              |
| trunc, frac          | through int32: refused at 2^31 and above                                                      |
| sqrt of float32      | correctly rounded, through float64, so that it is the same number on every host               |
| view                 | of any strides: which strides an operation leaves differs between versions of torch           |
| int32 as an index    | widened for torch, which indexes with int64 only                                              |
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, FrozenSet, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor

from ._errors import py_error
from .arguments import tree_map

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
        zeros = torch.zeros_like(gradient)
        to_a, to_b = (_as(x, torch.where(x == chosen, gradient, zeros)) for x in (a, b))
        return to_a, to_b, None


def _larger(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a > b) | (a != a), a, b)


def _smaller(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a < b) | (a != a), a, b)


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
        return None, _as(a, gradient * chosen), _as(b, gradient * (1 - chosen))


def _as(x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of ``x``, which was broadcast."""
    return gradient.sum_to_size(x.shape).to(x.dtype)


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    chosen: Tensor = _Where.apply(condition.bool(), a, b)
    return chosen


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    filled = value if isinstance(value, Tensor) else x.new_tensor(value)
    return _where(mask, filled.to(x.dtype), x)


def _clamp(x: Tensor, low: Optional[Tensor] = None, high: Optional[Tensor] = None) -> Tensor:
    if low is not None:
        x = _WholeGradient.apply(x, low.to(x.dtype), _larger)
    return x if high is None else _WholeGradient.apply(x, high.to(x.dtype), _smaller)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Optional[Tensor] = None, reduction: int = 1) -> Tensor:
    loss = -(target * torch.log(x) + (1 - target) * torch.log(1 - x))
    if weight is not None:
        loss = loss * weight
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, *args: Any, **kwargs: Any) -> Any:
    return torch.ops.aten._embedding_bag(weight, indices.long(), offsets.long(), *args, **kwargs)


def _through_int32(x: Tensor, name: str) -> Tensor:
    if bool((x.detach().abs() >= _TOO_LARGE).any()):
        raise py_error(
            f"aten::{name} of a number of 2^31 or more: PopTorch goes through int32, and gives another number, without "
            "a word. Clamp the argument first"
        )
    return torch.trunc(x) if name == "trunc" else torch.frac(x)


#: Name and overload of an operation -> the function that computes it.
COMPUTED: Mapping[str, Callable[..., Any]] = {
    "maximum.default": lambda a, b: _WholeGradient.apply(a, b, _larger),
    "minimum.default": lambda a, b: _WholeGradient.apply(a, b, _smaller),
    "clamp.Tensor": _clamp,
    "clamp_min.Tensor": _clamp,
    "clamp_max.Tensor": lambda x, high: _clamp(x, None, high),
    "_embedding_bag_forward_only.default": _embedding_bag,
    "_embedding_bag.default": _embedding_bag,
    "_safe_softmax.default": torch.softmax,
    "where.self": _where,
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "binary_cross_entropy.default": _binary_cross_entropy,
    # torch's operator returns a buffer for its backward, too
    "log_sigmoid_forward.default": lambda x: (torch.log(torch.sigmoid(x)), torch.zeros(0)),
    "floor_divide.default": lambda a, b: torch.floor(torch.true_divide(a, b)),
    "floor_divide.Scalar": lambda a, b: torch.floor(torch.true_divide(a, b)),
    "trunc.default": lambda x: _through_int32(x, "trunc"),
    "frac.default": lambda x: _through_int32(x, "frac"),
    "sqrt.default": lambda x: x.double().sqrt().float() if x.dtype == torch.float32 else torch.sqrt(x),
}


#: Arguments, by their names in the schema, that torch takes as int64 only.
_INDICES = frozenset(("index", "indices"))
_TARGETS = frozenset(("nll_loss_forward", "nll_loss2d_forward", "_ctc_loss"))


@functools.lru_cache(maxsize=None)
def base_name(func: Any) -> str:
    """Name of the operation without overload: ``add`` of ``aten.add.Tensor``."""
    return str(func._schema.name).split("::")[-1]


def widened(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """The arguments with indices as torch takes them."""
    wide = _wide(func)
    if not wide:
        return args, kwargs
    return (
        tuple(tree_map(_widen, value) if position in wide else value for position, value in enumerate(args)),
        {name: tree_map(_widen, value) if name in wide else value for name, value in kwargs.items()},
    )


@functools.lru_cache(maxsize=None)
def _wide(func: Any) -> FrozenSet[Union[int, str]]:
    """The arguments that torch takes as int64 only, by position and by name."""
    names = _INDICES | {"target", "targets"} if base_name(func) in _TARGETS else _INDICES
    arguments = [argument.name for argument in func._schema.arguments]
    return frozenset(key for pair in enumerate(arguments) if pair[1] in names for key in pair)


def _widen(leaf: Any) -> Any:
    return leaf.long() if isinstance(leaf, Tensor) and leaf.dtype == torch.int32 else leaf


def in_float32(target: Callable[..., Any], dtype: torch.dtype, *args: Any, **kwargs: Any) -> Tensor:
    """An operation of float16 and float32, computed in float32, and its result in ``dtype``."""

    def wide(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    result: Tensor = compute(target, tree_map(wide, args), tree_map(wide, kwargs))
    return result.to(dtype)


def compute(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """The results of one operation on real tensors."""
    if not isinstance(target, torch._ops.OpOverload):
        return target(*args, **kwargs)
    name = base_name(target)
    computed = COMPUTED.get(f"{name.rstrip('_')}.{target._overloadname}")
    if computed is not None:
        if name.endswith("_"):
            return args[0].copy_(computed(args[0].clone(), *args[1:], **kwargs))
        return computed(*args, **kwargs)
    if name == "view" and target._overloadname == "default":
        return args[0].reshape(args[1])
    args, kwargs = widened(target, args, kwargs)
    return target(*args, **kwargs)
