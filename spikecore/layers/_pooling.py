"""Pooling that keeps little for backward; ``sc.fuse`` puts it into a network.

- ``nn.MaxPool2d`` keeps its input, and an index of 8 bytes for each maximum. The place of each maximum within its
  window is enough, in a byte; in two where windows overlap or are padded.
- ``nn.AvgPool2d`` keeps its input, of which backward reads the shape alone. Here its windows do not overlap.

Outputs, gradients and second derivatives are those of torch. Of equal maxima the first one counts, of several NaN the
last one. Calls without a derivative, compiled, traced and transformed ones, and other inputs are left to torch.
"""

from __future__ import annotations

import math
import operator
from typing import Any, ClassVar, Dict, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._base.context import is_plain
from spikecore.layers._packed import Follow, as_kind, of_average

#: Most numbers in a window of maximum pooling: a byte tells so many places apart.
_MOST = 256
#: Largest distance of two numbers of an image that two bytes hold.
_FAR = 2**15 - 1
#: Rows and columns of a window.
Window = Tuple[int, int]


class _Compact(nn.Module):
    """What both layers have beside torch's."""

    keeps: ClassVar[str]

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``, or as many as windows that overlap give."""
        pool: Any = self
        if _is_ours(input, _pair(pool.kernel_size)):
            window = _pair(pool.kernel_size)
            if _has_own_windows(pool):
                y: Tensor = _Pooling.apply(input, window, isinstance(self, nn.MaxPool2d))
                return y
            if _has_windows(pool, input.shape[3]):
                how = (window, _pair(pool.stride or pool.kernel_size), _pair(pool.padding))
                return _Overlapping.apply(input, *how)  # type: ignore[no-any-return]  # torch says nothing
        return super().forward(input)  # type: ignore[no-any-return]  # torch's

    def follow_spikes(self, known: Any, follow: Follow) -> Any:
        """What comes out, for :func:`spikecore.layers.pack`."""
        return of_average(self, known) if isinstance(self, nn.AvgPool2d) else known

    def extra_repr(self) -> str:
        """As torch's, and what is kept."""
        return f"{super().extra_repr()}, keeps {self.keeps}"


