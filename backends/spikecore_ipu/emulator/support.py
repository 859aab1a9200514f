"""The operations that PopTorch 3.4 has a handler for, by the names that torch's dispatcher has for them.

A function of torch that is made of others comes here in parts, and other parts in another version of torch. So the
table holds what the functions that PopTorch handles are made of, for every version. ``add_``, ``add.out`` and
``add.Tensor`` are ``add``.
"""

from __future__ import annotations

import functools
from typing import Any, List

import torch

from .errors import Error, cpp_error
from .replay import base_name

#: Their result has a shape that depends on values, and torch infers none.
_DYNAMIC = frozenset(("masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"))

_ARITHMETIC = """
    add sub rsub mul div floor_divide fmod remainder addcmul addcdiv neg reciprocal square sqrt rsqrt pow exp expm1 log
    log1p log2 log10 abs sign floor ceil round trunc frac sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh erf erfc eq ne gt ge lt le isnan logical_and logical_or logical_not bitwise_and bitwise_or bitwise_xor
    bitwise_not where masked_fill maximum minimum max min clamp clamp_min clamp_max amax amin aminmax argmax argmin topk
    sort
"""
_ACTIVATIONS = """
    relu hardtanh hardsigmoid hardswish sigmoid log_sigmoid_forward softplus elu gelu silu mish leaky_relu prelu
    _prelu_kernel threshold softmax _softmax log_softmax _log_softmax softshrink hardshrink rrelu rrelu_with_noise glu
"""
_SHAPES = """
    cat stack split split_with_sizes chunk unbind view reshape _reshape_alias _unsafe_view flatten permute transpose t
    squeeze unsqueeze expand repeat narrow slice select index index_put _index_put_impl _unsafe_index _unsafe_index_put
    index_fill index_select gather scatter scatter_add roll flip unfold triu as_strided clone detach copy fill zero
    alias lift lift_fresh _to_copy slice_scatter select_scatter contiguous pixel_shuffle
"""
_REDUCTIONS = """
    sum mean prod std var std_mean var_mean norm linalg_vector_norm logsumexp cumsum cumprod count_nonzero any all
    _cdist_forward
"""
_LAYERS = """
    linear addmm mm bmm baddbmm mv dot addmv matmul convolution _convolution embedding native_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update native_layer_norm
    native_group_norm native_dropout avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d_with_indices
    max_pool3d_with_indices adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d constant_pad_nd
    reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_bilinear2d upsample_bicubic2d
"""
_CREATION = """
    arange empty full full_like zeros zeros_like ones ones_like empty_like new_empty new_full new_zeros new_ones
    new_empty_strided empty_strided scalar_tensor rand rand_like randn randn_like randint randint_like randperm normal
    bernoulli uniform exponential random
"""
_LOSSES = """
    mse_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits nll_loss_forward nll_loss2d_forward
    soft_margin_loss _ctc_loss xlogy
"""
HANDLED = frozenset(" ".join((_ARITHMETIC, _ACTIVATIONS, _SHAPES, _REDUCTIONS, _LAYERS, _CREATION, _LOSSES)).split())
#: Only these overloads of an operation that is handled otherwise are not: bounds that are tensors.
NOT_HANDLED = frozenset(("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"))


@functools.lru_cache(maxsize=None)
def composed(func: Any) -> bool:
    """Whether torch makes this operation of others."""
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
    return plain in HANDLED and f"{plain}.{func._overloadname}" not in NOT_HANDLED


def unsupported(names: List[str]) -> Error:
    """PopTorch's error for operations without a handler."""
    return cpp_error(
        f"Unsupported ops found in compiled model: [{', '.join(f'aten::{name}' for name in names)}]. Not all "
        "operations are supported yet by Graphcore's PyTorch compiler. If you believe any of these should be, please "
        "report this message to support@graphcore.ai."
    )
