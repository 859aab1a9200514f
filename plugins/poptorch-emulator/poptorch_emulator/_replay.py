"""Computes one recorded operation: with torch, except where PopART computes it differently (:mod:`_popart`).

| operation         | what differs                                                                                     |
|-------------------|--------------------------------------------------------------------------------------------------|
| view              | of any strides: which strides an operation leaves differs between versions of torch              |
| int32 as an index | widened for torch, which indexes with int64 only                                                 |
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, FrozenSet, Tuple, Union

import torch
from torch import Tensor

from ._popart import COMPUTED
from ._structure import tree_map

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
