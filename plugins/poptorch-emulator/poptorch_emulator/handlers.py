"""The operations that PopTorch 3.4.0 registers with torch 2.0.1's dispatcher, read from its C++ registrations (MIT).

An operation on tensors of the device is dispatched to the first of these that applies:

1. Its name is in :data:`WHOLE`: PopTorch handles it as one operation, also where torch would decompose it.
2. torch has a kernel of it for ``CompositeExplicitAutogradNonFunctional``, ``CompositeExplicitAutograd`` or
   ``CompositeImplicitAutograd``: that runs, and what it calls is dispatched in turn.
3. PopTorch's fallback takes it, which needs a kernel for ``Meta``, for shapes, and a handler of its name. An operation
   in place has the handler of the name without ``_``, except :data:`ONLY_IN_PLACE` and :data:`OUT_OF_PLACE`.

An operation without a handler is an error, unless all its arguments are constant: then the host evaluates it.
"""

from __future__ import annotations

#: Handled as one operation: names with their overloads.
WHOLE = frozenset(
    """
    _local_scalar_dense _prelu_kernel _unsafe_view _weight_norm_interface adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d alias all amax amin any argsort avg_pool2d.out avg_pool3d.out
    baddbmm bilinear binary_cross_entropy_with_logits binary_cross_entropy_with_logits_backward bucketize.Scalar
    bucketize.Tensor bucketize.Tensor_out constant_pad_nd convolution convolution_backward copy_
    cosine_embedding_loss ctc_loss.IntList ctc_loss.Tensor detach dropout embedding empty.memory_format
    empty_strided expand feature_dropout feature_dropout_ frobenius_norm.dim frobenius_norm.out gather
    hinge_embedding_loss index.Tensor index_put index_put_ item kl_div l1_loss lstm.input margin_ranking_loss
    masked_fill.Scalar max max.dim max_pool1d max_pool2d max_pool3d maximum median.dim min min.dim minimum
    mse_loss native_group_norm native_layer_norm nll_loss2d_forward nll_loss_forward one_hot permute
    poisson_nll_loss repeat scatter.reduce scatter.reduce_out scatter.src scatter.src_out scatter.value
    scatter.value_out scatter.value_reduce scatter.value_reduce_out scatter_.reduce scatter_.src scatter_.value
    scatter_.value_reduce scatter_add scatter_add.out scatter_add_ scatter_reduce.two scatter_reduce.two_out
    scatter_reduce_.two select.int select_scatter select_scatter.out slice.Tensor smooth_l1_loss
    soft_margin_loss.out split_with_sizes squeeze squeeze.dim squeeze.dims squeeze_ squeeze_.dim squeeze_.dims
    take_along_dim take_along_dim.out topk transpose.int transpose_ triplet_margin_loss trunc unsqueeze
    """.split()
)
#: Operations, whatever their overload, with a handler.
HANDLERS = frozenset(
    """
    Int NumToTensor __and__ __or__ __xor__ _cdist_forward _convolution _embedding_bag _log_softmax _prelu_kernel
    _reshape_alias _softmax _unsafe_view _weight_norm abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d add addcdiv addcmul addmm addmv all amax amin any arange argmax argmin argsort
    as_strided asin asinh atan atan2 atanh avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bernoulli
    bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount bitwise_and bitwise_not bitwise_or
    bitwise_xor bmm broadcast_to bucketize cartesian_prod cat cdist ceil celu chunk clamp clamp_max clamp_min
    clone col2im constant_pad_nd contiguous conv2d convolution convolution_overrideable copy_ cos cosh
    cosine_embedding_loss cosine_similarity count_nonzero cross cross_entropy_loss ctc_loss cumprod cumsum
    detach div dot dropout einsum elu embedding embedding_bag eq erf erfc exp expand expand_as expm1
    exponential_ feature_dropout flatten flip floor floor_divide fmod frac frobenius_norm full full_like gather
    ge gelu glu group_norm gru gt hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss im2col index
    index_fill index_put index_reduce index_select instance_norm is_complex isnan kl_div l1_loss layer_norm le
    leaky_relu linalg_cross linalg_vector_norm linear log log10 log1p log2 log_sigmoid log_sigmoid_forward
    log_softmax logical_and logical_not logical_or logsumexp lstm lt margin_ranking_loss masked_fill matmul max
    max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
    maximum mean median meshgrid min minimum mish mkldnn_convolution mm mse_loss mul multilabel_soft_margin_loss
    mv nansum narrow native_batch_norm native_group_norm native_layer_norm ne neg new_full new_ones new_zeros
    nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd norm normal normal_ numpy_T one_hot ones
    ones_like pairwise_distance permute pixel_shuffle poisson_nll_loss pow prelu prod rand randint randn random_
    randperm reciprocal reflection_pad1d reflection_pad2d relu remainder repeat replication_pad1d
    replication_pad2d replication_pad3d reshape rnn_relu rnn_tanh roll round rrelu rrelu_with_noise rsqrt rsub
    scatter scatter_add scatter_reduce select selu sigmoid sign silu sin sinh size slice smooth_l1_loss
    soft_margin_loss softmax softplus softshrink sort split split_with_sizes sqrt square squeeze stack std
    std_mean sub sum t take_along_dim tan tanh tensordot threshold to topk transpose transpose_
    triplet_margin_loss triu true_divide trunc type_as unbind unfold uniform_ unsafe_chunk unsqueeze
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d var var_mean view where zeros zeros_like
    """.split()
)
#: These have a handler of their own and none without ``_``.
ONLY_IN_PLACE = frozenset(("copy_", "exponential_", "normal_", "random_", "uniform_"))
#: These are computed by another operation out of place.
OUT_OF_PLACE = {"zero_": "zeros_like", "fill_": "full_like"}


def handler_name(name: str) -> str:
    """The operation whose handler takes this one, by names without overloads: ``add`` for ``add_``."""
    if name in ONLY_IN_PLACE or name.startswith("__"):
        return name
    return OUT_OF_PLACE.get(name) or name.rstrip("_")
