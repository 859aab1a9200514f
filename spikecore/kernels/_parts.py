"""The gradient of a parameter from its parts, as a backward launch gives them."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import Tensor

from spikecore.kernels._layout import Layout


def parameter_gradient(kind: str, grad: Tensor, value: Tensor, layout: Layout) -> Tensor:
    """The gradient of a parameter of any kind from its parts, in a call of this layout."""
    if kind == "full" and grad.numel():
        if tuple(value.shape) == layout.shape and layout.holds(value):
            return layout.dense_in_order(grad)
        # a parameter of shape [1, C, H, W] is the same for a whole batch: its gradient is the sum over it
        return layout.dense_in_order(grad).sum_to_size(value.shape).contiguous()
    return summed(kind, grad, value, layout.channels_of(value) if kind == "channel" else (0, 0))


def summed(kind: str, grad: Tensor, value: Tensor, channels: Tuple[int, int]) -> Tensor:
    """The gradient of a parameter of kind "scalar" or "channel" from its parts.

    ``channels``: how those of the parameter lie, see :attr:`spikecore.kernels.Geometry.channels`.
    """
    if not grad.numel() and kind != "scalar":
        return torch.zeros_like(value)
    if kind == "channel":
        # in the order of memory neurons lie as [outer, channels, inner]
        inner, count = channels
        if grad.numel() != count:  # else whole sums
            grad = grad.reshape(-1, count, inner).sum((0, 2)) if inner != 1 else grad.reshape(-1, count).sum(0)
    elif grad.numel() != 1:
        # partial sums, one for each block or each neuron, as the backend likes
        grad = grad.sum()
    return grad if grad.shape == value.shape else grad.reshape(value.shape)
