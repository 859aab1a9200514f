"""Pooling of windows that do not overlap, which keeps little for backward; ``sc.fuse`` puts it into a network.

- ``nn.MaxPool2d`` keeps its input, and for each maximum an index of 8 bytes: in front of a batch normalisation, which
  keeps the pooled numbers, more than all else of such a layer together. The place of each maximum within its window is
  enough, in a byte.
- ``nn.AvgPool2d`` keeps its input, of which backward reads the shape alone.

Outputs, gradients and second derivatives are those of torch. Of equal maxima the first one counts, of several NaN the
last one. Calls without a derivative, compiled, traced and transformed ones, and other inputs are left to torch.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Dict, List, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore.lang._plain import is_batched_by_autograd, is_compiling, is_jit_tracing, is_plain
from spikecore.layers._packed import Follow, as_kind, of_average

#: Largest maximum pooling: each place of a window is a pass over a part of the input.
MOST = 16
#: Rows and columns of a window.
Window = Tuple[int, int]


class CompactMaxPool2d(nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` that keeps a byte for each maximum."""

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``."""
        ours = _has_own_windows(self) and _is_ours(input, _pair(self.kernel_size))
        y: Tensor = _Maxima.apply(input, _pair(self.kernel_size)) if ours else super().forward(input)
        return y

    def follow_spikes(self, known: Any, follow: Follow) -> Any:
        """What comes out, for :func:`spikecore.pack`."""
        return known

    def extra_repr(self) -> str:
        """As before, and what is kept."""
        return f"{super().extra_repr()}, keeps places"


class CompactAvgPool2d(nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` that keeps nothing but shapes."""

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``."""
        ours = _has_own_windows(self) and _is_ours(input, _pair(self.kernel_size))
        y: Tensor = _Averages.apply(input, _pair(self.kernel_size)) if ours else super().forward(input)
        return y

    def follow_spikes(self, known: Any, follow: Follow) -> Any:
        """What comes out, for :func:`spikecore.pack`."""
        return of_average(self, known)

    def extra_repr(self) -> str:
        """As before, and what is kept."""
        return f"{super().extra_repr()}, keeps nothing"


_COMPACT: Dict[Type[nn.Module], Type[nn.Module]] = {nn.MaxPool2d: CompactMaxPool2d, nn.AvgPool2d: CompactAvgPool2d}


def compact(module: nn.Module) -> nn.Module:
    """A pooling that keeps little, of windows that do not overlap; another module as it is."""
    kind = _COMPACT.get(type(module))
    return module if kind is None or not _has_own_windows(module) else as_kind(module, kind)


def plain(module: nn.Module) -> nn.Module:
    """Torch's layer for one of these; another module as it is."""
    kind = next((kind for kind, other in _COMPACT.items() if type(module) is other), None)
    return module if kind is None else as_kind(module, kind)


class _Maxima(torch.autograd.Function):
    """The maximum of each window; the place of each, in a byte, is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        # indices of torch's take a third of the time on a CPU
        out, places = by_indices(x, window) if x.device.type == "cpu" else by_comparing(x, window)
        ctx.save_for_backward(places)
        ctx.window, ctx.shape, ctx.format = window, x.shape, _format(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (places,), count = ctx.saved_tensors, math.prod(ctx.window)
        zero = torch.zeros((), dtype=grad.dtype, device=grad.device)
        if not _is_alone(grad):
            return _joined([torch.where(places == place, grad, zero) for place in range(count)], ctx), None
        result = _empty(grad, ctx)
        for place in range(count):
            torch.where(places == place, grad, zero, out=_at(result, ctx.window, place))
        return result, None


class _Averages(torch.autograd.Function):
    """The average of each window; nothing is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        ctx.window, ctx.shape, ctx.format = window, x.shape, _format(x)
        return F.avg_pool2d(x, window)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (h, w), (rows, columns) = ctx.window, grad.shape[-2:]
        part = grad / (h * w)
        if not _is_alone(grad):
            return _joined([part] * (h * w), ctx), None
        result = _empty(grad, ctx)
        windows = result[:, :, : rows * h, : columns * w].unflatten(2, (rows, h)).unflatten(4, (columns, w))
        # one pass: torch's own kernel for channels-last takes an H200 2.2 ms of 7.1 of a VGG's step
        windows.copy_(part[:, :, :, None, :, None].expand_as(windows))
        return result, None


