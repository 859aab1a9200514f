"""Losses on what a spiking network puts out, and regularisers of how much it spikes.

Rules of this module:

- A loss is a plain function ``loss(outputs, targets, *, ...) -> 0-d tensor`` of outputs ``[T, B, C]`` and class indices
  ``[B]``. It can be given to ``training_model`` as it is; ``functools.partial`` sets its keywords.
- A loss gives one number per sample first; ``reduction`` then combines the samples. ``"mean"`` with class weights is
  torch's weighted mean, ``sum_b w[y_b] l_b / sum_b w[y_b]``; ``"sum"`` adds ``w[y_b] l_b``; ``"none"`` returns them,
  ``[B]``.
- Population coding: with ``num_classes=K`` the C outputs are K groups of C / K neighbours, pooled by summing.
- Arithmetic is float32, float64 for float64 outputs: a spike count in bfloat16 is exact only up to 256.
- Plain operations only, nothing reads a value on the host, and checks look at shapes and dtypes alone: every backend
  can compile a loss. That is also why no built-in torch loss is called here; PopTorch starts the backward pass at those
  and refuses their ``weight``. Target values are checked by torch, where it gathers.
"""

from __future__ import annotations

import math
from typing import Callable, Optional, Tuple, Union

import torch
from torch import Tensor

from spikecore._readout import check_readout, pool
from spikecore.dtypes import compute_dtype
from spikecore.lang._plain import is_compiling

__all__ = ["ce_count", "ce_max_membrane", "ce_rate", "mse_count", "mse_membrane", "rate_regularizer", "rate_sparsity"]

_REDUCTIONS = ("mean", "sum", "none")


