"""Batch normalisation as a neuron's shell computes it, and as its module leaves it to the neuron.

Rules of this module:

- What is normalised, and how running statistics move, is what ``torch.nn.BatchNorm1d``, ``2d`` and ``3d`` do. A class
  with another ``forward`` is refused, since nothing is known of what it computes.
- A module that was *deferred* stays where it is in its network and keeps parameters, buffers and their names; a call of
  it gives its input back, and the neuron behind it normalises.
"""

from __future__ import annotations

from typing import Any, Dict, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

#: What a module says that is no batch normalisation, or none that a neuron can take over.
_WAY_OUT = "leave it in front of the neuron: nn.Sequential(sc.layers.TimeBatched(conv, norm), neuron)"


class Deferred(_BatchNorm):
    """Batch normalisation that the neuron behind it computes; a call gives its input back."""

    def forward(self, input: Tensor) -> Tensor:
        """The input: the neuron normalises it."""
        return input

    @property
    def qconfig(self) -> Any:
        """Asked for by what replaces modules: ``SyncBatchNorm.convert_sync_batchnorm``, and quantisation."""
        # the neuron would go on with the module that was replaced, and its input would be normalised twice
        raise RuntimeError(
            "this batch normalisation is computed by the neuron behind it (sc.fuse), so no other module can take its "
            "place; call sc.unfuse(net) first"
        )

    def extra_repr(self) -> str:
        """As before, and who computes it."""
        return f"{super().extra_repr()}, computed by the neuron"


class DeferredBatchNorm1d(Deferred, nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` of ``[B, C]`` or ``[B, C, L]``, computed by the neuron behind it."""


class DeferredBatchNorm2d(Deferred, nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` of ``[B, C, H, W]``, computed by the neuron behind it."""


class DeferredBatchNorm3d(Deferred, nn.BatchNorm3d):
    """:class:`torch.nn.BatchNorm3d` of ``[B, C, D, H, W]``, computed by the neuron behind it."""


_DEFERRED: Dict[Type[nn.Module], Type[Deferred]] = {
    nn.BatchNorm1d: DeferredBatchNorm1d,
    nn.BatchNorm2d: DeferredBatchNorm2d,
    nn.BatchNorm3d: DeferredBatchNorm3d,
}
_PLAIN: Dict[Type[nn.Module], Type[nn.Module]] = {deferred: plain for plain, deferred in _DEFERRED.items()}


def check_norm(owner: str, norm: Any) -> None:
    """Refuse a module that is not one of torch's three batch normalisations."""
    if type(norm) in _DEFERRED:
        return
    if isinstance(norm, nn.SyncBatchNorm):
        raise TypeError(
            f"{owner}: norm is a SyncBatchNorm, whose statistics are those of all processes; a neuron computes those "
            f"of its own process. To synchronise, {_WAY_OUT}"
        )
    if isinstance(norm, Deferred):
        raise ValueError(f"{owner}: norm is computed by another neuron already (sc.fuse); call sc.unfuse(net) first")
    raise TypeError(
        f"{owner}: norm is a {type(norm).__name__}; a neuron can take over nn.BatchNorm1d, nn.BatchNorm2d and "
        f"nn.BatchNorm3d themselves. Of another kind, {_WAY_OUT}"
    )


def can_defer(module: nn.Module) -> bool:
    """Whether a neuron can take over this module: a plain batch normalisation that nobody watches."""
    return type(module) in _DEFERRED and not is_watched(module)


def is_watched(module: nn.Module) -> bool:
    """Whether a module has hooks of its own, which see what goes into it and what comes out."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for kind in kinds)


def defer(norm: nn.Module) -> None:
    """Have a call of ``norm`` give its input back."""
    norm.__class__ = _DEFERRED[type(norm)]


def restore(norm: nn.Module) -> None:
    """Have ``norm`` normalise again."""
    norm.__class__ = _PLAIN.get(type(norm), type(norm))


def normalised(norm: nn.Module, x: Tensor) -> Tensor:
    """``x`` ``[B, C, ...]`` as ``norm`` normalises it, deferred or not."""
    # not norm(x): what a hook sees of a module that a neuron calls would differ from backend to backend
    y: Tensor = _BatchNorm.forward(norm, x)  # type: ignore[arg-type]  # one of the three, see check_norm
    return y


def takes_batch(norm: nn.Module) -> bool:
    """Whether a batch normalisation takes the statistics of its input, rather than the running ones."""
    return norm.training or norm.running_mean is None


def has_one_step(x: Tensor) -> bool:
    """Whether one step ``[B, C, ...]`` has more than one number per channel, without which torch normalises nothing."""
    return x.ndim > 1 and x.numel() > x.shape[1]


def normalised_step(norm: Any, x: Tensor, steps: int) -> Tensor:
    """``x`` ``[B, C, ...]`` as ``norm`` normalises it within ``steps`` equal steps, deferred or not.

    Equal steps have the mean and the variance of one. The running variance moves by the unbiased one of n numbers per
    channel, ``n / (n - 1)`` of the variance, and is to move by that of ``steps * n``.
    """
    variance = norm.running_var
    if not (norm.training and norm.track_running_stats) or variance is None:
        return normalised(norm, x)
    norm._check_input_dim(x)
    factor = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    if factor is None:
        factor = 0.0 if norm.num_batches_tracked is None else 1.0 / float(norm.num_batches_tracked)
    # what torch would move zeros by: factor * n / (n - 1) * variance
    moved = torch.zeros_like(variance)
    y = F.batch_norm(x, norm.running_mean, moved, norm.weight, norm.bias, True, factor, norm.eps)
    n = x.numel() // x.shape[1]
    with torch.no_grad():
        variance.mul_(1.0 - factor).add_(moved, alpha=steps * (n - 1) / (steps * n - 1))
    return y
