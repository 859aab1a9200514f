"""Which functions of torch PopTorch 3.4 accepts, whatever version of torch they come from.

Rules of this module:

- Composite functions of torch arrive decomposed, and into other operations in another version of torch. So beside the
  operations of :mod:`handlers` those are accepted that some version of torch decomposes them into: where PopTorch
  handles a function as one operation, and where torch 2.0.1 has a kernel for every device. ``add_``, ``add.out`` and
  ``add.Tensor`` are ``add``.
- What PopTorch silently computes differently from torch is refused here, or computed as it does in :mod:`_compute`.
- A built-in loss marks its result as the loss, as every one of PopTorch's handlers for them does. ``nll_loss``, of
  which ``cross_entropy`` consists, is marked where it is recorded. With probabilities as targets ``cross_entropy`` does
  not call it, so there is no loss; the term of label smoothing is added after the mark.
- A function without a handler is refused, also if torch would decompose it into operations that have one.
- An ``autograd.Function`` in a model that is trained is refused: PopTorch records its forward, never calls its
  backward, and says nothing.
- ``torch.zeros`` and its like make tensors of the device if no device is named. PopTorch replaces them in the module
  ``torch`` alone: a name that was bound before, as by ``from torch import zeros``, still makes a tensor of the host.
"""

from __future__ import annotations

import functools
import logging
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

from ._compute import base_name, in_float32
from ._errors import Error, cpp_error, not_modelled, py_error
from ._graph import BUILT_IN, reduced
from ._tensor import DEVICE, IpuTensor
from .arguments import leaves
from .handlers import HANDLERS, WHOLE

if TYPE_CHECKING:
    from ._trace import Trace


#: Their result has a shape that depends on values, and torch infers none.
_DYNAMIC = frozenset(("masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"))

#: What some version of torch decomposes operations with a handler into.
_PARTS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _ctc_loss _index_put_impl _native_batch_norm_legit
    _native_batch_norm_legit_no_training _to_copy _unsafe_index _unsafe_index_put fill zero lift lift_fresh copy
    native_dropout new_empty new_empty_strided empty_like rand_like randint_like randn_like scalar_tensor slice_scatter
    max_pool2d_with_indices max_pool3d_with_indices uniform normal exponential random _cdist_forward
"""


def _plain(name: str) -> str:
    """The name of an operation that may be in place."""
    return name if name.startswith("__") else name.rstrip("_")


HANDLED = frozenset((*map(_plain, HANDLERS), *(name.split(".")[0].rstrip("_") for name in WHOLE), *_PARTS.split()))
#: Functions of torch that PopTorch takes: it handles them, or what torch 2.0.1 decomposes them into. A newer torch
#: decomposes some into operations that PopTorch does not know, and these are accepted inside.
TAKEN = frozenset(
    """
    bilinear cosine_similarity embedding_bag gru gru_cell lstm lstm_cell multi_head_attention_forward rnn_relu
    rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention
    """.split()
)
#: Operations that PopTorch takes, and that are not modelled here: torch infers no shape without values.
NOT_MODELLED = frozenset(("_ctc_loss",))
#: Operations of layers with weights -> the position of the argument whose dtype the result has on the device, where
#: float16 meets float32. It computes in float32.
MIXED = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "mv": 0, "addmv": 1}
#: torch has a kernel for every device that calls operations with a handler.
EXPLICIT = frozenset(("isinf",))
#: Constants, although they take their shape from a tensor: they are an ``empty`` that is filled.
SHAPED = frozenset(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided".split()
)
#: Never constant.
RANDOM = frozenset(
    """
    rand rand_like randn randn_like randint randint_like randperm normal bernoulli uniform exponential random
    native_dropout dropout rrelu_with_noise
    """.split()
)
_VARIANCES = frozenset(("var", "std", "var_mean", "std_mean"))


def check_arguments(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """Raise poptorch.Error for arguments that PopTorch ignores, or that make its compiler fail."""
    name = base_name(func).rstrip("_")
    if name == "triu":
        raise cpp_error("aten::triu is only supported within constant expressions.")
    if name in ("upsample_linear1d", "upsample_trilinear3d"):
        raise cpp_error(f"Unsupported upsample mode aten::{name}: currently only 'nearest' is supported")
    if name == "upsample_bicubic2d" and args[2]:
        raise cpp_error("Only support align_corners=False.")
    if name == "upsample_bilinear2d":
        (height, width), (to_height, to_width) = args[0].shape[-2:], args[1]
        if to_height * width != to_width * height:
            raise py_error(
                f"PopTorch scales both dimensions of bilinear upsampling by one factor, without a word: {height} to "
                f"{to_height}, and {width} to {to_width}, are two"
            )
    if name == "div" and kwargs.get("rounding_mode") is not None:
        raise py_error(
            f"PopTorch ignores rounding_mode={kwargs['rounding_mode']!r} of torch.div, without a word; write "
            "torch.floor(a / b), or torch.trunc(a / b)"
        )
    if name in _VARIANCES and "correction" in kwargs and kwargs["correction"] not in (None, 0, 1):
        raise py_error(
            f"PopTorch computes torch.{name} with correction={kwargs['correction']} as with 1, without a word; give 0 "
            "or 1, and multiply by the factor"
        )
    if name == "floor_divide" and not any(_floating(value) for value in args):
        raise py_error(
            "integers cannot be divided by // on an IPU: PopTorch makes it a division and a floor, which takes no "
            "integers; write torch.floor(a / b).int()"
        )


def _floating(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


@functools.lru_cache(maxsize=None)
def composed(func: Any) -> bool:
    """True if torch decomposes this operation into others."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def check_shape(name: str) -> None:
    """Raise PopTorch's error for an operation whose result has no constant shape."""
    if name == "nonzero":
        raise cpp_error(
            "Operations using aten::nonzero are unsupported because the output shape is determined by the tensor "
            "values. The IPU cannot support dynamic output shapes."
        )
    if name in _DYNAMIC:
        raise no_shape(name)


