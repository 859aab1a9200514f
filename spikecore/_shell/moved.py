"""Statistics of a batch normalisation: those that kernels of a backend find, and how the running ones are moved."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from spikecore.dtypes import compute_dtype
from spikecore.lang._plain import is_compiling


class Running(NamedTuple):
    """The running statistics of a batch normalisation, and how far a batch moves them."""

    mean: Tensor
    variance: Tensor
    #: Calls so far, to which one is added; None where they are not counted, or counted already.
    calls: Optional[Tensor]
    factor: float


#: Mean and 1 / sqrt(variance + eps) of ``[T, B, C, ...]`` per channel, by which the running statistics have been moved:
#: ``statistics(x, eps, running)``. None where others are to compute them.
Statistics = Callable[[Tensor, float, Optional[Running]], Optional[Tuple[Tensor, Tensor]]]

#: Tells autograd that a tensor was written by other means than torch's; torch 2.0 has no such function.
_written: Any = getattr(torch.autograd.graph, "increment_version", None)
#: Whether kernels may find statistics at all.
BY_KERNELS = _written is not None


class Held(NamedTuple):
    """The tensors of a batch normalisation, None where it has none."""

    weight: Optional[Tensor]
    bias: Optional[Tensor]
    mean: Optional[Tensor]
    variance: Optional[Tensor]
    calls: Optional[Tensor]


def held_by(norm: Any) -> Optional[Held]:
    """The tensors that a batch normalisation has as parameters and buffers; None where one of them is computed, as by
    ``torch.nn.utils.parametrize``.
    """
    own, buffers = norm._parameters, norm._buffers
    try:
        return Held(
            own["weight"],
            own["bias"],
            buffers["running_mean"],
            buffers["running_var"],
            buffers["num_batches_tracked"],
        )
    except KeyError:
        return None


def running_of(norm: Any, own: Held, device: torch.device) -> Optional[Running]:
    """The running statistics of ``norm``, as a kernel can move them; None where torch has to."""
    mean, variance, count = own.mean, own.variance, own.calls
    # without a momentum it follows from the count, which a kernel would have to wait for
    if _written is None or mean is None or variance is None or norm.momentum is None or mean.dtype != variance.dtype:
        return None
    for value in (mean, variance):
        if value.is_inference() or not value.is_contiguous():
            return None
    if count is not None and (count.is_inference() or count.device != device or count.dtype != torch.int64):
        return None
    return Running(mean, variance, count, norm.momentum)


def written(running: Optional[Running]) -> None:
    """Tell autograd that a kernel has moved running statistics."""
    for value in () if running is None else running[:3]:
        if value is not None:
            _written(value)


def by_backend(norm: Any, x: Tensor, statistics: Statistics) -> Optional[Tuple[Tensor, Tensor]]:
    """Mean and 1 / sqrt(variance + eps) by the backend's own kernels, which also move the running statistics."""
    if _written is None or is_compiling():
        return None
    running = None
    if norm.training and norm.track_running_stats and not (norm.running_mean is None is norm.num_batches_tracked):
        own = Held(norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked)
        running = running_of(norm, own, x.device)
        if running is None:
            return None
    found = statistics(x, norm.eps, running)
    if found is not None:
        written(running)
    return found


def counted(norm: Any) -> Union[float, Tensor]:
    """By which part of the way a batch moves the running statistics. The batch is counted first."""
    count = norm.num_batches_tracked
    if count is not None:
        count.add_(1)
    if norm.momentum is not None or count is None or norm.running_var is None:
        return norm.momentum or 0.0
    if not is_compiling():
        return 1.0 / float(count)
    # torch.compile cannot follow a number that is read from memory, so the division stays one of tensors
    return torch.reciprocal(count.to(compute_dtype(norm.running_var.dtype)))


def move(norm: Any, mean: Tensor, variance: Tensor, factor: Union[float, Tensor]) -> None:
    """Move the running statistics towards those of a batch."""
    with torch.no_grad():
        for running, value in ((norm.running_mean, mean), (norm.running_var, variance)):
            if isinstance(factor, Tensor):
                # torch wants the factor in the dtype of what it moves, and 16 bits would round it
                running.copy_(running.to(factor.dtype).lerp(value.to(factor.dtype), factor))
            else:
                running.lerp_(value.to(running.dtype), factor)
