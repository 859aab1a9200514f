"""Pooling: sums over windows, and maxima and means that keep little for backward, which ``sc.fuse`` puts in.

- ``nn.MaxPool2d`` keeps its input, and an index of 8 bytes for each maximum. The place of each maximum within its
  window is enough, in a byte.
- ``nn.AvgPool2d`` keeps its input, of which backward reads the shape alone.

Windows neither overlap nor leave a gap, and are not padded; others are left to torch.

Outputs, gradients and second derivatives are those of torch. Of equal maxima the first one counts, of several NaN the
last one. Calls without a derivative, traced and transformed ones, and other inputs are left to torch.

In a graph of torch.compile maxima of any windows, in one to three dimensions, are operations that the compiler makes
one kernel of in each direction (:class:`_InGraph`). Its own kernel for backward computes from an index where each
maximum came from, and it would keep the input of averages. A window of minus infinity alone that is padded has no
gradient there.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar, Dict, List, Sequence, Tuple, Type, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore.context import COMPILES, is_compiling, is_exporting, is_plain
from spikecore.core.modules import pair
from spikecore.layers._packed import as_kind

#: Most numbers in a window of maximum pooling: a byte tells so many places apart.
_MOST = 256
#: Layers of maximum pooling, and their dimensions.
_DIMS: Dict[Type[nn.Module], int] = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}
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
        in_graph = COMPILES and is_compiling() and not is_exporting()
        if in_graph and isinstance(self, nn.AvgPool2d) and _is_compactable(pool) and _is_usual(input, pool):
            return _Pooling.apply(input, pair(pool.kernel_size), False)  # type: ignore[no-any-return]  # the means
        if in_graph and _is_ours_in_graph(input, pool):
            return _InGraph.apply(input, *_windows(pool))  # type: ignore[no-any-return]  # the maxima
        return super().forward(input)  # type: ignore[no-any-return]  # torch's

    def extra_repr(self) -> str:
        """Text of torch's layer, and what is kept."""
        return f"{super().extra_repr()}, keeps {self.keeps}"


class CompactMaxPool1d(_Compact, nn.MaxPool1d):
    """:class:`torch.nn.MaxPool1d` that keeps a byte for each maximum in a compiled graph."""

    keeps = "places in a compiled graph"


