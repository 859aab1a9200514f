"""Where the numbers of a tensor lie.

A kernel sees steps of N neurons each, in the order of memory. Any tensor whose steps are dense is taken as it is:
contiguous, channels-last, any permutation, part of a batch, one step expanded over time. A backend may also take
``[B, T, ...]`` seen as ``[T, B, ...]``, whose steps are rows that lie apart. Anything else is copied.
All tensors of a call share the layout of its first input.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """The sizes of one time step as the user sees them, and the order of its dimensions in memory."""

    shape: Tuple[int, ...]
    #: Dimensions of one time step, outermost in memory first; None for the natural order.
    order: Optional[Tuple[int, ...]]
    #: How many of these dimensions, the outermost, lie outside of time: 0 where a step is dense, 1 for ``[B, T, ...]``.
    outer: int = 0

    @classmethod
    def decoded(cls, shape: Sequence[int], numbers: Sequence[int]) -> Layout:
        """The layout of this shape that :attr:`encoded` gave the numbers of."""
        return cls(tuple(shape), tuple(numbers[1:]) or None, numbers[0] if numbers else 0)

    @property
    def encoded(self) -> List[int]:
        """All but the shape as numbers; none for the natural order."""
        return [self.outer, *(self.order or ())] if self.order or self.outer else []

    def empty(self, lead: Tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
        """A new dense tensor ``[*lead, *shape]`` that lies in this layout."""
        if self.order is None:
            return like.new_empty((*lead, *self.shape), dtype=dtype)
        inner = like.new_empty((*lead, *[self.shape[d] for d in self.order]), dtype=dtype)
        return inner.permute(self._back(len(lead)))

    def empty_steps(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A new dense tensor of the shape of ``x`` in this layout."""
        if self.order is None and x.dtype == dtype and x.is_contiguous():
            return torch.empty_like(x)  # fast path: one call of torch
        if not self.outer:
            return self.empty((x.shape[0],), x, dtype)
        # time lies between the dimensions of a step
        order = [1 + d for d in self.order or range(len(self.shape))]
        order.insert(self.outer, 0)
        sizes = (x.shape[0], *self.shape)
        return x.new_empty([sizes[d] for d in order], dtype=dtype).permute([order.index(d) for d in range(len(order))])

    def holds(self, step: Tensor) -> bool:
        """Whether a tensor ``[*shape]`` is dense in this layout."""
        return step.is_contiguous() if self.order is None else self._dense(step.stride())

    def fit(self, step: Tensor) -> Tensor:
        """The tensor ``[*shape]``, or a copy of it, dense in this layout."""
        return step if self.holds(step) else self._copied(step, 0)

    def fit_steps(self, steps: Tensor) -> Tensor:
        """The tensor ``[T, *shape]``, or a copy of it, with each step dense in this layout.

        Steps may lie at any distance ``stride(0)``, which is 0 where one step stands for all.
        """
        strides = steps.stride()[1:]
        if (self.order is None and steps.is_contiguous()) or self._dense(strides):
            return steps
        if self.outer and _outer(self.shape, self.order or range(len(self.shape)), strides) in (0, self.outer):
            return steps
        # copy the one step, not T copies of it
        if steps.stride(0) == 0:
            return self.fit(steps[0]).expand(steps.shape)
        return self._copied(steps, 1)

    def fit_saved(self, kept: Tensor) -> Tensor:
        """The tensor ``[k, *shape]``, or a copy of it, dense in this layout from end to end."""
        # a backward kernel has no argument for the distance between checkpoints: it takes them to be N numbers apart
        size = 1
        for length in self.shape:
            size *= length
        dense = self._dense(kept.stride()[1:]) and (kept.shape[0] < 2 or kept.stride(0) == size)
        return kept if dense else self._copied(kept, 1)

    def dense_in_order(self, step: Tensor) -> Tensor:
        """A dense tensor ``[N]`` in the order of memory as ``[*shape]``."""
        if self.order is None:
            return step.reshape(self.shape)
        return step.reshape([self.shape[d] for d in self.order]).permute(self._back(0))

    def inner_of(self, dim: int) -> int:
        """How many neurons lie between two neighbours along a dimension of one time step."""
        inner = 1
        for d in reversed(self.order or range(len(self.shape))):
            if d == dim:
                break
            inner *= self.shape[d]
        return inner

    def channels_of(self, value: Tensor) -> Tuple[int, int]:
        """How a parameter ``[1, C, 1, ...]`` lies: (neurons between neighbouring channels, channels)."""
        return self.channels_along(value.shape)

    def channels_along(self, view: Sequence[int]) -> Tuple[int, int]:
        """The same for a parameter of this shape ``[1, C, 1, ...]``."""
        # all dimensions but that of the channels are 1; with one channel it is any
        dim = max(range(len(view)), key=lambda d: view[d])
        return self.inner_of(dim), view[dim]

    @property
    def rows(self) -> Tuple[int, int]:
        """Neurons of a row, and which dimension of ``[T, *shape]`` goes from row to row; for a layout with rows."""
        order = self.order or tuple(range(len(self.shape)))
        columns = 1
        for d in order[self.outer :]:
            columns *= self.shape[d]
        # that of a dimension of size 1 could be any stride
        return columns, 1 + next(d for d in reversed(order[: self.outer]) if self.shape[d] != 1)

    def _copied(self, tensor: Tensor, lead: int) -> Tensor:
        if self.order is None:
            return tensor.contiguous()
        there = (*range(lead), *(lead + d for d in self.order))
        return tensor.permute(there).contiguous().permute(self._back(lead))

    def _back(self, lead: int) -> Tuple[int, ...]:
        """The permutation from memory order to the order of the dimensions, behind ``lead`` leading ones."""
        order = self.order or ()
        return (*range(lead), *(lead + order.index(d) for d in range(len(order))))

    def _dense(self, strides: Sequence[int]) -> bool:
        return _is_dense(self.shape, self.order or range(len(self.shape)), strides)


