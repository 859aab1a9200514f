"""Outputs of several micro batches put together as one batch of the network's would be.

PopTorch joins what the micro batches give along dimension 0. A spiking network's output ``[T, B, ...]`` has time there.
"""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import torch
from torch import Tensor

from spikecore.batches import mapped
from spikecore_ipu.step import Traced


def joined(outputs: Any, traced: Traced) -> Any:
    """``outputs`` with the micro batches in each tensor side by side along its batch dimension.

    The batch dimension is the first (``[B, ...]``) or the second (``[T, B, ...]``), whichever has the size of the micro
    batch. A tensor without one is left as PopTorch joined it. Raises ValueError if both have that size, and there are
    several micro batches to join.
    """
    shapes: Iterator[Tuple[int, ...]] = iter(traced.shapes)
    return mapped(lambda value: _joined(value, next(shapes), traced.micro), outputs)


def _joined(value: Tensor, shape: Tuple[int, ...], micro: Any) -> Tensor:
    if tuple(value.shape) == shape or not shape:
        return value
    candidates = [dim for dim, size in enumerate(shape[:2]) if size == micro]
    if len(candidates) > 1:
        raise ValueError(
            f"an output of shape {list(shape)} may be [B, ...] or [T, B, ...]: the micro batch is {micro}, too, and "
            f"the {value.shape[0] // shape[0]} that came back cannot be joined; use another batch size or T"
        )
    if not candidates or candidates[0] == 0:
        return value
    return torch.cat(value.split(shape[0]), dim=candidates[0])
