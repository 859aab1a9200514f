"""Statistics of batch normalisation: what an input is normalised by, and how the running ones are moved.

What is normalised, and how running statistics move, is what ``torch.nn.BatchNorm1d``, ``2d`` and ``3d`` do, over time
and batch together.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.batches import folded, unfolded
from spikecore.context import each_time, is_compiling, once
from spikecore.core.modules import has_own_hooks
from spikecore.dtypes import compute_dtype
from spikecore.words import a_kind

#: The normalisations that a neuron's kernel computes, and how many dimensions ``[T, B, C, ...]`` has for each.
DIMS: Dict[Any, Tuple[int, ...]] = {nn.BatchNorm1d: (3, 4), nn.BatchNorm2d: (5,), nn.BatchNorm3d: (6,)}
#: Tells autograd that a tensor was written by other means than torch's; torch 2.0 has no such function.
_written: Any = getattr(torch.autograd.graph, "increment_version", None)

#: The running mean and variance, the count of calls (None where they are not counted), and how far a batch moves them.
Running = Tuple[Tensor, Tensor, Optional[Tensor], float]
#: Mean and variance of ``[T, *N]`` for each channel along a dimension of a time step, None where torch is to compute
#: them: ``moments(x, dim)``.
Moments = Callable[[Tensor, int], Optional[Tuple[Tensor, Tensor]]]
#: Mean and 1 / sqrt(variance + eps) in the same way, by which the running statistics have been moved:
#: ``statistics(x, dim, eps, running)``. None where others are to compute them.
Statistics = Callable[[Tensor, int, float, Optional[Running]], Optional[Tuple[Tensor, Tensor]]]


class Norm(NamedTuple):
    """A batch normalisation, and its tensors; None where it has none."""

    module: Any
    weight: Optional[Tensor]
    bias: Optional[Tensor]
    mean: Optional[Tensor]
    variance: Optional[Tensor]
    calls: Optional[Tensor]
    #: A number for each channel that is to be added to the input, and is not: (x + shift) - mean(x + shift) = x -
    #: mean(x).
    shift: Optional[Tensor] = None


def check_norm(owner: str, norm: Any, name: str = "norm") -> None:
    """Refuse a module that is not one of torch's three batch normalisations, or that has hooks."""
    way_out = "leave it in front of the neuron: nn.Sequential(sc.layers.TimeBatched(conv, norm), neuron)"
    if isinstance(norm, nn.SyncBatchNorm):
        raise TypeError(
            f"{owner}: {name} is a SyncBatchNorm, whose statistics are those of all processes; a neuron computes those "
            f"of its own process. To synchronise, {way_out}"
        )
    if kind_of(norm) not in DIMS:
        raise TypeError(
            f"{owner}: {name} is {a_kind(norm)}; a neuron can take over nn.BatchNorm1d, nn.BatchNorm2d and "
            f"nn.BatchNorm3d themselves. Of another kind, {way_out}"
        )
    if has_own_hooks(norm):
        # nn.utils.weight_norm and prune make the weight in such a hook
        raise ValueError(
            f"{owner}: {name} is {a_kind(norm)} with hooks or a forward of its own, which a neuron that "
            f"normalises would pass over (nn.utils.weight_norm and prune make hooks); {way_out}"
        )
    if norm.num_features == 0:
        raise ValueError(f"{owner}: {name} has 0 channels, of which torch computes none; leave it out")


def is_plain_norm(module: nn.Module) -> bool:
    """True if a module is a batch normalisation that a neuron's kernel can compute."""
    return kind_of(module) in DIMS and not has_own_hooks(module)


def kind_of(norm: Any) -> Any:
    """The class whose ``forward`` normalises samples ``[T B, C, ...]``: that of a module, or the ``of_samples`` of a
    class whose own ``forward`` takes all steps.
    """
    kind = type(norm)
    return getattr(kind, "of_samples", kind)


def takes_batch(norm: Norm) -> bool:
    """True if a batch normalisation takes the statistics of its input, not the running ones."""
    return norm.module.training or norm.mean is None


