"""Reads from an operation's schema which arguments it changes in place, and which ones its results are views of."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Tuple

import torch

from ._replay import base_name
from ._structure import leaves
from ._tensor import IpuTensor

#: Batch norm changes them in place in training, although its schema does not say so.
_STATISTICS = ("running_mean", "running_var")


def _arguments(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Iterator[Tuple[Any, Any]]:
    for position, argument in enumerate(func._schema.arguments):
        yield argument, args[position] if position < len(args) else kwargs.get(argument.name)


def changed(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """The values that one call changes in place."""
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    given = list(_arguments(target, args, kwargs))
    updates = base_name(target) == "native_batch_norm" and bool(args[5])
    return tuple(
        tensor.number
        for argument, value in given
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (updates and argument.name in _STATISTICS)
        for tensor in leaves(value, IpuTensor)
    )


def viewed(target: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[int, ...]:
    """The values that the results of one call are views of."""
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    if all(returned.alias_info is None for returned in target._schema.returns):
        return ()
    return tuple(
        tensor.number
        for argument, value in _arguments(target, args, kwargs)
        if argument.alias_info is not None
        for tensor in leaves(value, IpuTensor)
    )
