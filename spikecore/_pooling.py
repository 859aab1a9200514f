"""Pooling that keeps little for backward, of windows that do not overlap.

- ``nn.MaxPool2d`` keeps its input, and for each maximum an index of 8 bytes: in front of a batch normalisation, which
  keeps the pooled numbers, more than all else of such a layer together. The place of each maximum within its window is
  enough, in a byte.
- ``nn.AvgPool2d`` keeps its input, of which backward reads the shape alone. Behind a neuron that normalises its own
  input nothing else keeps the spikes.

Rules of this module:

- Outputs, gradients and second derivatives are those of torch. Of equal maxima the first one counts, of several NaN the
  last one.
- Numbers of a module may be set after ``sc.fuse``; they are read at each call.
- Backward of what vmap or forward mode follows is written in operations that both know.
- What torch.compile traces is left to the compiler, which keeps places and drops inputs by itself; other inputs, calls
  without a derivative, transforms of torch.func, forward mode and tracing are left to torch.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Dict, Optional, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._base.bits import Whole
from spikecore.lang._plain import is_batched_by_autograd, is_compiling, is_jit_tracing, is_plain
from spikecore.layers._packed import Follow, of_average

#: Largest maximum pooling: each place of a window is a pass over a part of the input.
MOST = 16
#: Rows and columns of a window.
Window = Tuple[int, int]


class CompactMaxPool2d(nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` that keeps a byte for each maximum."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether a maximum pooling has windows that do not overlap, and not too large ones."""
        plain = _pair(module.dilation) == (1, 1) and not module.return_indices
        return _is_apart(module) and plain and 1 < math.prod(_pair(module.kernel_size)) <= MOST

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``."""
        ours = self.stands_for(self) and _is_ours(input, _pair(self.kernel_size))
        found: Tensor = Pooled.apply(input, _pair(self.kernel_size)) if ours else super().forward(input)
        return found

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        return known

    def extra_repr(self) -> str:
        """As before, and what is kept."""
        return f"{super().extra_repr()}, keeps places"


class CompactAvgPool2d(nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` that keeps nothing but shapes."""

    @staticmethod
    def stands_for(module: Any) -> bool:
        """Whether an average pooling has windows that do not overlap, and divides by their size."""
        return _is_apart(module) and module.divisor_override is None

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H // h, W // w]``."""
        ours = self.stands_for(self) and _is_ours(input, _pair(self.kernel_size))
        found: Tensor = Averaged.apply(input, _pair(self.kernel_size)) if ours else super().forward(input)
        return found

    def follow_spikes(self, known: Optional[Whole], follow: Follow) -> Optional[Whole]:
        """What comes out, for :func:`spikecore.pack`."""
        return of_average(self, known)

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
        return _spread(grad, places, ctx.window, ctx.shape, ctx.format), None


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
        if is_plain(cotangent) and not is_batched_by_autograd(cotangent):
            return _Taken.apply(cotangent, places, ctx.window), None, None, None, None
        found = _at(cotangent, ctx.window, 0)
        for place in range(1, math.prod(ctx.window)):
            found = torch.where(places == place, _at(cotangent, ctx.window, place), found)
        return found, None, None, None, None


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
        return _spread(grad, places, ctx.window, ctx.shape, ctx.format), None, None


class Averaged(torch.autograd.Function):
    """The average of each window; of backward see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        ctx.window, ctx.shape, ctx.format = window, x.shape, _format(x)
        return F.avg_pool2d(x, window)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if is_plain(grad) and not is_batched_by_autograd(grad):
            return _Shared.apply(grad, ctx.window, ctx.shape, ctx.format), None
        part = grad / math.prod(ctx.window)
        return _joined([part] * math.prod(ctx.window), ctx.window, ctx.shape), None


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
        # torch's own: vmap and forward mode follow it
        return F.avg_pool2d(cotangent, ctx.window), None, None, None


def _spread(grad: Tensor, places: Tensor, window: Window, shape: torch.Size, layout: torch.memory_format) -> Tensor:
    """What :class:`_Spread` computes."""
    if is_plain(grad) and not is_batched_by_autograd(grad):
        return _Spread.apply(grad, places, window, shape, layout)  # type: ignore[no-any-return]  # torch says nothing
    zero = torch.zeros((), dtype=grad.dtype, device=grad.device)
    return _joined([torch.where(places == place, grad, zero) for place in range(math.prod(window))], window, shape)


def _joined(parts: Sequence[Tensor], window: Window, shape: torch.Size) -> Tensor:
    """``[B, C, H, W]`` of the numbers at each place of the windows, and 0 where there is no window."""
    rows, columns = shape[2] // window[0], shape[3] // window[1]
    apart = torch.stack([*parts], -1).reshape(*shape[:2], rows, columns, *window).permute(0, 1, 2, 4, 3, 5)
    found = apart.reshape(*shape[:2], rows * window[0], columns * window[1])
    return F.pad(found, (0, shape[3] - found.shape[3], 0, shape[2] - found.shape[2]))


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
    # of one number or a sequence of one, which is meant for both
    h, *others = size if isinstance(size, (tuple, list)) else (size,)
    return operator.index(h), operator.index(others[0] if others else h)


def _is_apart(module: Any) -> bool:
    window = _pair(module.kernel_size)
    given = module.stride
    # torch takes an empty stride for none
    missing = given is None or (isinstance(given, (tuple, list)) and not given)
    stride = window if missing else _pair(given)
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