def ce_count(
    outputs: Tensor,
    targets: Tensor,
    *,
    num_classes: Optional[int] = None,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of the spike counts: the class that should win should spike most.

    ``l_b = -log softmax(n_b)[y_b]`` with the counts ``n_b = sum_t outputs[t, b]``, pooled over populations.

    ``outputs`` are spikes ``[T, B, C]``, ``targets`` class indices ``[B]``, ``weight`` one factor per class.
    Raises TypeError for a wrong dtype, ValueError for a wrong shape, ``num_classes`` or ``reduction``.
    Source: snnTorch's ``ce_count_loss``, but for the weighted mean.
    """
    check_readout("outputs", outputs, targets)
    counts = pool(_compute(outputs).sum(0), num_classes)
    return _reduce(_cross_entropy(counts.log_softmax(-1), targets), targets, weight, counts.shape[-1], reduction)


def ce_rate(
    outputs: Tensor,
    targets: Tensor,
    *,
    num_classes: Optional[int] = None,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy at every step, averaged over time: the right class should spike at all steps, and others at none.

    ``l_b = -1/T sum_t log softmax(outputs[t, b])[y_b]``; populations are pooled at each step.

    Arguments and errors as for :func:`ce_count`. Source: snnTorch's ``ce_rate_loss``, whose population code fails.
    """
    check_readout("outputs", outputs, targets)
    log_p = pool(_compute(outputs), num_classes).log_softmax(-1).mean(0)
    return _reduce(_cross_entropy(log_p, targets), targets, weight, log_p.shape[-1], reduction)


def ce_max_membrane(
    outputs: Tensor, targets: Tensor, *, weight: Optional[Tensor] = None, reduction: str = "mean"
) -> Tensor:
    """Cross entropy of the highest membrane potentials: the right class should get nearest to its threshold, once.

    ``l_b = -log softmax(max_t outputs[t, b])[y_b]``; the gradient goes to the step of the maximum.

    ``outputs`` are membrane potentials ``[T, B, C]``; otherwise as for :func:`ce_count`.
    Source: Zenke's SpyTorch, snnTorch's ``ce_max_membrane_loss``.
    """
    check_readout("outputs", outputs, targets)
    log_p = _compute(outputs).max(0).values.log_softmax(-1)
    return _reduce(_cross_entropy(log_p, targets), targets, weight, log_p.shape[-1], reduction)


def mse_count(
    outputs: Tensor,
    targets: Tensor,
    *,
    correct_rate: float = 1.0,
    incorrect_rate: float = 0.0,
    num_classes: Optional[int] = None,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared distance of the spike counts from wanted counts, for the right class and for the others.

    ``l_b = 1/T mean_c (n_bc - m_bc)^2`` with the counts ``n_b = sum_t outputs[t, b]``, pooled over populations of g
    neurons, and ``m_bc = floor(T g correct_rate)`` where ``c = y_b``, ``floor(T g incorrect_rate)`` elsewhere.

    The rates are spikes per neuron and step, 0 to 1. Otherwise as for :func:`ce_count`; ValueError for a rate outside.
    Source: SLAYER (Shrestha and Orchard, 2018) through snnTorch's ``mse_count_loss``, division by T (not T^2) included.
    There, ``"sum"`` and ``"none"`` keep the classes apart; here a sample is always one number.
    """
    check_readout("outputs", outputs, targets)
    counts = pool(_compute(outputs).sum(0), num_classes)
    steps = outputs.shape[0]
    most = steps * (outputs.shape[-1] // counts.shape[-1])
    wanted = _per_class(
        counts,
        targets,
        on=_whole_spikes("correct_rate", correct_rate, most),
        off=_whole_spikes("incorrect_rate", incorrect_rate, most),
    )
    return _reduce(_mean_square(counts - wanted) / steps, targets, weight, counts.shape[-1], reduction)


def mse_membrane(
    outputs: Tensor,
    targets: Tensor,
    *,
    on_target: float = 1.0,
    off_target: float = 0.0,
    weight: Optional[Tensor] = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared distance of the membrane potentials, at all steps, from one value for the right class, another elsewhere.

    ``l_b = 1/T sum_t mean_c (outputs[t, b, c] - m_bc)^2`` with ``m_bc = on_target`` where ``c = y_b``, else
    ``off_target``.

    ``outputs`` are membrane potentials ``[T, B, C]``; otherwise as for :func:`ce_count`. To follow a whole trace, use
    ``torch.nn.functional.mse_loss``. Source: snnTorch's ``mse_membrane_loss``; as for :func:`mse_count`, a sample is
    one number under every reduction.
    """
    check_readout("outputs", outputs, targets)
    membrane = _compute(outputs)
    wanted = _per_class(membrane[0], targets, on=on_target, off=off_target)
    return _reduce(_mean_square(membrane - wanted).mean(0), targets, weight, membrane.shape[-1], reduction)


def rate_regularizer(
    spikes: Tensor, *, target: Union[float, Tuple[float, float]], per: str = "neuron", strength: float = 1.0
) -> Tensor:
    """Penalty on mean firing rates that leave a band, or a point; a term to add to a loss, for any layer's spikes.

    ``strength * mean_i (max(0, lower - r_i)^2 + max(0, r_i - upper)^2)`` with rates ``r_i`` in spikes per step.
    ``target=(lower, upper)`` is the band; one number is both bounds, and the penalty then
    ``strength * mean_i (r_i - target)^2``.

    ``spikes`` is ``[T, B, ...]``. ``per`` says what a rate ``r_i`` averages over: ``"neuron"`` over time and batch, so
    that silent neurons wake up but codes may be sparse; ``"sample"`` over time, one rate per neuron and sample;
    ``"population"`` over time and all neurons, one rate per sample.

    Raises TypeError for a dtype that is not floating point or a target that is no number or pair, ValueError for fewer
    than three dimensions, bounds other than ``0 <= lower <= upper`` or an unknown ``per``. Source: a point per neuron
    is the regulariser of Bellec et al. (2020, e-prop); squared bounds, the lower one per neuron and the upper one per
    population, are those of Cramer et al. (2020, Heidelberg spiking data sets).
    """
    _check_spikes(spikes)
    lower, upper = _band(target)
    over = {"neuron": (0, 1), "sample": (0,), "population": (0, *range(2, spikes.ndim))}
    if per not in over:
        raise ValueError(f"per must be one of {', '.join(map(repr, over))}, got {per!r}")
    rates = _compute(spikes).mean(over[per])
    below, above = (lower - rates).relu(), (rates - upper).relu()
    return strength * (below * below + above * above).mean()


def rate_sparsity(spikes: Tensor, *, strength: float = 1e-5) -> Tensor:
    """Penalty on every spike, ``strength * sum(spikes)``; a term to add to a loss.

    ``spikes`` is ``[T, B, ...]``. The sum is over the batch too: ``strength`` is per spike, and the term grows with the
    batch. This L1 norm takes no absolute value: spikes are not negative, and the derivative 0 of ``abs`` at 0 would
    keep the penalty from neurons that are silent but near their threshold. Raises as :func:`rate_regularizer`.
    Source: snnTorch's ``l1_rate_sparsity``.
    """
    _check_spikes(spikes)
    return strength * _compute(spikes).sum()


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


def _whole_spikes(name: str, rate: float, most: int) -> float:
    if not isinstance(rate, (int, float)):
        raise TypeError(f"{name} must be a number, got {rate!r}")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1 spikes per step, got {rate!r}")
    # 0.29 * 100 is 28.999999999999996, and 29 spikes are meant.
    return float(math.floor(most * rate + 1e-6))


def _compute(outputs: Tensor) -> Tensor:
    return outputs.to(compute_dtype(outputs.dtype))


def _cross_entropy(log_p: Tensor, targets: Tensor) -> Tensor:
    """``-log_p[b, y_b]``, ``[B]``."""
    return -_indexed(lambda index: log_p.gather(-1, index), targets, log_p.shape[-1]).squeeze(-1)


def _mean_square(error: Tensor) -> Tensor:
    return (error * error).mean(-1)


def _per_class(like: Tensor, targets: Tensor, *, on: float, off: float) -> Tensor:
    """``[B, C]`` with ``on`` in the column of the target and ``off`` elsewhere.

    Not one_hot, which reads the targets on the host on some devices; scatter checks their range where it runs.
    """
    wanted = torch.full_like(like, off)
    ones = torch.full_like(like[:, :1], on)
    return _indexed(lambda index: wanted.scatter(-1, index, ones), targets, like.shape[-1])


def _indexed(function: Callable[[Tensor], Tensor], targets: Tensor, classes: int) -> Tensor:
    """``function(targets[:, None])``; what torch says of a target that is no class becomes a sentence."""
    index = targets.long().unsqueeze(-1)
    if is_compiling():
        return function(index)
    try:
        return function(index)
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise
        outside = targets[(targets < 0) | (targets >= classes)][:3].tolist()
        raise IndexError(
            f"targets has {', '.join(map(str, outside))}, out of range: the classes are 0 to {classes - 1}. There is "
            "no ignore_index: leave these samples out, keep = targets >= 0; loss(outputs[:, keep], targets[keep])"
        ) from error


def _reduce(losses: Tensor, targets: Tensor, weight: Optional[Tensor], classes: int, reduction: str) -> Tensor:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, got {reduction!r}")
    total = None
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise TypeError(f"weight must be a tensor, one factor per class, got {type(weight).__name__}")
        if tuple(weight.shape) != (classes,):
            raise ValueError(f"weight must have shape ({classes},), one factor per class, got {tuple(weight.shape)}")
        # In a PopTorch graph this makes the weight of a closure a constant; elsewhere it should be in place already.
        factor = weight.to(device=losses.device, dtype=losses.dtype).index_select(0, targets.long())
        losses, total = losses * factor, factor.sum()
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if total is None else losses.sum() / total
