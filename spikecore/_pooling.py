"""Pooling that keeps little for backward, of windows that do not overlap.

- ``nn.MaxPool2d`` keeps its input, and for each maximum an index of 8 bytes: in front of a batch normalisation, which
  keeps the pooled numbers, more than all else of such a layer together. The place of each maximum within its window is
  enough, in a byte.
- ``nn.AvgPool2d`` keeps its input, of which backward reads the shape alone. Behind a neuron that normalises its own
  input nothing else keeps the spikes.

Rules of this module:

- Outputs, gradients and second derivatives are those of torch. Of equal maxima the first one counts, of several NaN the
  last one.
- What torch.compile traces is left to the compiler, which keeps places and drops inputs by itself; other inputs, calls
  without a derivative, transforms of torch.func, forward mode and tracing are left to torch.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._hoisting import per_sample
from spikecore.lang._plain import is_compiling, is_jit_tracing, is_plain

#: Largest maximum pooling: each place of a window is a pass over a part of the input.
MOST = 16
#: Rows and columns of a window.
Window = Tuple[int, int]


@per_sample
class CompactMaxPool2d(nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` that keeps a byte for each maximum."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether a maximum pooling has windows that do not overlap, and not too large ones."""
        h, w = _pair(module.kernel_size)
        plain = _pair(module.dilation) == (1, 1) and not module.return_indices
        return _is_apart(module) and plain and 1 < h * w <= MOST

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``."""
        window = _pair(self.kernel_size)
        found: Tensor = Pooled.apply(input, window) if _is_ours(input, window) else super().forward(input)
        return found

    def extra_repr(self) -> str:
        """As before, and what is kept."""
        return f"{super().extra_repr()}, keeps places"


@per_sample
class CompactAvgPool2d(nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` that keeps nothing but shapes."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether an average pooling has windows that do not overlap, and divides by their size."""
        return _is_apart(module) and module.divisor_override is None

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``."""
        window = _pair(self.kernel_size)
        found: Tensor = Averaged.apply(input, window) if _is_ours(input, window) else super().forward(input)
        return found

    def extra_repr(self) -> str:
        """As before, and what is kept."""
        return f"{super().extra_repr()}, keeps nothing"


_COMPACT: Dict[Type[nn.Module], Type[nn.Module]] = {nn.MaxPool2d: CompactMaxPool2d, nn.AvgPool2d: CompactAvgPool2d}


def make_compact(module: nn.Module) -> None:
    """Have a pooling of windows that do not overlap keep little; other modules stay as they are."""
    kind: Any = _COMPACT.get(type(module))
    if kind is not None and kind.stands_for(module):
        module.__class__ = kind


def restore(module: nn.Module) -> None:
    """Undo :func:`make_compact`."""
    for plain, compact in _COMPACT.items():
        if type(module) is compact:
            module.__class__ = plain


class Pooled(torch.autograd.Function):
    """The maximum of each window; of backward see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        # indices of torch's take a third of the time on a CPU
        out, places = by_indices(x, window) if x.device.type == "cpu" else by_comparing(x, window)
        ctx.save_for_backward(places)
        ctx.window, ctx.shape, ctx.format = window, x.shape, _format(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Spread.apply(grad, places, ctx.window, ctx.shape, ctx.format), None


class _Spread(torch.autograd.Function):
    """The numbers ``[B, C, H // h, W // w]`` at the places of the maxima in ``[B, C, H, W]``, and 0 elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, places: Tensor, window: Window, shape: torch.Size, layout: torch.memory_format
    ) -> Tensor:
        ctx.save_for_backward(places)
        ctx.window = window
        found, zero = _made(grad, window, shape, layout), grad.new_zeros(())
        for place in range(window[0] * window[1]):
            torch.where(places == place, grad, zero, out=_at(found, window, place))
        return found

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Taken.apply(cotangent, places, ctx.window), None, None, None, None


class _Taken(torch.autograd.Function):
    """The numbers of ``[B, C, H, W]`` at the places of the maxima: the adjoint of :class:`_Spread`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, window: Window) -> Tensor:
        ctx.save_for_backward(places)
        ctx.window, ctx.shape, ctx.format = window, x.shape, _format(x)
        found = _at(x, window, 0).clone()
        for place in range(1, window[0] * window[1]):
            torch.where(places == place, _at(x, window, place), found, out=found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Spread.apply(grad, places, ctx.window, ctx.shape, ctx.format), None, None


class Averaged(torch.autograd.Function):
    """The average of each window; of backward see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        ctx.window, ctx.shape, ctx.format = window, x.shape, _format(x)
        return F.avg_pool2d(x, window)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Shared.apply(grad, ctx.window, ctx.shape, ctx.format), None


class _Shared(torch.autograd.Function):
    """A number for each window, in equal parts at all places of it: the adjoint of :class:`Averaged`."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, window: Window, shape: torch.Size, layout: torch.memory_format) -> Tensor:
        ctx.window = window
        h, w = window
        found, part = _made(grad, window, shape, layout), grad / (h * w)
        rows, columns = grad.shape[2:]
        windows = found[:, :, : rows * h, : columns * w].unflatten(2, (rows, h)).unflatten(4, (columns, w))
        # one pass: torch's own kernel for channels-last takes an H200 2.2 ms of 7.1 of a VGG's step
        windows.copy_(part[:, :, :, None, :, None].expand_as(windows))
        return found

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return Averaged.apply(cotangent, ctx.window), None, None, None


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


def _pair(size: Any) -> Window:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _is_apart(module: Any) -> bool:
    window = _pair(module.kernel_size)
    stride = window if module.stride is None else _pair(module.stride)
    return stride == window and _pair(module.padding) == (0, 0) and not module.ceil_mode


def _is_ours(x: Tensor, window: Window) -> bool:
    """Whether a call is plain, has a derivative and at least one window."""
    if is_compiling() or is_jit_tracing() or not is_plain(x) or not (x.requires_grad and torch.is_grad_enabled()):
        return False
    plain = x.ndim == 4 and x.is_floating_point() and x.layout is torch.strided and x.numel() > 0
    return plain and x.shape[2] >= window[0] and x.shape[3] >= window[1]


def _format(x: Tensor) -> torch.memory_format:
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _made(grad: Tensor, window: Window, shape: torch.Size, layout: torch.memory_format) -> Tensor:
    """``[B, C, H, W]`` that is to be filled window by window; rows and columns that fill no window are 0."""
    found = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
    return found.zero_() if shape[2] % window[0] or shape[3] % window[1] else found


def _at(x: Tensor, window: Window, place: int) -> Tensor:
    """Of each window the number at one place: a view ``[B, C, H // h, W // w]``."""
    h, w = window
    rows, columns = x.shape[2] // h * h, x.shape[3] // w * w
    return x[:, :, place // w : rows : h, place % w : columns : w]
