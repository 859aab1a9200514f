"""Batch normalisation as a neuron's shell computes it, and as its module leaves it to the neuron.

Rules of this module:

- What is normalised, and how running statistics move, is what ``torch.nn.BatchNorm1d``, ``2d`` and ``3d`` do. A class
  with another ``forward`` is refused, since nothing is known of what it computes.
- A module that was *deferred* stays where it is in its network and keeps parameters, buffers and their names; a call of
  it gives its input back, and the neuron behind it normalises.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikecore._base.errors import a_kind
from spikecore._shell.moved import Statistics, by_backend, counted, move
from spikecore.dtypes import compute_dtype
from spikecore.lang._plain import is_compiling

#: What a module says that is no batch normalisation, or none that a neuron can take over.
_WAY_OUT = "leave it in front of the neuron: nn.Sequential(sc.layers.TimeBatched(conv, norm), neuron)"


class Deferred(_BatchNorm):
    """Batch normalisation that the neuron behind it computes; a call gives its input back."""

    def forward(self, input: Tensor) -> Tensor:
        """The input: the neuron normalises it."""
        return input

    def __dir__(self) -> List[str]:
        """Without ``qconfig``: torch.jit.trace asks for all names that are listed."""
        return [name for name in super().__dir__() if name != "qconfig"]

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
        if is_watched(norm):
            # nn.utils.weight_norm and prune make the weight in such a hook, and a neuron that never calls the module
            # would go on with the weight of the time before
            raise ValueError(
                f"{owner}: norm is {a_kind(norm)} with hooks or a forward of its own, which a neuron that "
                f"normalises would pass over (nn.utils.weight_norm and prune make hooks); {_WAY_OUT}"
            )
        return
    if isinstance(norm, nn.SyncBatchNorm):
        raise TypeError(
            f"{owner}: norm is a SyncBatchNorm, whose statistics are those of all processes; a neuron computes those "
            f"of its own process. To synchronise, {_WAY_OUT}"
        )
    if isinstance(norm, Deferred):
        raise ValueError(f"{owner}: norm is computed by another neuron already (sc.fuse); call sc.unfuse(net) first")
    raise TypeError(
        f"{owner}: norm is {a_kind(norm)}; a neuron can take over nn.BatchNorm1d, nn.BatchNorm2d and "
        f"nn.BatchNorm3d themselves. Of another kind, {_WAY_OUT}"
    )


def can_defer(module: nn.Module) -> bool:
    """Whether a neuron can take over this module: a plain batch normalisation that nobody watches."""
    return type(module) in _DEFERRED and not is_watched(module)


def is_watched(module: nn.Module) -> bool:
    """Whether hooks of its own, or a ``forward`` of its own, see what goes into a module and what comes out."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, kind, None) for kind in kinds)


def defer(norm: nn.Module) -> None:
    """Have a call of ``norm`` give its input back."""
    norm.__class__ = _DEFERRED[type(norm)]


def check_restorable(norm: nn.Module) -> None:
    """Raise RuntimeError for a deferred normalisation that cannot normalise again, since its class was changed."""
    if isinstance(norm, Deferred) and type(norm) not in _PLAIN:
        # nn.utils.parametrize derives a class from that of the module
        raise RuntimeError(
            f"sc.unfuse: a batch normalisation became {a_kind(norm)} after sc.fuse, which cannot be undone "
            "now; first take away what changed its class, such as by nn.utils.parametrize.remove_parametrizations"
        )


def restore(norm: nn.Module) -> None:
    """Have ``norm`` normalise again; see :func:`check_restorable`."""
    norm.__class__ = _PLAIN.get(type(norm), type(norm))


def is_average(norm: Any) -> bool:
    """Whether the running statistics of a normalisation are averages over all batches so far, and a call moves them."""
    return bool(norm.training and norm.track_running_stats and norm.momentum is None and norm.running_var is not None)


def normalised(norm: nn.Module, x: Tensor) -> Tensor:
    """``x`` ``[B, C, ...]`` as ``norm`` normalises it, deferred or not."""
    if is_compiling() and is_average(norm):
        return _averaging(norm, x)
    # not norm(x): what a hook sees of a module that a neuron calls would differ from backend to backend
    y: Tensor = _BatchNorm.forward(norm, x)  # type: ignore[arg-type]  # one of the three, see check_norm
    return y


def takes_batch(norm: Any) -> bool:
    """Whether a batch normalisation takes the statistics of its input, rather than the running ones."""
    return bool(norm.training or norm.running_mean is None)


def _averaging(norm: Any, x: Tensor) -> Tensor:
    """What torch computes where the running statistics are averages, whose factor a compiled graph has as a tensor."""
    norm._check_input_dim(x)
    factor = counted(norm)
    # what torch moves zeros by with the factor 1: the statistics themselves
    mean, variance = torch.zeros_like(norm.running_mean), torch.zeros_like(norm.running_var)
    y = F.batch_norm(x, mean, variance, norm.weight, norm.bias, True, 1.0, norm.eps)
    if x.numel():  # torch lets the statistics be after an empty batch
        move(norm, mean, variance, factor)
    return y