def layout_of(x: Tensor, rows: bool = False) -> Layout:
    """The layout to compute ``x`` of shape ``[T, *N]`` in: its own where steps are dense, or with ``rows`` where they
    are rows between which other steps lie; else the natural one.
    """
    shape = tuple(x.shape)[1:]
    if x.is_contiguous():
        return Layout(shape, None)
    strides = x.stride()[1:]
    # outermost first; of equal strides the earlier dimension, as in the natural order
    order = tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], d)))
    natural = order == tuple(range(len(shape)))
    if _is_dense(shape, order, strides):
        return Layout(shape, None if natural else order)
    outer = _outer(shape, order, strides) if rows else 0
    if outer:
        found = Layout(shape, None if natural else order, outer)
        columns, dim = found.rows
        # memory is read in sectors of 32 bytes; rows that lie apart for another reason than time are copied
        if columns * x.element_size() >= 32 and x.stride(0) < x.stride(dim):
            return found
    return Layout(shape, None)


def is_dense(value: Tensor) -> bool:
    """Whether the values of a tensor lie in memory without gaps, in any order of its dimensions."""
    strides = value.stride()
    return _is_dense(value.shape, sorted(range(value.ndim), key=lambda d: -strides[d]), strides)


def _outer(shape: Sequence[int], order: Sequence[int], strides: Sequence[int]) -> int:
    """How many of the dimensions, outermost in memory first, lie apart, at one distance from row to row; the others are
    dense. 0 where all are dense, -1 where there is no such distance.
    """
    wanted, count = 1, 0
    for k, d in reversed(list(enumerate(order))):
        if shape[d] == 1:
            continue
        if strides[d] != wanted:
            if count:
                return -1
            wanted, count = strides[d], k + 1
        wanted *= shape[d]
    return count


def _is_dense(shape: Sequence[int], order: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for d in reversed(order):
        # torch allows any stride for a dimension of size 1
        if shape[d] != 1 and strides[d] != wanted:
            return False
        wanted *= shape[d]
    return True