def _is_alone(grad: Tensor) -> bool:
    """Whether nothing follows what backward computes from a cotangent: no graph, no vmap, no forward mode."""
    return not torch.is_grad_enabled() and is_plain(grad) and not is_batched_by_autograd(grad)


def _joined(parts: List[Tensor], ctx: Any) -> Tensor:
    """``[B, C, H, W]`` of the numbers at each place of the windows, and 0 where there is no window."""
    (h, w), (*first, height, width) = ctx.window, ctx.shape
    rows, columns = height // h, width // w
    apart = torch.stack(parts, -1).reshape(*first, rows, columns, h, w).permute(0, 1, 2, 4, 3, 5)
    whole = F.pad(apart.reshape(*first, rows * h, columns * w), (0, width - columns * w, 0, height - rows * h))
    return whole.contiguous(memory_format=ctx.format) if is_plain(whole) else whole


def _empty(grad: Tensor, ctx: Any) -> Tensor:
    """``[B, C, H, W]`` that is to be filled window by window; rows and columns that fill no window are 0."""
    result = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.format)
    return result.zero_() if ctx.shape[2] % ctx.window[0] or ctx.shape[3] % ctx.window[1] else result


def by_indices(x: Tensor, window: Window) -> Tuple[Tensor, Tensor]:
    """The maximum of each window and its place, by torch's pooling, whose indices are gone afterwards."""
    h, w = window
    out, indices = F.max_pool2d(x, window, return_indices=True)
    rows, columns = out.shape[2:]
    first = torch.arange(0, rows * h, h, device=x.device)[:, None] * x.shape[3]
    indices -= first + torch.arange(0, columns * w, w, device=x.device)
    # what is left of an index is row * x.shape[3] + column, both within the window
    row = indices.div(x.shape[3], rounding_mode="floor")
    return out, indices.sub_(row, alpha=x.shape[3] - w).to(torch.uint8)


def by_comparing(x: Tensor, window: Window) -> Tuple[Tensor, Tensor]:
    """The same by comparisons, one place of the windows after the other; at no time is there a number of 8 bytes."""
    out = _at(x, window, 0).clone()
    places = torch.zeros_like(out, dtype=torch.uint8)
    for place in range(1, window[0] * window[1]):
        number = _at(x, window, place)
        # a comparison with NaN is false, and NaN counts as the largest
        is_larger = (number > out).logical_or_(number.isnan())
        torch.maximum(out, number, out=out)
        places.masked_fill_(is_larger, place)
    return out, places


def _at(x: Tensor, window: Window, place: int) -> Tensor:
    """Of each window the number at one place: a view ``[B, C, H // h, W // w]``."""
    h, w = window
    rows, columns = x.shape[2] // h * h, x.shape[3] // w * w
    return x[:, :, place // w : rows : h, place % w : columns : w]


def _pair(size: Any) -> Window:
    # of one number or a sequence of one, which is meant for both
    h, *others = size if isinstance(size, (tuple, list)) else (size,)
    return operator.index(h), operator.index(others[0] if others else h)


def _has_own_windows(pool: Any) -> bool:
    """Whether windows do not overlap, and what is pooled is all that comes out; numbers may be set at any time."""
    window, stride = _pair(pool.kernel_size), pool.stride
    # torch takes an empty stride for none
    missing = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    if not missing and _pair(stride) != window:
        return False
    if _pair(pool.padding) != (0, 0) or pool.ceil_mode:
        return False
    if isinstance(pool, nn.AvgPool2d):
        return pool.divisor_override is None
    return _pair(pool.dilation) == (1, 1) and not pool.return_indices and 1 < math.prod(window) <= MOST


def _is_ours(x: Tensor, window: Window) -> bool:
    """Whether a call is plain, has a derivative and at least one window."""
    if is_compiling() or is_jit_tracing() or not is_plain(x) or not (x.requires_grad and torch.is_grad_enabled()):
        return False
    usual = x.ndim == 4 and x.is_floating_point() and x.layout is torch.strided and x.numel() > 0
    return usual and x.shape[2] >= window[0] and x.shape[3] >= window[1]


def _format(x: Tensor) -> torch.memory_format:
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