#: Mean and variance of ``[T, B, C, ...]`` per channel, None where torch is to compute them.
Moments = Callable[[Tensor], Optional[Tuple[Tensor, Tensor]]]


class Constants(NamedTuple):
    """What an input is normalised by: ``(x - mean) * rstd * weight + bias``, ``[C]`` each."""

    mean: Tensor
    rstd: Tensor
    weight: Tensor
    bias: Tensor


def takes(norm: Any, x: Tensor) -> bool:
    """Whether ``x`` ``[T, B, C, ...]`` is plain input of ``norm``; torch's own forward computes or refuses other."""
    dims: Dict[Any, Tuple[int, ...]] = {nn.BatchNorm1d: (3, 4), nn.BatchNorm2d: (5,), nn.BatchNorm3d: (6,)}
    compute = compute_dtype(x.dtype)
    held = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return (
        # a class that is in no table was made later, as by nn.utils.parametrize: torch computes it
        x.ndim in dims.get(_PLAIN.get(type(norm), type(norm)), ())
        and x.shape[2] == norm.num_features
        # of one number per channel torch computes no variance, and says so
        and x.numel() > x.shape[2]
        and all(t is None or (t.device == x.device and t.dtype in (x.dtype, compute)) for t in held)
    )


def constants(norm: Any, x: Tensor, moments: Optional[Moments], statistics: Optional[Statistics] = None) -> Constants:
    """What ``norm`` normalises ``x`` ``[T, B, C, ...]`` by; in training its running statistics move, as torch moves
    them. Mean and rstd carry no gradient. ``x`` is one whose steps ``norm`` takes.
    """
    compute: Any = compute_dtype(x.dtype)
    # backward reads the mean: a copy is not moved by a call in training before it
    saves = torch.is_grad_enabled()
    with torch.no_grad():
        if takes_batch(norm):
            found = None if statistics is None else by_backend(norm, x, statistics)
            mean, rstd = found or _by_torch(norm, x, compute, moments)
        else:
            mean = norm.running_mean.to(compute, copy=saves)
            rstd = torch.rsqrt(norm.running_var.to(compute) + norm.eps)
    # one of the two may be None: torch's batch normalisation takes bias=False
    weight = torch.ones_like(mean) if norm.weight is None else norm.weight
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias
    return Constants(mean, rstd, weight, bias)


def among(values: Sequence[Any], count: int, found: Sequence[Tensor], ndim: int) -> Tuple[Any, ...]:
    """A neuron's parameters, placed over one time step, with those of the normalisation of ``x`` of so many dimensions
    behind the first ``count``.
    """
    view = (1, -1, *[1] * (ndim - 3))
    return (*values[:count], *[value.view(view) for value in found], *values[count:])


def _by_torch(norm: Any, x: Tensor, compute: torch.dtype, moments: Optional[Moments]) -> Tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of a batch, by which the running ones have been moved."""
    mean, variance = _moved(norm, x, compute, moments)
    return mean, torch.rsqrt(variance + norm.eps)


def _moved(norm: Any, x: Tensor, compute: torch.dtype, moments: Optional[Moments]) -> Tuple[Tensor, Tensor]:
    """Mean and variance of a batch, by which the running ones have been moved."""
    moves = norm.training and norm.track_running_stats and norm.running_mean is not None
    factor = counted(norm) if norm.training and norm.track_running_stats else 0.0
    # whether there is such a method is asked by `is None`: whether a method is true, torch.compile of 2.11 cannot ask
    found = None if is_compiling() or moments is None else moments(x)
    x = _folded(x)
    if x.dtype == torch.float16 and x.device.type == "cpu":
        x = x.to(compute)  # torch 2.0 has no statistics of float16 there
    if found is not None:
        mean, variance = found
    elif is_compiling() or x.device.type not in ("cpu", "cuda"):
        # the operation below does not tell the compiler that it moves the running statistics, and MPS has none
        dims = [d for d in range(x.ndim) if d != 1]
        variance, mean = torch.var_mean(x.to(compute), dims, correction=0)
    elif moves and norm.running_mean.dtype == compute and not isinstance(factor, Tensor):
        return torch.batch_norm_update_stats(x, norm.running_mean, norm.running_var, factor)
    else:
        # of half input without running statistics it gives half results
        like = x.new_zeros(x.shape[1], dtype=compute)
        mean, variance = torch.batch_norm_update_stats(x, like, torch.ones_like(like), 0.0)
    if moves:
        n = x.numel() // x.shape[1]
        move(norm, mean, variance * (n / (n - 1)), factor)
    return mean, variance


def _folded(x: Tensor) -> Tensor:
    """``x`` ``[T, B, C, ...]`` with time and batch as one, in the order in which that takes no copy."""
    # statistics do not depend on the order of the batch
    batch_first = not x.is_contiguous() and x.stride(1) > x.stride(0) > 0
    return (x.transpose(0, 1) if batch_first else x).flatten(0, 1)
