"""Regularisers of how much is spiked, as :mod:`spikecore.losses` gives them; its rules hold here, too."""

from __future__ import annotations

import math
from typing import Optional, Tuple, Union

from torch import Tensor

from spikecore._padding import Steps
from spikecore._readout import computed

__all__ = ["rate_regularizer", "rate_sparsity"]


def rate_regularizer(
    spikes: Tensor,
    *,
    target: Union[float, Tuple[float, float]],
    per: str = "neuron",
    strength: float = 1.0,
    mask: Optional[Tensor] = None,
) -> Tensor:
    """Penalty on mean firing rates that leave a band, or a point; a term to add to a loss, for any layer's spikes.

    ``strength * mean_i (max(0, lower - r_i)^2 + max(0, r_i - upper)^2)`` with rates ``r_i`` in spikes per step.
    ``target=(lower, upper)`` is the band; one number is both bounds, and the penalty then
    ``strength * mean_i (r_i - target)^2``.

    ``spikes`` is ``[T, B, ...]``. ``per`` says what a rate ``r_i`` averages over: ``"neuron"`` over time and batch, so
    that silent neurons wake up but codes may be sparse; ``"sample"`` over time, one rate per neuron and sample;
    ``"population"`` over time and all neurons, one rate per sample.
    With ``mask``, bool ``[T, B]``, averages over time are over real steps: ``"neuron"`` divides the spikes of all
    sequences by the number of all their real steps, the others divide those of a sequence by the number of its own.

    Raises TypeError for a dtype that is not floating point or a target that is no number or pair, ValueError for fewer
    than three dimensions, bounds other than ``0 <= lower <= upper``, an unknown ``per``, or a mask of another shape or
    with a sequence without a real step. Source: a point per neuron is the regulariser of Bellec et al. (2020, e-prop);
    squared bounds, the lower one per neuron and the upper one per population, are those of Cramer et al. (2020,
    Heidelberg spiking data sets).
    """
    _check_spikes(spikes)
    lower, upper = _band(target)
    over = {"neuron": (0, 1), "sample": (0,), "population": (0, *range(2, spikes.ndim))}
    if per not in over:
        raise ValueError(f"per must be one of {', '.join(map(repr, over))}, got {per!r}")
    steps, x = Steps("spikes", spikes, mask), computed(spikes)
    if mask is None:
        rates = x.mean(over[per])
    elif per == "neuron":
        rates = steps.sum(x).sum(0) / steps.count(x).sum()
    else:
        rates = steps.mean(x if per == "sample" else x.flatten(2).mean(-1))
    below, above = (lower - rates).relu(), (rates - upper).relu()
    return strength * (below * below + above * above).mean()


def rate_sparsity(spikes: Tensor, *, strength: float = 1e-5, mask: Optional[Tensor] = None) -> Tensor:
    """Penalty on every spike, ``strength * sum(spikes)``; a term to add to a loss.

    ``spikes`` is ``[T, B, ...]``; with ``mask``, bool ``[T, B]``, only real steps count. The sum is over the batch too:
    ``strength`` is per spike, and the term grows with the batch. This L1 norm takes no absolute value: spikes are not
    negative, and the derivative 0 of ``abs`` at 0 would keep the penalty from neurons that are silent but near their
    threshold. Raises as :func:`rate_regularizer`.
    Source: snnTorch's ``l1_rate_sparsity``.
    """
    _check_spikes(spikes)
    steps = Steps("spikes", spikes, mask)
    x = computed(spikes)
    return strength * (x.sum() if mask is None else steps.sum(x).sum())


def _check_spikes(spikes: Tensor) -> None:
    if not isinstance(spikes, Tensor):
        raise TypeError(f"spikes must be a tensor, got {type(spikes).__name__}")
    if spikes.ndim < 3:
        raise ValueError(f"spikes must be [T, B, ...] (time, batch, neurons), got shape {tuple(spikes.shape)}")
    if not spikes.is_floating_point():
        raise TypeError(f"spikes must be floating point, got {spikes.dtype}")


def _band(target: Union[float, Tuple[float, float]]) -> Tuple[float, float]:
    bounds = tuple(target) if isinstance(target, (tuple, list)) else (target, target)
    if len(bounds) != 2 or not all(isinstance(bound, (int, float)) for bound in bounds):
        raise TypeError(f"target must be a rate or a pair (lower, upper) of rates, got {target!r}")
    lower, upper = bounds
    if not 0.0 <= lower <= upper < math.inf:
        raise ValueError(f"target must have 0 <= lower <= upper, in spikes per step, got {target!r}")
    return lower, upper
