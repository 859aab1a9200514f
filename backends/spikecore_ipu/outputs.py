"""Joins the outputs of several micro batches as the network would return them for one batch.

PopTorch joins them along dimension 0, which in a spiking network's output ``[T, B, ...]`` is time.
"""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import torch
from torch import Tensor

from spikecore.training import tree_map
from spikecore_ipu.step import Traced


def joined(outputs: Any, traced: Traced) -> Any:
    """``outputs`` with the micro batches in each tensor side by side along its batch dimension.

    The batch dimension is the first (``[B, ...]``) or the second (``[T, B, ...]``), whichever has the size of the micro
    batch. A tensor without one is left as PopTorch joined it.
    """
    shapes: Iterator[Tuple[int, ...]] = iter(traced.shapes)
    return tree_map(lambda value: _joined(value, next(shapes), traced), outputs)


def _joined(value: Tensor, shape: Tuple[int, ...], traced: Traced) -> Tensor:
    dim = traced.batch_dimension(shape)
    if not dim or tuple(value.shape) == shape:
        return value
    return torch.cat(value.split(shape[0]), dim=dim)
