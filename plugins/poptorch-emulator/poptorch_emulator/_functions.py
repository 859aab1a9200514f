"""Intercepts composite torch functions before torch decomposes them, because PopTorch has handlers for them.

Rules of this module:

- A built-in loss marks its result as the loss, as every one of PopTorch's handlers for them does. ``nll_loss``, of
  which ``cross_entropy`` consists, is marked where it is recorded. With probabilities as targets ``cross_entropy`` does
  not call it, so there is no loss; the term of label smoothing is added after the mark.
- A function without a handler is refused here, also if torch would decompose it into operations that have one.
- An ``autograd.Function`` in a model that is trained is refused: PopTorch records its forward, never calls its
  backward, and says nothing.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._errors import cpp_error, py_error
from ._losses import BUILT_IN, reduced
from ._replay import in_float32
from ._structure import leaves
from ._support import TAKEN, no_shape
from ._tensor import DEVICE, IpuTensor

if TYPE_CHECKING:
    from ._trace import Trace

#: Composite functions without a handler. torch decomposes them into operations that have one, so they are refused here.
REFUSED = frozenset(("huber_loss", "gaussian_nll_loss", "multi_margin_loss"))
#: Functions with a class weight that PopTorch refuses -> the name it has for them.
_WEIGHTED = {
    "cross_entropy": "cross_entropy_loss",
    "cross_entropy_loss": "cross_entropy_loss",
    "nll_loss": "nll_loss_nd",
}
_WEIGHTED["nll_loss_nd"] = "nll_loss_nd"
_CONVOLUTIONS = frozenset("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split())


class Functions(TorchFunctionMode):
    """Watches the functions of torch that a model calls while ``trace`` records."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self.trace.listens or not any(True for _ in leaves([list(args), kwargs], IpuTensor)):
            return func(*args, **kwargs)
        if name in REFUSED:
            self.trace.refuse(name)
        if name in _WEIGHTED:
            _check_weighted(name, args, kwargs)
        if name == "cross_entropy" and _smoothed_mean(args, kwargs):
            raise no_shape("masked_select")  # torch 2.0 decomposes cross_entropy into it here
        if name == "ctc_loss" and _argument(args, kwargs, 5, "reduction", "mean") in ("none", 0):
            raise cpp_error('Unsupported reduction for operator aten::ctc_loss: "none"')
        if name == "one_hot":
            return one_hot(*args, **kwargs)
        if name == "take_along_dim":
            return self.trace.record(name, take_along_dim, args, kwargs)
        if name == "bincount":
            return bincount(*args, **kwargs)
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._index(args[1]), *args[2:])
        if name in _CONVOLUTIONS and len({leaf.dtype for leaf in leaves([list(args), kwargs], IpuTensor)}) > 1:
            # PopTorch takes it as one operation; torch compares dtypes before it is one
            dtype = _argument(args, kwargs, 0, "input").dtype
            return self.trace.record("convolution", partial(in_float32, func, dtype), args, kwargs)
        with self.trace.calling(name), self.trace.whole(name in BUILT_IN or name in TAKEN):
            result = func(*args, **kwargs)
        if name in BUILT_IN and isinstance(result, IpuTensor):
            return self.trace.record("identity_loss", reduced, (result, "none"), {}, loss=name)
        return result

    def _index(self, index: Any) -> Any:
        """The index with its lists as constants of the graph: torch would make device tensors without values."""
        if isinstance(index, tuple):
            return tuple(self._index(item) for item in index)
        if isinstance(index, list) and not any(True for _ in leaves(index, Tensor)):
            return self.trace.constant(torch.as_tensor(index))
        return index


@contextmanager
def no_custom_backward(trace: Trace) -> Iterator[None]:
    """Refuse an ``autograd.Function`` of tensors of the device inside.

    A model may have bound ``Function.apply`` earlier, as in ``spike = Spike.apply``. So what is replaced is a function
    that ``apply`` looks up at each call.
    """
    utils: Any = torch._functorch.utils
    original = utils.unwrap_dead_wrappers

    def refused(args: Tuple[Any, ...]) -> Any:
        if trace.listens and any(True for _ in leaves(list(args), IpuTensor)):
            name = getattr(sys._getframe(1).f_locals.get("cls"), "__name__", "this")
            raise py_error(
                f"{name} is an autograd.Function: PopTorch would record its forward and never call its backward, so "
                "that what comes before it is not trained, without a word. Write the derivative into the forward: "
                "value.detach() + (x - x.detach()) * derivative.detach()"
            )
        return original(args)

    utils.unwrap_dead_wrappers = refused
    try:
        yield
    finally:
        utils.unwrap_dead_wrappers = original


def _argument(args: Tuple[Any, ...], kwargs: Dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _check_weighted(name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    if _argument(args, kwargs, 2, "weight") is not None:
        raise cpp_error(f'Parameter "weight" is unsupported for aten::{_WEIGHTED[name]}')
    scores = _argument(args, kwargs, 0, "input")
    if isinstance(scores, Tensor) and scores.dim() < 2:
        raise cpp_error(f"aten::{_WEIGHTED[name]} needs a batch dimension (Got shape {list(scores.shape)}).")


def _smoothed_mean(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """Whether this is the mean of cross entropies of classes, with label smoothing."""
    return bool(
        _argument(args, kwargs, 7, "label_smoothing", 0.0)
        and _argument(args, kwargs, 6, "reduction", "mean") == "mean"
        and not _argument(args, kwargs, 1, "target").is_floating_point()
    )


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """``torch.nn.functional.one_hot`` of integers that are int32 on the device."""
    if num_classes < 0:
        raise cpp_error("OneHot num classes must be specified and must be constant.")
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=DEVICE)).to(torch.int32)


def take_along_dim(input: Tensor, indices: Tensor, dim: Optional[int] = None) -> Tensor:
    """``torch.take_along_dim`` with indices that are int32 on the device."""
    return torch.take_along_dim(input, indices.long(), dim)


def bincount(input: Tensor, weights: Optional[Tensor] = None, minlength: int = 0) -> Tensor:
    """``torch.bincount`` of numbers below ``minlength``, without which the shape of the result is not known."""
    if not minlength:
        raise cpp_error(
            "Bincount `minlength` must be specified and must be a constant. On the IPU MK2 platform the minimum length "
            "is also the maximum length"
        )
    found = input.unsqueeze(-1) == torch.arange(minlength, device=DEVICE)
    return found.int().sum(0) if weights is None else (found.to(weights.dtype) * weights.unsqueeze(-1)).sum(0)
