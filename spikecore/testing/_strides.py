"""The same values in other places of memory, and values that stand for many."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Sequence

import numpy as np
import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]


#: The layouts in which values repeat, and the part that is there once.
_ONCE: Dict[str, Callable[[Any], Any]] = {
    "expanded": lambda x: x[..., :1],
    "expanded-steps": lambda x: x[:1],
    "one-number": lambda x: x[(slice(1),) * x.ndim],
}


def repeated(x: Any, layout: str) -> Any:
    """An array with the values that it has in a layout."""
    return np.broadcast_to(_ONCE[layout](x), x.shape) if layout in _ONCE and x.ndim else x


#: Inputs ``[T, *N]`` that broadcast, by what they have once: for the number of dimensions of ``*N``, these dimensions.
_BROADCAST: Dict[str, Callable[[int], Sequence[int]]] = {
    "batch": lambda dims: [-dims],
    "last": lambda dims: [-1],
    "all-but-channels": lambda dims: [axis for axis in range(-dims, 0) if axis != 1 - dims],
    "neurons": lambda dims: range(-dims, 0),
    "time": lambda dims: [0],
    "time-and-batch": lambda dims: [0, -dims],
    # given as [T]
    "step": lambda dims: range(-dims, 0),
}
BROADCAST = tuple(_BROADCAST)


def part_of(x: Any, how: str, dims: int) -> Any:
    """The part of an array that an input has which broadcasts so; ``dims``: of one time step."""
    once = [axis % x.ndim for axis in _BROADCAST[how](dims)]
    return x[tuple(slice(1) if axis in once else slice(None) for axis in range(x.ndim))]


def as_input(part: Any, how: str) -> Any:
    """The part as it is given to a neuron."""
    return part.reshape(-1) if how == "step" else part


def summed(x: Any, how: str, dims: int) -> Any:
    """The sum over those that read one number, in the shape of the input."""
    return as_input(x.sum(tuple(axis % x.ndim for axis in _BROADCAST[how](dims)), keepdims=True), how)


def expanded(x: Tensor, layout: str) -> Tensor:
    """The values of a part for all, without memory of their own: where others would lie there is NaN."""
    part = _ONCE[layout](torch.full_like(x, float("nan"), memory_format=torch.contiguous_format))
    return part.copy_(_ONCE[layout](x)).expand(x.shape) if x.numel() else x


def strided(x: Tensor) -> Tensor:
    """Every second element of a wider tensor, NaN between."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
    wide[..., ::2] = x
    return wide[..., ::2]


def swapped(x: Tensor, one: int, other: int) -> Tensor:
    """Two dimensions exchanged in memory."""
    return x.transpose(one, other).contiguous().transpose(one, other) if x.ndim > 1 else x


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


def backwards(x: Tensor) -> Tensor:
    """Dimensions in the opposite order in memory."""
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def first_of_the_batch(x: Tensor) -> Tensor:
    """The first half of a larger batch, of NaN beyond."""
    axis = min(1, x.ndim - 1)
    return torch.cat([x, torch.full_like(x, float("nan"))], axis).narrow(axis, 0, x.shape[axis])


def laid(x: Tensor, layout: str) -> Tensor:
    """The tensor, which begins with time, in a layout."""
    return EVERY[layout](x) if layout != "contiguous" and x.ndim else x


def laid_step(x: Tensor, layout: str) -> Tensor:
    """A state or a parameter in a layout."""
    return laid(x[None], layout)[0] if x.ndim else x


#: Layouts of the same values.
LAYOUTS: Dict[str, Layout] = {
    "strided": strided,
    "transposed": partial(swapped, one=1, other=-1),
    "time-last": time_last,
    "channels-last": channels_last,
    "unaligned": unaligned,
    "part-of-a-larger-one": part,
}
#: Layouts in which values repeat.
EXPANDED: Dict[str, Layout] = {name: partial(expanded, layout=name) for name in ("expanded", "expanded-steps")}
#: Every layout by its name.
EVERY: Dict[str, Layout] = {
    **LAYOUTS,
    **EXPANDED,
    "batch-first": partial(swapped, one=0, other=1),
    "backwards": backwards,
    "first-of-the-batch": first_of_the_batch,
    "part": part,
    "one-number": partial(expanded, layout="one-number"),
    "ones": lambda x: x.new_ones((1,) * x.ndim).expand(x.shape),
}