class CompactMaxPool2d(_Compact, nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` that keeps a byte for each maximum, or two."""

    keeps = "places"


class CompactAvgPool2d(_Compact, nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` that keeps nothing but shapes."""

    keeps = "nothing"


_COMPACT: Dict[Type[nn.Module], Type[nn.Module]] = {nn.MaxPool2d: CompactMaxPool2d, nn.AvgPool2d: CompactAvgPool2d}
_PLAIN = {other: kind for kind, other in _COMPACT.items()}


def compact(module: nn.Module) -> nn.Module:
    """A pooling that keeps little; another module as it is."""
    kind = _COMPACT.get(type(module))
    return module if kind is None or not (_has_own_windows(module) or _has_windows(module)) else as_kind(module, kind)


def plain(module: nn.Module) -> nn.Module:
    """Torch's layer for one of these; another module as it is."""
    kind = _PLAIN.get(type(module))
    return module if kind is None else as_kind(module, kind)


class _Pooling(torch.autograd.Function):
    """The maximum of each window, whose place is kept in a byte; or the average, for which nothing is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window, is_max: bool) -> Tensor:
        out, *places = _maxima(x, window) if is_max else (F.avg_pool2d(x, window),)
        ctx.save_for_backward(*places)
        ctx.window, ctx.shape = window, x.shape
        ctx.last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # [B, rows, columns, C] of an input that is channels-last: what is made here then is, too
        rows, order, back = (1, (0, 2, 3, 1), (0, 3, 1, 2)) if ctx.last else (2, (0, 1, 2, 3), (0, 1, 2, 3))
        (h, w), (*_, height, width) = ctx.window, ctx.shape

        def apart(x: Tensor) -> Tensor:
            return x.permute(order).unsqueeze(rows + 1).unsqueeze(rows + 3)

        if ctx.saved_tensors:
            place = torch.arange(h * w, dtype=torch.uint8, device=grad.device).view(h, 1, w)
            is_here = apart(ctx.saved_tensors[0]) == (place.unsqueeze(-1) if ctx.last else place)
            parts = torch.where(is_here, apart(grad), torch.zeros((), dtype=grad.dtype, device=grad.device))
        else:
            parts = apart(grad / (h * w))
            parts = parts.expand(*parts.shape[: rows + 1], h, parts.shape[rows + 2], w, *parts.shape[rows + 4 :])
        first, (r, _, c, _), last = parts.shape[:rows], parts.shape[rows : rows + 4], parts.shape[rows + 4 :]
        image = parts.contiguous().view(*first, r * h, c * w, *last).permute(back)
        rest = width - image.shape[3], height - image.shape[2]
        return F.pad(image, (0, rest[0], 0, rest[1])) if any(rest) else image, None, None


def _maxima(x: Tensor, window: Window) -> Tuple[Tensor, Tensor]:
    """The maximum of each window and its place, by torch's pooling, whose indices are gone afterwards."""
    h, w = window
    out, indices = F.max_pool2d(x, window, return_indices=True)
    rows, columns = out.shape[2:]
    first = torch.arange(0, rows * h, h, device=x.device)[:, None] * x.shape[3]
    indices -= first + torch.arange(0, columns * w, w, device=x.device)
    # what is left of an index is row * x.shape[3] + column, both within the window
    row = indices.div(x.shape[3], rounding_mode="floor")
    return out, indices.sub_(row, alpha=x.shape[3] - w).to(torch.uint8)


class _Overlapping(torch.autograd.Function):
    """The maximum of each window, of which the distance of its index to that of the window's first number is kept in
    two bytes. Windows may overlap and be padded: torch's backward gets the indices again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window, stride: Window, padding: Window) -> Tensor:
        out, indices = F.max_pool2d(x, window, stride, padding, return_indices=True)
        ctx.how, ctx.shape = (window, stride, padding), x.shape
        ctx.last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        # both wrap around, and so does the difference, which is small
        ctx.save_for_backward(indices.short().sub_(_first(indices, x.shape[3], stride, padding).short()))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (window, stride, padding), (distances,) = ctx.how, ctx.saved_tensors
        indices = distances + _first(distances, ctx.shape[3], stride, padding)
        # torch reads the shape of the input, and how it lies
        order = torch.channels_last if ctx.last else torch.contiguous_format
        x = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=order)
        pooled = torch.ops.aten.max_pool2d_with_indices_backward
        return pooled(grad, x, window, stride, padding, (1, 1), False, indices), None, None, None


def _first(like: Tensor, width: int, stride: Window, padding: Window) -> Tensor:
    """The index in the image of the first number of each window ``[..., rows, columns]``."""
    top, left = (
        torch.arange(count, device=like.device).mul_(step).sub_(pad)
        for count, step, pad in zip(like.shape[2:], stride, padding)
    )
    return top[:, None] * width + left


def _pair(size: Any) -> Window:
    # of one number or a sequence of one, which is meant for both
    h, *others = size if isinstance(size, (tuple, list)) else (size,)
    return operator.index(h), operator.index(others[0] if others else h)


def _has_own_windows(pool: Any) -> bool:
    """Whether windows do not overlap, and what is pooled is all that comes out; numbers may be set at any time."""
    window = _pair(pool.kernel_size)
    # torch takes an empty stride for none
    if (pool.stride or pool.kernel_size) != pool.kernel_size and _pair(pool.stride) != window:
        return False
    if _pair(pool.padding) != (0, 0) or pool.ceil_mode:
        return False
    if isinstance(pool, nn.AvgPool2d):
        return pool.divisor_override is None
    return _pair(pool.dilation) == (1, 1) and not pool.return_indices and 1 < math.prod(window) <= _MOST


def _has_windows(pool: Any, width: int = 1) -> bool:
    """Whether the maxima of windows are all that comes out, of which two bytes tell the places in images so wide."""
    usual = isinstance(pool, nn.MaxPool2d) and _pair(pool.dilation) == (1, 1)
    h, w = _pair(pool.kernel_size)
    return usual and not (pool.ceil_mode or pool.return_indices) and h * w > 1 and (h - 1) * width + w <= _FAR


def _is_ours(x: Tensor, window: Window) -> bool:
    """Whether a call is plain, has a derivative and at least one window."""
    if not is_plain(x) or not (x.requires_grad and torch.is_grad_enabled()):
        return False
    usual = x.ndim == 4 and x.is_floating_point() and x.layout is torch.strided and x.numel() > 0
    return usual and x.shape[2] >= window[0] and x.shape[3] >= window[1]
