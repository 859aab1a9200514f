"""Gradients of average pooling that torch has wrong in one of the forms of a step.

Compiled, where a window reaches beyond the image: with ``ceil_mode=True`` the last window of a row may hold fewer
numbers than the others, and it is divided by how many it holds. torch.compile divides the gradient of such a window by
the size of a whole one (pytorch/pytorch issue 198119, torch 2.11 to 2.14, CPU and CUDA), so the compiled gradient is
too small and nothing says so. A pass over the joint graph of forward and backward mends it: without padding,
``count_include_pad=False`` is the same average, whose gradient torch.compile has right; with padding the network is
not compiled.

Channels-last, with padding: the CUDA kernel of torch before July 2026 gives gradients to the wrong pixels
(pytorch/pytorch issue 188344). Such a network keeps its layout where a small pooling shows that this torch does so.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx, nn

from spikecore.backend import Unsupported

_BACKWARD = {torch.ops.aten.avg_pool2d_backward.default: 2, torch.ops.aten.avg_pool3d_backward.default: 3}
#: Poolings that torch computes by averages.
_BY_AVERAGE = ("LPPool1d", "LPPool2d", "LPPool3d")
#: What is wrong, and the way out.
WAY_OUT = (
    "torch.compile computes a wrong gradient of average pooling with ceil_mode=True and count_include_pad=True where a "
    "window reaches beyond the padded image (pytorch/pytorch issue 198119); use count_include_pad=False there, or "
    "ceil_mode=False"
)


def change(graph: fx.Graph) -> None:
    """Have windows that reach beyond the image divided by what they hold. Raises Unsupported where that cannot be."""
    for node in graph.nodes:
        dims = _BACKWARD.get(node.target)
        if dims is None:
            continue
        grad, x, kernel, stride, padding, ceil_mode, counts_padding, divisor = node.args
        if not (ceil_mode and counts_padding and divisor is None):
            continue
        windows = zip(
            grad.meta["val"].shape[-dims:],
            x.meta["val"].shape[-dims:],
            _each(kernel, dims),
            _each(stride or kernel, dims),
            _each(padding, dims),
        )
        if not any((out - 1) * step + size > held + 2 * pad for out, held, size, step, pad in windows):
            continue
        if any(_each(padding, dims)):
            raise Unsupported(WAY_OUT)
        node.args = (*node.args[:6], False, None)


def _each(sizes: Any, dims: int) -> Any:
    """One number for each dimension: of one alone, or of none, torch takes it for all."""
    return list(sizes) if len(sizes) == dims else [*(sizes or [0])] * dims


def clips(module: Any) -> bool:
    """Whether a module is a pooling that may need :func:`change`."""
    by_average = type(module).__name__ in _BY_AVERAGE
    pools = by_average or isinstance(module, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d))
    whole = getattr(module, "count_include_pad", True) and getattr(module, "divisor_override", None) is None
    return bool(pools and module.ceil_mode and whole)


def misplaced_channels_last(net: nn.Module) -> bool:
    """Whether a pooling module of ``net`` would give its gradient to the wrong pixels, were its input channels-last. A
    pooling that a ``forward`` calls as a function is not seen.
    """
    padded = any(isinstance(one, nn.AvgPool2d) and any(_each(_sizes(one.padding), 2)) for one in net.modules())
    return padded and any(_misplaces(device) for device in {parameter.device for parameter in net.parameters()})


@functools.lru_cache(maxsize=None)
def _misplaces(device: torch.device) -> bool:
    if device.type == "meta":
        return False
    x = torch.zeros(1, 2, 4, 4, device=device).contiguous(memory_format=torch.channels_last).requires_grad_()
    with torch.enable_grad():
        out = nn.functional.avg_pool2d(x, 2, padding=1)
        (grad,) = torch.autograd.grad(out[:, :, 0, 0].sum(), x)
    # the first of the windows of four holds the first pixel, and padding
    right = torch.zeros_like(grad)
    right[:, :, 0, 0] = 0.25
    return not torch.equal(grad, right)


def _sizes(sizes: Any) -> Any:
    return sizes if isinstance(sizes, (tuple, list)) else [sizes]