class _Unseen(torch.autograd.Function):
    """A bias, beside a shift on which nothing depends. That gets a gradient of 0: DistributedDataParallel wants one."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, shift: Tensor) -> Tensor:
        return bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor]:
        return grad, torch.zeros_like(grad)


def norm_of(module: Any, shift: Optional[Tensor] = None) -> Norm:
    """A batch normalisation with the tensors that it has."""
    affine, buffers = module._parameters, module._buffers
    try:
        return Norm(
            module,
            affine["weight"],
            affine["bias"],
            buffers["running_mean"],
            buffers["running_var"],
            buffers["num_batches_tracked"],
            shift,
        )
    except KeyError:  # one is computed, as by nn.utils.parametrize
        statistics = module.running_mean, module.running_var, module.num_batches_tracked
        return Norm(module, module.weight, module.bias, *statistics, shift)


def fits(norm: Norm, x: Tensor, channel_dim: int) -> bool:
    """True if ``x``, ``[T, B, C, ...]`` or with ``channel_dim=-1`` ``[T, B, ..., C]``, is plain input of ``norm``;
    torch's own forward computes or refuses other.
    """
    module, shape = norm.module, x.shape
    channels, dims = module.num_features, len(shape)
    # a class that is in no table was made later, as by nn.utils.parametrize; of one number per channel torch computes
    # no variance, and says so
    has_dims = dims in DIMS.get(kind_of(module), ()) if channel_dim == 1 else dims > 2
    if not has_dims or shape[2 if channel_dim == 1 else -1] != channels or x.numel() <= channels:
        return False
    device, dtypes = x.device, (x.dtype, compute_dtype(x.dtype))
    for value in norm[1:5]:
        if value is not None and not (
            value.device == device and value.dtype in dtypes and value.ndim == 1 and value.shape[0] == channels
        ):
            return False
    return (norm.mean is None) == (norm.variance is None)


def normalised(norm: Any, x: Tensor, channel_dim: int, one_step: bool) -> Tensor:
    """``x`` ``[T, B, C, ...]`` (``[T, B, ..., C]`` with ``channel_dim=-1``), or that of one step, as torch normalises
    it.
    """
    each_time(norm)
    # not norm(x): hooks of a module that a kernel may compute are called in no case
    forward: Callable[[Tensor], Tensor] = functools.partial(kind_of(norm).forward, norm)
    if channel_dim == -1:
        return forward(x.flatten(0, -2)).reshape(x.shape)
    return where_it_lies(forward, x) if one_step else unfolded(where_it_lies(forward, folded(x)), *x.shape[:2])


def where_it_lies(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``forward(x)`` of a batch normalisation. Torch's of ``[B, C, L]`` copies what lies as ``[B, L, C]``, or reads it
    slowly; of the matrix ``[B L, C]`` it does neither.
    """
    if x.ndim != 3 or x.is_contiguous() or not x.transpose(1, 2).is_contiguous():
        return forward(x)
    batch, channels, length = x.shape
    return forward(x.transpose(1, 2).view(batch * length, channels)).view(batch, length, channels).transpose(1, 2)


