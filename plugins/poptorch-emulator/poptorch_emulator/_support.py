"""Which operations PopTorch 3.4 accepts, whatever version of torch they come from.

Composite functions of torch arrive decomposed, and into other operations in another version of torch. So beside the
operations of :mod:`handlers` those are accepted that some version of torch decomposes them into: where PopTorch handles
a function as one operation, and where torch 2.0.1 has a kernel for every device. ``add_``, ``add.out`` and
``add.Tensor`` are ``add``.

What PopTorch silently computes differently from torch is refused here, or computed as it does in :mod:`_popart`.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor

from ._errors import Error, cpp_error, not_modelled, py_error
from ._replay import base_name
from .handlers import HANDLERS, WHOLE

#: Their result has a shape that depends on values, and torch infers none.
_DYNAMIC = frozenset(("masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"))

#: What some version of torch decomposes operations with a handler into.
_PARTS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _ctc_loss _index_put_impl _native_batch_norm_legit
    _native_batch_norm_legit_no_training _to_copy _unsafe_index _unsafe_index_put fill zero lift lift_fresh copy
    native_dropout new_empty new_empty_strided empty_like rand_like randint_like randn_like scalar_tensor slice_scatter
    max_pool2d_with_indices max_pool3d_with_indices uniform normal exponential random _cdist_forward
"""
_PLAIN = (name if name.startswith("__") else name.rstrip("_") for name in HANDLERS)
HANDLED = frozenset((*_PLAIN, *(name.split(".")[0].rstrip("_") for name in WHOLE), *_PARTS.split()))
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
    """Whether torch decomposes this operation into others."""
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
    """Whether PopTorch has a handler for this overload."""
    name = base_name(func)
    plain = name if name.startswith("__") else name.rstrip("_")
    return plain in HANDLED


#: PopTorch 3.4 gets the decompositions of this torch.
_POPTORCHS_TORCH = torch.__version__.startswith("2.0.")


def of_poptorch(name: str, function: str) -> bool:
    """Whether PopTorch meets an operation where ``function`` was called, and not only this version of torch does."""
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
