"""Pooling: sums over windows, and maxima and means that keep little for backward, which ``sc.fuse`` puts in.

- ``nn.MaxPool2d`` keeps its input, and an index of 8 bytes for each maximum. The place of each maximum within its
  window is enough, in a byte.
- ``nn.AvgPool2d`` keeps its input, of which backward reads the shape alone.

Windows neither overlap nor leave a gap, and are not padded; others are left to torch.

Outputs, gradients and second derivatives are those of torch. Of equal maxima the first one counts, of several NaN the
last one. Calls without a derivative, compiled, traced and transformed ones, and other inputs are left to torch.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Dict, Tuple, Type, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore.context import is_plain
from spikecore.core.modules import pair
from spikecore.layers._packed import as_kind

#: Most numbers in a window of maximum pooling: a byte tells so many places apart.
_MOST = 256
#: Rows and columns of a window.
Window = Tuple[int, int]


class _Compact(nn.Module):
    """Base of both layers, beside torch's classes."""

    keeps: ClassVar[str]

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, C, H', W']``, as torch's."""
        pool: Any = self
        if _is_compactable(pool) and _is_ours(input, pool):
            y: Tensor = _Pooling.apply(input, pair(pool.kernel_size), isinstance(self, nn.MaxPool2d))
            return y
        return super().forward(input)  # type: ignore[no-any-return]  # torch's

    def extra_repr(self) -> str:
        """Text of torch's layer, and what is kept."""
        return f"{super().extra_repr()}, keeps {self.keeps}"


class CompactMaxPool2d(_Compact, nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` that keeps a byte for each maximum."""

    keeps = "places"


class CompactAvgPool2d(_Compact, nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` that keeps nothing but shapes."""

    keeps = "nothing"


_COMPACT: Dict[Type[nn.Module], Type[nn.Module]] = {nn.MaxPool2d: CompactMaxPool2d, nn.AvgPool2d: CompactAvgPool2d}
_PLAIN = {other: kind for kind, other in _COMPACT.items()}


def compact(module: nn.Module) -> nn.Module:
    """A pooling that keeps little, if there is one for a module; another module as it is."""
    kind = _COMPACT.get(type(module))
    return module if kind is None or not _is_compactable(module) else as_kind(module, kind)


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
    out, indices = F.max_pool2d(x, window, return_indices=True)
    (height, columns), width = window, x.shape[3]
    # each pass over the indices takes the time of its bytes; what they lose of their digits is gone from differences
    dtype = torch.int16 if height * width < 2**15 else torch.int64
    top, left = (torch.arange(n, device=x.device) * size for n, size in zip(out.shape[2:], window))
    offsets = indices.to(dtype).sub_((top[:, None] * width + left).to(dtype))
    row = offsets.div(width, rounding_mode="floor")
    return out, offsets.sub_(row, alpha=width - columns).to(torch.uint8)


def _is_compactable(pool: Any) -> bool:
    """True if little is enough for backward: windows neither overlap nor leave a gap, and the pooled values are the
    only output. Numbers may be set at any time.
    """
    window, stride = pair(pool.kernel_size), pair(pool.stride or pool.kernel_size)  # torch takes () for none
    if pool.ceil_mode or window != stride or pair(pool.padding) != (0, 0):
        return False
    if isinstance(pool, nn.AvgPool2d):
        return pool.divisor_override is None
    return pair(pool.dilation) == (1, 1) and not pool.return_indices and 1 < math.prod(window) <= _MOST


def _is_ours(x: Tensor, pool: Any) -> bool:
    """True if a call is plain, has a derivative and at least one window; an image is as wide as a window."""
    if not is_plain(x) or not (x.requires_grad and torch.is_grad_enabled()):
        return False
    usual = x.ndim == 4 and x.is_floating_point() and x.layout is torch.strided and x.numel() > 0
    h, w = pair(pool.kernel_size)  # torch reports windows that are larger than an image
    return usual and x.shape[2] >= h and x.shape[3] >= w


class SumPool2d(nn.Module):
    """Sums over windows, ``[B, C, H, W] -> [B, C, H', W']``.

    kernel_size: of a window, one number or ``(height, width)``.
    stride: from window to window; None: ``kernel_size``.
    padding: zeros at each side.
    """

    def __init__(
        self,
        kernel_size: Union[int, Tuple[int, int]],
        stride: Union[int, Tuple[int, int], None] = None,
        padding: Union[int, Tuple[int, int]] = 0,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        """The sums."""
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding, divisor_override=1)

    def extra_repr(self) -> str:
        """The window."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
