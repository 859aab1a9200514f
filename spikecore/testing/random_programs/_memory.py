"""Tensors with the same numbers that lie in memory in different ways."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spikecore.testing._oracle.rules import Array


def over_time(value: Array, layout: str, dtype: torch.dtype, device: str) -> Tensor:
    """The numbers ``[T, *N]`` as a tensor of a layout."""
    x = torch.from_numpy(np.array(value, order="C")).to(device=device, dtype=dtype)
    if not len(x):
        return x
    dims = list(range(1, x.ndim))
    if layout == "permuted":
        there = [0, *dims[:1], *dims[2:], *dims[1:2]]
        return x.permute(there).contiguous().permute([there.index(d) for d in range(x.ndim)])
    if layout == "batch first" and dims:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "every other":
        return torch.stack([x, x + 1], -1)[..., 0]
    if layout == "part" and dims:
        return torch.cat([x + 1, x, x], 1)[:, x.shape[1] : 2 * x.shape[1]]
    if layout == "one number":
        return _one_number(x)
    return x[:1].expand(x.shape) if layout == "one step" and bool((x == x[:1]).all()) else x


def of_one_step(value: Array, layout: str, dtype: torch.dtype, device: str) -> Tensor:
    """The numbers of a state or a parameter as a tensor of a layout."""
    x = torch.from_numpy(np.array(value)).to(device=device, dtype=dtype)
    if layout == "permuted":
        back = list(reversed(range(x.ndim)))
        return x.permute(back).contiguous().permute(back)
    if layout == "every other":
        return torch.stack([x, x + 1], -1)[..., 0]
    if layout == "part" and x.ndim:
        return torch.cat([x + 1, x, x])[len(x) : 2 * len(x)]
    return _one_number(x) if layout == "one number" else x


def _one_number(x: Tensor) -> Tensor:
    """All elements in one place of memory, where they are the same."""
    if not x.numel() or not bool((x == x.reshape(-1)[0]).all()):
        return x
    return x.reshape(-1)[:1].clone().reshape((1,) * x.ndim).expand(x.shape)
