"""Tensors in words: where their numbers lie, and whether their time steps are all the same."""

from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import Tensor

#: Orders of dimensions in memory, outermost first, that have a name.
_NAMES = {
    (0, 2, 3, 1): "channels-last",
    (0, 2, 3, 4, 1): "channels-last",
    (0, 1, 3, 4, 2): "channels-last",
    (0, 1, 3, 4, 5, 2): "channels-last",
    (1, 0): "batch before time",
    (1, 0, 2): "batch before time",
    (1, 0, 2, 3): "batch before time",
    (1, 0, 2, 3, 4): "batch before time",
    (1, 0, 3, 4, 2): "batch before time, channels-last",
}


def memory_layout(x: Tensor) -> str:
    """How the numbers of a tensor lie in memory, in a word or two."""
    if x.layout is not torch.strided:
        return str(x.layout).replace("torch.", "")
    if x.numel() == 0:
        return "empty"
    if x.ndim and x.stride(0) == 0 and x.shape[0] > 1:
        return f"one step repeated, {memory_layout(x[0])}"
    if x.is_contiguous():
        return "contiguous"
    order = _order(x.shape, x.stride())
    if not _is_dense(order, x.shape, x.stride()):
        return f"strided {tuple(x.stride())}"
    return _NAMES.get(order, f"dimensions in the order {', '.join(map(str, order))}")


def is_channels_last(x: Tensor) -> bool:
    """Whether a tensor of images, with or without time, lies channels-last and not contiguous as well."""
    return "channels-last" in memory_layout(x)


def is_repeated(x: Tensor, steps: int) -> bool:
    """Whether ``x [steps, ...]`` is one step repeated: by its stride, or because its steps hold the same numbers.

    A step that is one number everywhere, such as the zeros of a layer that is silent, does not count: it says nothing
    about other inputs.
    """
    if steps < 2 or x.ndim == 0 or x.shape[0] != steps or x.numel() == 0:
        return False
    if x.stride(0) == 0:
        return True
    first = x[0]
    if not torch.equal(first, x[1]) or bool((first == first.reshape(-1)[0]).all()):
        return False
    return all(torch.equal(first, x[t]) for t in range(2, steps))


def _order(shape: Sequence[int], strides: Sequence[int]) -> Tuple[int, ...]:
    """The dimensions, outermost in memory first."""
    # torch allows any stride for a dimension of size 1: it is taken where it stands
    along = [strides[d] if shape[d] > 1 else _beside(d, shape, strides) for d in range(len(shape))]
    return tuple(sorted(range(len(shape)), key=lambda d: (-along[d], d)))


def _beside(dim: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """The stride that a dimension of size 1 would have between its neighbours."""
    inner = [strides[d] * shape[d] for d in range(dim + 1, len(shape)) if shape[d] > 1]
    return max(inner, default=1)


def _is_dense(order: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != wanted:
            return False
        wanted *= shape[d]
    return True