def constants(
    norm: Norm, x: Tensor, dim: int, moments: Optional[Moments], statistics: Optional[Statistics]
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Constants of ``norm`` for an ``x`` ``[T, *N]`` that :func:`fits`: ``(mean, rstd, weight, bias)`` of each channel
    along a dimension of a time step, for ``(x - mean) * rstd * weight + bias``. In training its running statistics
    move, as torch moves them. Mean and rstd carry no gradient.
    """
    if takes_batch(norm):
        mean, rstd = once(norm.module, lambda: _of_batch(norm, x, dim, moments, statistics))
    else:
        running: Any = norm.mean
        compute = compute_dtype(x.dtype)
        # backward reads the mean: a copy is not moved by a call in training before it
        mean = running.to(compute, copy=torch.is_grad_enabled())
        mean = mean if norm.shift is None else mean - norm.shift.detach()
        rstd = torch.rsqrt(norm.variance.to(compute) + norm.module.eps)  # type: ignore[union-attr]  # see fits
    # one of the two may be None: torch's batch normalisation takes bias=False
    weight = torch.ones_like(mean) if norm.weight is None else norm.weight
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias
    if norm.shift is not None and torch.is_grad_enabled() and norm.shift.requires_grad:
        bias = _Unseen.apply(bias, norm.shift)
    return mean, rstd, weight, bias


def _of_batch(
    norm: Norm, x: Tensor, dim: int, moments: Optional[Moments], statistics: Optional[Statistics]
) -> Tuple[Tensor, Tensor]:
    by_kernels = None if statistics is None else _by_kernels(norm, x, dim, statistics)
    return by_kernels or _by_torch(norm, x, dim, moments)


def _by_kernels(norm: Norm, x: Tensor, dim: int, statistics: Statistics) -> Optional[Tuple[Tensor, Tensor]]:
    """Mean and 1 / sqrt(variance + eps) by a backend's own kernels, which also move the running statistics."""
    if _written is None:
        return None
    running, module = None, norm.module
    # without running statistics calls are counted all the same
    if module.training and module.track_running_stats and not (norm.mean is None is norm.calls):
        running = _running_of(norm, x.device)
        if running is None:
            return None
    result = statistics(x, dim, module.eps, running)
    if result is not None and running is not None:
        _shift(norm, running[3])
    # torch.compile sees an op that says what it writes
    if result is not None and running is not None and not is_compiling():
        for value in running[:3]:
            if value is not None:
                _written(value)
    return result


def _running_of(norm: Norm, device: torch.device) -> Optional[Running]:
    """The running statistics of ``norm``, as a kernel can move them; None where torch has to."""
    mean, variance, count, momentum = norm.mean, norm.variance, norm.calls, norm.module.momentum
    # without a momentum it follows from the count, which a kernel would have to wait for
    if mean is None or variance is None or momentum is None or mean.dtype != variance.dtype:
        return None
    if not (mean.is_contiguous() and variance.is_contiguous()):
        return None
    if count is not None and (count.device != device or count.dtype != torch.int64):
        return None
    if not is_compiling() and True in [value.is_inference() for value in (mean, variance, count) if value is not None]:
        return None
    return mean, variance, count, momentum


@torch.no_grad()
def _shift(norm: Norm, factor: float) -> None:
    """Move the running mean by what was not added to an input that has moved it by this factor."""
    if norm.shift is not None:
        norm.mean.add_(norm.shift, alpha=factor)  # type: ignore[union-attr]  # it was moved


@torch.no_grad()
def _by_torch(of: Norm, x: Tensor, dim: int, moments: Optional[Moments]) -> Tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of a batch, by which the running statistics have been moved."""
    norm, compute = of.module, compute_dtype(x.dtype)
    moves = norm.training and norm.track_running_stats and norm.running_mean is not None
    factor = _counted(norm) if norm.training and norm.track_running_stats else 0.0
    # whether there is such a method is asked by `is None`: whether a method is true, torch.compile of 2.11 cannot ask
    compiling = is_compiling()
    by_backend = None if compiling or moments is None else moments(x, dim)
    x = x.flatten(0, -2) if dim + 2 == x.ndim else _samples(x)
    if x.dtype == torch.float16 and x.device.type == "cpu":
        x = x.to(compute)  # torch 2.0 has no statistics of float16 there
    if by_backend is not None:
        mean, variance = by_backend
    elif compiling or x.device.type not in ("cpu", "cuda"):
        # the operation below does not tell the compiler that it moves the running statistics, and MPS has none
        variance, mean = torch.var_mean(x.to(compute), [d for d in range(x.ndim) if d != 1], correction=0)
    elif moves and norm.running_mean.dtype == compute:
        mean, variance = torch.batch_norm_update_stats(x, norm.running_mean, norm.running_var, factor)
        _shift(of, factor)
        return mean, torch.rsqrt(variance + norm.eps)
    else:
        # of half input without running statistics it gives half results
        like = x.new_zeros(x.shape[1], dtype=compute)
        mean, variance = torch.batch_norm_update_stats(x, like, torch.ones_like(like), 0.0)
    if moves:
        n = x.numel() // x.shape[1]
        for running, value in ((norm.running_mean, mean), (norm.running_var, variance * (n / (n - 1)))):
            running.lerp_(value.to(running.dtype), factor)
        _shift(of, factor)
    return mean, torch.rsqrt(variance + norm.eps)


def _samples(x: Tensor) -> Tensor:
    """``x`` ``[T, B, C, ...]`` with time and batch as one, in the order in which that takes no copy: statistics do not
    depend on the order of the batch.
    """
    batch_first = not x.is_contiguous() and x.stride(1) > x.stride(0) > 0
    return (x.transpose(0, 1) if batch_first else x).flatten(0, 1)


def _counted(norm: Any) -> float:
    """By which part of the way a batch moves the running statistics. The batch is counted first."""
    count = norm.num_batches_tracked
    if count is not None:
        count.add_(1)
    if norm.momentum is not None or count is None or norm.running_var is None:
        return norm.momentum or 0.0
    return 1.0 / float(count)
