"""Tensors whose memory holds their values, materialised from those whose memory does not.

Kernels read memory, and some tensors of torch are more than their memory, or have none: the memory of lazily negated
views (torch's neg bit) has the wrong sign, the zeros that autograd passes on (``torch._efficientzerotensor``) and
fake tensors have no memory, and a storage can be freed under its tensors (``untyped_storage().resize_(0)``, as sharded
training does).
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from spikecore.backend import Unsupported
from spikecore.lang._plain import is_batched_by_autograd


def resolved(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors (or None), each with memory that holds its values.

    Raises ``ValueError`` for one that has no memory and no values either. Where a tensor is on another device than the
    call, even "meta", is for others to say.
    """
    try:
        if True not in [t is not None and (t.is_neg() or not t.data_ptr()) for t in tensors]:
            return tensors
    except RuntimeError:  # tensors wrapped by functorch raise on data_ptr()
        pass
    return [None if tensor is None else _with_memory(not_negated(tensor)) for tensor in tensors]


def not_negated(tensor: Tensor) -> Tensor:
    """The tensor, or what a lazily negated view stands for."""
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _with_memory(tensor: Tensor) -> Tensor:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    try:
        there = tensor.data_ptr() != 0
    except RuntimeError:
        there = False
    if not there and is_batched_by_autograd(tensor):
        raise Unsupported(
            "a kernel was given the gradients of several outputs at once (is_grads_batched=True of autograd.grad, "
            "vectorize=True of jacobian) and takes those of one; ask for one after the other, or choose backend='torch'"
        )
    if not there:
        raise ValueError(
            f"a kernel was given a {tensor.dtype} tensor of shape {list(tensor.shape)} that has no memory: its storage "
            "was freed (untyped_storage().resize_(0)), or it stands for another tensor (a FakeTensor, a tensor kept "
            "from inside torch.func); give a tensor with values"
        )
    return tensor
