"""Reads from an operation's schema which arguments it changes in place, and which ones its results are views of."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

import torch

from ._replay import base_name
from ._structure import leaves
from ._tensor import IpuTensor

#: Batch norm changes them in place in training, although its schema does not say so.
_STATISTICS = ("running_mean", "running_var")


class _Facts(NamedTuple):
    """Positions and names of arguments."""

    written: Tuple[Tuple[int, str], ...]
    shared: Tuple[Tuple[int, str], ...]
    #: Whether results are views.
    views: bool


@functools.lru_cache(maxsize=None)
def _facts(func: Any) -> _Facts:
    arguments = list(enumerate(func._schema.arguments))
    aliased = [(position, one) for position, one in arguments if one.alias_info is not None]
    return _Facts(
        tuple((position, one.name) for position, one in aliased if one.alias_info.is_write),
        tuple((position, one.name) for position, one in aliased),
        any(returned.alias_info is not None for returned in func._schema.returns),
    )


@functools.lru_cache(maxsize=None)
def _statistics(func: Any) -> Tuple[Tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple((position, one.name) for position, one in arguments if one.name in _STATISTICS)


def _tensors(which: Sequence[Tuple[int, str]], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    if not which:
        return ()
    given = [args[position] if position < len(args) else kwargs.get(name) for position, name in which]
    return tuple([tensor.number for tensor in leaves(given, IpuTensor)])


def writes(target: Any) -> bool:
    """Whether an operation changes an argument in place."""
    return bool(_facts(target).written) or base_name(target) == "native_batch_norm"


def changed(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """The values that one call changes in place."""
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    which = _facts(target).written
    if base_name(target) == "native_batch_norm" and bool(args[5]):
        which = tuple(sorted({*which, *_statistics(target)}))
    return _tensors(which, args, kwargs)


def viewed(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """The values that the results of one call are views of."""
    if not isinstance(target, torch._ops.OpOverload) or not _facts(target).views:
        return ()
    return _tensors(_facts(target).shared, args, kwargs)