class CompactMaxPool2d(_Compact, nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` that keeps a byte for each maximum."""

    keeps = "places"


class CompactMaxPool3d(_Compact, nn.MaxPool3d):
    """:class:`torch.nn.MaxPool3d` that keeps a byte for each maximum in a compiled graph."""

    keeps = "places in a compiled graph"


class CompactAvgPool2d(_Compact, nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` that keeps nothing but shapes."""

    keeps = "nothing"


_COMPACT: Dict[Type[nn.Module], Type[nn.Module]] = {
    nn.MaxPool1d: CompactMaxPool1d,
    nn.MaxPool2d: CompactMaxPool2d,
    nn.MaxPool3d: CompactMaxPool3d,
    nn.AvgPool2d: CompactAvgPool2d,
}
_PLAIN = {other: kind for kind, other in _COMPACT.items()}


def compact(module: nn.Module) -> nn.Module:
    """A pooling that keeps little, if there is one for a module; another module as it is."""
    kind = _COMPACT.get(type(module))
    if kind is None or not (_is_compactable(module) or _is_coded(module)):
        return module
    return as_kind(module, kind)


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

        saved = ctx.saved_tensors  # read once: a checkpointed part is computed again for it
        if saved:
            place = torch.arange(h * w, dtype=torch.uint8, device=grad.device).view(h, 1, w)
            is_here = apart(saved[0]) == (place.unsqueeze(-1) if ctx.last else place)
            parts = torch.where(is_here, apart(grad), torch.zeros((), dtype=grad.dtype, device=grad.device))
        else:
            parts = apart(grad / (h * w))
            parts = parts.expand(*parts.shape[: rows + 1], h, parts.shape[rows + 2], w, *parts.shape[rows + 4 :])
        first, (r, _, c, _), last = parts.shape[:rows], parts.shape[rows : rows + 4], parts.shape[rows + 4 :]
        image = parts.contiguous().view(*first, r * h, c * w, *last).permute(back)
        rest = width - image.shape[3], height - image.shape[2]
        return F.pad(image, (0, rest[0], 0, rest[1])) if any(rest) else image, None, None


def _shifts(size: int, stride: int, padding: int) -> Tuple[int, int]:
    """The first and the last window, counted from ``q``, that hold one of the inputs from ``stride * q`` to
    ``stride * (q + 1) - 1``.
    """
    return -((size - 1 - padding) // stride), (stride - 1 + padding) // stride


def _weights(sizes: Sequence[int], strides: Sequence[int], padding: Sequence[int]) -> Tuple[List[int], int]:
    """A place within a window as one number: what it counts along each dimension, and how many numbers there are.

    The numbers of the windows of :func:`_shifts` that do not hold an input are none of a place.
    """
    weights: List[int] = []
    count = 1
    for size, stride, pad in reversed([*zip(sizes, strides, padding)]):
        first, last = _shifts(size, stride, pad)
        weights.insert(0, count)
        count *= (last - first + 1) * stride
    return weights, count


class _InGraph(torch.autograd.Function):
    """The maximum of each window, ``[B, C, ...]``, by operations on each number alone, for a compiler to join."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sequence[int], strides: Sequence[int], padding: Sequence[int]) -> Tensor:
        # [B, rows, columns, C] of an input that is channels-last: what is made here then is, too
        last = not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
        lead, weights = ((slice(None),) if last else (...,)), _weights(sizes, strides, padding)[0]
        # the number of the first place
        first = sum((s * _shifts(k, s, p)[1] - p) * weight for k, s, p, weight in zip(sizes, strides, padding, weights))
        ends = [(n + 2 * p - k) // s * s + 1 for n, k, s, p in zip(x.shape[2:], sizes, strides, padding)]
        padded = x.movedim(1, -1) if last else x
        if any(padding):
            around = [n for p in reversed(padding) for n in (p, p)]
            padded = F.pad(padded, [0, 0, *around] if last else around, value=-math.inf)
        out = place = None
        corners = [*itertools.product(*map(range, sizes))]
        for corner in corners:
            at: Any = (*lead, *[slice(a, a + end, s) for a, end, s in zip(corner, ends, strides)])
            value = padded[at]
            if out is None or place is None:
                out, place = value, torch.full_like(value, first, dtype=torch.uint8)
                continue
            larger = (value > out) | (value != value)
            out = torch.where(larger, value, out)
            place = place.masked_fill(larger, first + sum(a * weight for a, weight in zip(corner, weights)))
        ctx.save_for_backward(place)
        ctx.windows, ctx.shape, ctx.last = (sizes, strides, padding), x.shape, last
        out = out.clone() if len(corners) == 1 else out  # type: ignore[union-attr]  # there is a corner
        return out.movedim(-1, 1) if last else out  # type: ignore[return-value, union-attr]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (sizes, strides, padding), (place,) = ctx.windows, ctx.saved_tensors
        n, weights = len(sizes), _weights(sizes, strides, padding)[0]
        shifts = [_shifts(k, s, p) for k, s, p in zip(sizes, strides, padding)]
        # inputs in groups of a stride
        lengths = [-(-size // s) for size, s in zip(ctx.shape[2:], strides)]
        grad, rows = (grad.movedim(1, -1), 1) if ctx.last else (grad, 2)
        before = [max(0, -least) for least, _ in shifts]
        behind = [max(0, lengths[k] + shifts[k][1] - grad.shape[rows + k]) for k in range(n)]
        around = [side for k in reversed(range(n)) for side in (before[k], behind[k])]
        if any(around):
            around = [0, 0, *around] if ctx.last else around
            grad, place = F.pad(grad, around), F.pad(place, around, value=_MOST - 1)

        def apart(x: Tensor, begin: Sequence[int]) -> Tensor:
            for k in range(n):
                x = x.narrow(rows + 2 * k, begin[k], lengths[k]).unsqueeze(rows + 2 * k + 1)
            return x

        own: Any = 0
        for k in range(n):
            along = torch.arange(strides[k], dtype=torch.uint8, device=grad.device) * weights[k]
            own = own + along.view([-1, *[1] * (2 * (n - 1 - k) + ctx.last)])
        total: Any = 0
        for shift in itertools.product(*[range(least, most + 1) for least, most in shifts]):
            begin = [a + b for a, b in zip(shift, before)]
            steps = [s * (most - a) for s, a, (_, most) in zip(strides, shift, shifts)]
            code = own + sum(step * weight for step, weight in zip(steps, weights))
            total = total + torch.where(apart(place, begin) == code, apart(grad, begin), 0)
        first, last = total.shape[:rows], total.shape[rows + 2 * n :]
        image = total.contiguous().view(*first, *[a * s for a, s in zip(lengths, strides)], *last)
        for k, size in enumerate(ctx.shape[2:]):
            image = image.narrow(rows + k, 0, size)
        image = image.contiguous()
        return image.movedim(-1, 1) if ctx.last else image, None, None, None


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
    if not isinstance(pool, (nn.MaxPool2d, nn.AvgPool2d)):
        return False
    window, stride = pair(pool.kernel_size), pair(pool.stride or pool.kernel_size)  # torch takes () for none
    if pool.ceil_mode or window != stride or pair(pool.padding) != (0, 0):
        return False
    if isinstance(pool, nn.AvgPool2d):
        return pool.divisor_override is None
    return pair(pool.dilation) == (1, 1) and not pool.return_indices and 1 < math.prod(window) <= _MOST


def keeps_little(pool: nn.Module) -> bool:
    """Tell whether eager calls of a pooling layer keep a byte for each window, or nothing."""
    return isinstance(pool, (CompactAvgPool2d, CompactMaxPool2d)) and _is_compactable(pool)


def _windows(pool: Any) -> Tuple[Tuple[int, ...], ...]:
    """Sizes, strides and paddings of the windows of maximum pooling, along each dimension."""
    settings = (pool.kernel_size, pool.stride or pool.kernel_size, pool.padding)
    return tuple([_along_all(size, _dims(pool)) for size in settings])


def _along_all(size: Any, dims: int) -> Tuple[int, ...]:
    numbers = (*size,) if isinstance(size, (tuple, list)) else (size,)
    return numbers * dims if len(numbers) == 1 else numbers


def _dims(pool: Any) -> int:
    """The dimensions of maximum pooling, 0 of another layer."""
    return next((dims for kind, dims in _DIMS.items() if isinstance(pool, kind)), 0)


def _is_coded(pool: Any) -> bool:
    """True if a byte tells the places within a window of maximum pooling apart, with one to spare for none."""
    dims = _dims(pool)
    if not dims or pool.ceil_mode or pool.return_indices or _along_all(pool.dilation, dims) != (1,) * dims:
        return False
    return _weights(*_windows(pool))[1] < _MOST


def _is_ours_in_graph(x: Tensor, pool: Any) -> bool:
    """True for a call with a derivative, of at least one window, whose places a byte tells apart."""
    if not (_is_coded(pool) and x.requires_grad and torch.is_grad_enabled() and x.is_floating_point()):
        return False
    usual = x.ndim == _dims(pool) + 2 and x.numel() > 0  # torch reports what windows and padding must not be
    return usual and all(2 * p <= k <= n + 2 * p for n, k, _, p in zip(x.shape[2:], *_windows(pool)))


def _is_ours(x: Tensor, pool: Any) -> bool:
    """True if a call is plain and has a derivative and at least one window."""
    return is_plain(x) and x.requires_grad and _is_usual(x, pool)


def _is_usual(x: Tensor, pool: Any) -> bool:
    """True for images that are as wide as a window, where gradients are on."""
    if not torch.is_grad_enabled():
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
