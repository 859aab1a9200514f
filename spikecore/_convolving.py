"""Convolution whose backward computes the weight's gradient first.

``nn.Conv2d`` computes the gradient of its input first, and has that, its input and the workspace of the weight's
gradient in memory at once. The weight's gradient is all that the input is for: where the input is kept as bits
(``sc.packed_spikes``), it is unpacked, read, and gone before the gradient of the input is there. With a GPU's libraries
the two are calls of their own in either order, so this takes no longer.

Rules of this module: outputs and gradients are torch's, by the same calls. Calls that are not plain, without the two
derivatives, traced by a compiler, or on another device than a GPU are left to torch.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikecore._base.autocast import autocast_dtype, no_autocast
from spikecore.lang._plain import is_compiling, is_jit_tracing, is_plain

_backward: Any = torch.ops.aten.convolution_backward
#: Stride, padding, dilation, groups.
Form = Tuple[Any, Any, Any, int]


class WeightFirstConv2d(nn.Conv2d):
    """:class:`torch.nn.Conv2d` that computes the weight's gradient first."""

    def forward(self, input: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, D, H', W']``."""
        weight, bias = self.weight, self.bias
        # its numbers may be set after sc.fuse
        if not (_stands_for(self) and _is_ours(input, weight)):
            return super().forward(input)
        dtype = autocast_dtype(input.device.type)
        if dtype is not None and input.dtype is not torch.float64:
            input, weight, bias = input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        form = (self.stride, self.padding, self.dilation, self.groups)
        return Convolved.apply(input, weight, bias, form)  # type: ignore[no-any-return]  # torch says nothing


class Convolved(torch.autograd.Function):
    """A convolution; of backward see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor], form: Form) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.form, ctx.sizes = form, None if bias is None else [bias.shape[0]]
        return F.conv2d(x, weight, bias, *form)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.form
        wants, shape = ctx.needs_input_grad, x.shape
        how = (stride, padding, dilation, False, [0, 0], groups)
        _, of_weight, of_bias = _backward(grad, x, weight, ctx.sizes, *how, [False, wants[1], wants[2]])
        del x
        of_input = _of_input(grad, weight, shape, ctx.form) if wants[0] else None
        return of_input, of_weight if wants[1] else None, of_bias if wants[2] else None, None


def _of_input(grad: Tensor, weight: Tensor, shape: torch.Size, form: Form) -> Tensor:
    """The gradient of an input of this shape.

    Torch's function for it wants an input, which it would copy into the layout of the others; the transposed
    convolution is the same call of the library without one.
    """
    stride, padding, dilation, groups = form
    sizes = zip(grad.shape[2:], stride, padding, dilation, weight.shape[2:])
    reached = [(n - 1) * step - 2 * pad + apart * (k - 1) + 1 for n, step, pad, apart, k in sizes]
    rest = [size - least for size, least in zip(shape[2:], reached)]
    # a caller may run backward under autocast
    with no_autocast(grad.device.type):
        return F.conv_transpose2d(grad, weight, None, stride, padding, rest, groups, dilation)


def defer_input(module: nn.Module) -> None:
    """Have a convolution compute the weight's gradient first; other modules stay as they are."""
    if type(module) is nn.Conv2d and _stands_for(module):
        module.__class__ = WeightFirstConv2d


def restore(module: nn.Module) -> None:
    """Undo :func:`defer_input`."""
    plain: Any = nn.Conv2d
    if type(module) is WeightFirstConv2d:
        module.__class__ = plain


def _stands_for(module: Any) -> bool:
    """Whether a convolution pads with zeros, by numbers, of which it has one for each dimension."""
    sizes = (module.stride, module.padding, module.dilation)
    return module.padding_mode == "zeros" and all(type(size) is tuple and len(size) == 2 for size in sizes)


def _is_ours(x: Tensor, weight: Tensor) -> bool:
    if is_compiling() or is_jit_tracing() or not (is_plain(x) and is_plain(weight)) or not torch.is_grad_enabled():
        return False
    # of complex numbers torch makes several convolutions, and has no backward of one
    plain = x.is_cuda and x.ndim == 4 and x.is_floating_point() and x.numel() > 0
    return plain and x.requires_grad and weight.requires_grad
