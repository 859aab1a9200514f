"""Batch normalisation over time, batch and space: scaled by the threshold (tdBN), or by each step (TEBN)."""

from __future__ import annotations

import math
from typing import Any, Dict, Type

import torch
from torch import Tensor, nn

from spikecore._base.batches import folded, unfolded
from spikecore._shell.checks import shown
from spikecore._shell.state import Stepped
from spikecore.layers._arguments import counts
from spikecore.layers._time_batched import TimeBatched

_OF_DIMS: Dict[int, Type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_FORMS = {1: "[T, B, C] or [T, B, C, L]", 2: "[T, B, C, H, W]", 3: "[T, B, C, D, H, W]"}


def tdbn(channels: int, *, threshold: float = 1.0, alpha: float = 1.0, dims: int = 2, **keywords: Any) -> nn.Module:
    """Threshold-dependent batch normalisation (tdBN): ``nn.BatchNorm`` whose weight begins at ``alpha * threshold``.

    ::

        y = w * (x - mean) / sqrt(var + eps) + b        w = lambda * alpha * threshold

    with mean and variance over time, batch and space, so that inputs of a neuron begin with the standard deviation
    ``alpha * threshold``. It is to stand within :class:`TimeBatched` or :class:`NormNeuron`, which give it all steps at
    once. It is a plain ``nn.BatchNorm1d``, ``2d`` or ``3d`` (``dims``; 1 for ``[B, C]``, too), and what holds for
    these holds for it: ``sc.fuse``, kernels, checkpoints. The paper learns ``lambda``, from 1 on; here its product with
    the constants is learnt: the same functions, but steps of an optimiser differ where ``alpha * threshold`` is not 1.

    threshold: that of the neuron behind it.
    alpha: 1, or ``1 / sqrt(n)`` where n such normalisations are added before a neuron, as behind a residual block.
    keywords: those of ``nn.BatchNorm``.

    Raises ValueError for other ``dims``, ``channels`` below 1 and a ``threshold`` or ``alpha`` that is not above 0 or
    not finite, TypeError for what is no number.
    Source: Zheng, Wu, Deng, Hu, Li: Going Deeper With Directly-Trained Larger Spiking Neural Networks. AAAI 2021.
    """
    counts("tdbn", channels=channels)
    for name, value in (("threshold", threshold), ("alpha", alpha)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"tdbn: {name} must be a number, got {value!r}")
        if not 0 < value < math.inf:
            raise ValueError(f"tdbn: {name} must be above 0, got {value!r}")
    norm: nn.Module = _of_dims("tdbn", dims)(channels, **keywords)
    weight: Any = norm.weight
    if weight is not None:
        nn.init.constant_(weight, alpha * threshold)
    return norm


class TEBN(Stepped):
    """Temporal effective batch normalisation: statistics over all steps, and a learnt factor for each step.

    ::

        y[t] = p[t] * (w * (x[t] - mean) / sqrt(var + eps) + b)

    with mean and variance over time, batch and space, as :class:`TimeBatched` gives them, weight ``w`` and bias ``b``
    per channel, and one ``p[t]`` per step, which begins at 1. ``[T, B, C, ...] -> [T, B, C, ...]`` with
    ``T = steps``; it stands outside ``TimeBatched``: ``nn.Sequential(TimeBatched(conv), TEBN(64, 4), sc.LIF())``.
    ``state_dict`` has ``norm.weight``, ``norm.bias``, the running statistics, and ``scale`` ``[steps]``.

    dims: 1, 2 or 3, as of ``nn.BatchNorm2d``; 1 for ``[T, B, C]``, too.
    keywords: those of ``nn.BatchNorm``.

    A single step has no factor of its own, so ``step="single"`` is refused; ``sc.fuse`` leaves it as it is. Raises
    TypeError or ValueError for ``steps`` that are no whole number from 1 on, ValueError for other ``dims``, and for an
    input of another number of steps. Source: Duan, Ding, Chen, Yu, Huang: Temporal
    Effective Batch Normalization in Spiking Neural Networks. NeurIPS 2022.
    """

    only_multi = "it has a factor for each step of a sequence; stream in multi-step calls of its number of steps"
    mixes_time = True

    def __init__(self, channels: int, steps: int, *, dims: int = 2, **keywords: Any) -> None:
        super().__init__()
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(f"TEBN: steps must be an int, the number of time steps, got {steps!r}")
        if steps < 1:
            raise ValueError(f"TEBN: steps must be 1 or more, got {steps}")
        counts("TEBN", channels=channels)
        self.steps = steps
        self.norm = _of_dims("TEBN", dims)(channels, **keywords)
        self.scale = nn.Parameter(torch.ones(steps))

    def forward(self, x: Tensor) -> Tensor:
        """``[T, B, C, ...] -> [T, B, C, ...]``."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"TEBN: x must be a floating-point tensor, got {shown(x)}")
        if x.ndim < 3 or x.shape[0] != self.steps:
            raise ValueError(
                f"TEBN: x must be [T, B, C, ...] with T={self.steps}, the steps that it has factors for, got shape "
                f"{tuple(x.shape)}"
            )
        for dims, kind in _OF_DIMS.items():  # a converted norm, such as nn.SyncBatchNorm, is none of these
            fits = x.ndim - 3 == dims or (x.ndim == 3 and dims == 1)
            if type(self.norm) is kind and not (fits and x.shape[2] == self.norm.num_features):
                raise ValueError(
                    f"TEBN: x must be {_FORMS[dims]} with C={self.norm.num_features} and dims={dims}, got shape "
                    f"{tuple(x.shape)}"
                )
        y = unfolded(self.norm(folded(x)), x.shape[0], x.shape[1])
        return y * self.scale.to(y.dtype).reshape(-1, *[1] * (y.ndim - 1))

    def extra_repr(self) -> str:
        """The number of steps."""
        return f"steps={self.steps}"


def normalised(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """A layer of one step and the normalisation behind it, which may be one that knows of time, for ``[T, B, ...]``."""
    if isinstance(norm, Stepped):
        return nn.Sequential(TimeBatched(layer), norm)
    return TimeBatched(layer, norm)


def silenced(norm: nn.Module) -> None:
    """Have a normalisation give 0 at first: its weight becomes 0."""
    inner = norm.norm if isinstance(norm, TEBN) else norm
    weight = getattr(inner, "weight", None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"zero_init needs a normalisation with a weight, got {norm}")
    nn.init.zeros_(weight)


def _of_dims(owner: str, dims: int) -> Type[Any]:
    if isinstance(dims, bool) or not isinstance(dims, int) or dims not in _OF_DIMS:
        raise ValueError(f"{owner}: dims must be 1, 2 or 3, as of nn.BatchNorm1d, 2d and 3d, got {dims!r}")
    return _OF_DIMS[dims]
