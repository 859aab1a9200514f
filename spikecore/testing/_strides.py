"""The same values in other places of memory, and values that stand for many."""

from __future__ import annotations

from typing import Callable, Dict

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]


def expanded(x: Tensor) -> Tensor:
    """The first neuron's values for all, without memory of their own. Changes values."""
    return x[..., :1].expand(x.shape)


def expanded_steps(x: Tensor) -> Tensor:
    """The first step's values for all. Changes values."""
    return x[:1].expand(x.shape)


def strided(x: Tensor) -> Tensor:
    """Every second element of a wider tensor, NaN between."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    wide[..., ::2] = x
    return wide[..., ::2]


def transposed(x: Tensor) -> Tensor:
    """Batch and the last dimension exchanged in memory."""
    return x.transpose(1, -1).contiguous().transpose(1, -1) if x.ndim > 1 else x


def time_last(x: Tensor) -> Tensor:
    """The steps of a neuron next to each other."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def channels_last(x: Tensor) -> Tensor:
    """Each step in channels-last, as a convolution gives it."""
    steps, batch = x.shape[:2]
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(steps, batch, *x.shape[2:])


def unaligned(x: Tensor) -> Tensor:
    """Contiguous, one element past where memory begins."""
    flat = x.new_empty(x.numel() + 1)
    flat[1:] = x.reshape(-1)
    return flat[1:].view(x.shape)


def part(x: Tensor) -> Tensor:
    """A block out of a larger tensor, NaN around."""
    around = x.new_full((x.shape[0] + 2, *(n + 1 for n in x.shape[1:2]), *x.shape[2:]), float("nan"))
    inside = around[1:-1, 1:] if x.ndim > 1 else around[1:-1]
    inside.copy_(x)
    return inside


def batch_first(x: Tensor) -> Tensor:
    """The steps of one sample next to each other."""
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.ndim > 1 else x


def one_number(x: Tensor) -> Tensor:
    """The first number for all. Changes values."""
    return x[(slice(0, 1),) * x.ndim].expand(x.shape) if x.numel() else x


def laid(x: Tensor, layout: str) -> Tensor:
    """The tensor, which begins with time, in a layout."""
    return EVERY[layout](x) if layout != "contiguous" and x.ndim else x


def laid_step(x: Tensor, layout: str) -> Tensor:
    """A state or a parameter in a layout."""
    return laid(x[None], layout)[0] if x.ndim else x


#: Layouts of the same values.
LAYOUTS: Dict[str, Layout] = {
    "strided": strided,
    "transposed": transposed,
    "time-last": time_last,
    "channels-last": channels_last,
    "unaligned": unaligned,
    "part-of-a-larger-one": part,
}
#: Layouts in which values repeat.
EXPANDED: Dict[str, Layout] = {"expanded": expanded, "expanded-steps": expanded_steps}
#: Every layout by its name.
EVERY: Dict[str, Layout] = {
    **LAYOUTS,
    **EXPANDED,
    "batch-first": batch_first,
    "part": part,
    "one-number": one_number,
    "ones": lambda x: x.new_ones((1,) * x.ndim).expand(x.shape),
}