def no_shape(name: str) -> Error:
    """PopTorch's error for an operation whose result has a shape that torch cannot infer."""
    return cpp_error(
        f"Type inference failed for aten::{name} because the operator doesn't have an implementation for the Meta "
        "backend."
    )


def supported(func: Any) -> bool:
    """True if PopTorch has a handler for this overload."""
    return _plain(base_name(func)) in HANDLED


#: PopTorch 3.4 gets the decompositions of this torch.
_POPTORCHS_TORCH = torch.__version__.startswith("2.0.")


def of_poptorch(name: str, function: str) -> bool:
    """True if PopTorch meets an operation where ``function`` was called, and not only this version of torch does."""
    return _POPTORCHS_TORCH or not function or function.strip("_").endswith(name.strip("_"))


def not_taken(name: str, function: str) -> Error:
    """An error for an operation that this torch makes of a function, so that nothing is known of PopTorch."""
    return not_modelled(
        f"torch.{function} on torch {torch.__version__}",
        f"it consists of aten::{name} here, which PopTorch has no handler for, and may consist of others in torch "
        "2.0.1, which PopTorch is for",
    )


def unsupported(names: List[str]) -> Error:
    """PopTorch's error for operations without a handler."""
    return cpp_error(
        f"Unsupported ops found in compiled model: [{', '.join(f'aten::{name}' for name in names)}]. Not all "
        "operations are supported yet by Graphcore's PyTorch compiler. If you believe any of these should be, please "
        "report this message to support@graphcore.ai."
    )


#: Composite functions without a handler. torch decomposes them into operations that have one, so they are refused here.
REFUSED = frozenset(("huber_loss", "gaussian_nll_loss", "multi_margin_loss"))
#: Functions with a class weight that PopTorch refuses -> the name it has for them.
_WEIGHTED = {
    **dict.fromkeys(("cross_entropy", "cross_entropy_loss"), "cross_entropy_loss"),
    **dict.fromkeys(("nll_loss", "nll_loss_nd"), "nll_loss_nd"),
}
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
        if not self.trace.listens or not leaves([list(args), kwargs], IpuTensor):
            return func(*args, **kwargs)
        if name in REFUSED:
            self.trace.refuse(name)
        if name in _WEIGHTED:
            _check_weighted(name, args, kwargs)
        if name == "cross_entropy" and _smoothed_mean(args, kwargs):
            raise no_shape("masked_select")  # torch 2.0 decomposes cross_entropy into it here
        if name == "ctc_loss" and _argument(args, kwargs, 5, "reduction", "mean") in ("none", 0):
            raise cpp_error('Unsupported reduction for operator aten::ctc_loss: "none"')
        if name in ("one_hot", "bincount"):
            return (one_hot if name == "one_hot" else bincount)(*args, **kwargs)
        if name == "take_along_dim":
            return self.trace.record(name, take_along_dim, args, kwargs)
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._index(args[1]), *args[2:])
        if name in _CONVOLUTIONS and len({leaf.dtype for leaf in leaves([list(args), kwargs], IpuTensor)}) > 1:
            # PopTorch takes it as one operation; torch compares dtypes before it is one
            dtype = _argument(args, kwargs, 0, "input").dtype
            return self.trace.record("convolution", partial(in_float32, func, dtype), args, kwargs)
        with self.trace.calling(name, name in BUILT_IN or name in TAKEN):
            result = func(*args, **kwargs)
        if name in BUILT_IN and isinstance(result, IpuTensor):
            return self.trace.record("identity_loss", reduced, (result, "none"), {}, loss=name)
        return result

    def _index(self, index: Any) -> Any:
        """The index with its lists as constants of the graph: torch would make device tensors without values."""
        if isinstance(index, tuple):
            return tuple(self._index(item) for item in index)
        if isinstance(index, list) and not leaves(index, Tensor):
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
        if trace.listens and leaves(list(args), IpuTensor):
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
    """True if this is the mean of cross entropies of classes, with label smoothing."""
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


FACTORIES = (
    "arange empty full full_like linspace logspace normal ones rand randint randn randperm range tensor zeros "
    "zeros_like"
).split()

_log = logging.getLogger("poptorch")


@contextmanager
def on_device_by_default(trace: Trace) -> Iterator[None]:
    """Replace the functions inside, and have ``torch.distributions`` not validate its arguments: it would read them."""
    validated = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    originals = {name: getattr(torch, name) for name in FACTORIES}
    for name, original in originals.items():
        setattr(torch, name, _forced(trace, name, original))
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validated)
        for name, original in originals.items():
            setattr(torch, name, original)


def _forced(trace: Trace, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        if not trace.listens:
            return original(*args, **kwargs)
        from_tensors = name == "normal" and leaves([list(args), kwargs], Tensor)
        if "device" not in kwargs and not from_tensors:
            _log.warning("No device set in torch.%s(): forcing to IPU", name)
            kwargs["device"] = DEVICE
        if name != "tensor" or torch.device(kwargs["device"]).type != DEVICE.type:
            return original(*args, **kwargs)
        # torch would fill it on the device, whose memory it cannot access
        del kwargs["device"]
        return original(*args, **kwargs).to(DEVICE)

    return factory
