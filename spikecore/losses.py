"""Losses on what a spiking network puts out, and regularisers of how much it spikes.

Rules of this module:

- A loss is a plain function ``loss(outputs, targets, *, ...) -> 0-d tensor`` of outputs ``[T, B, C]`` and class indices
  ``[B]``. It can be given to ``training_model`` as it is; ``functools.partial`` sets its keywords.
- A loss gives one number per sample first; ``reduction`` then combines the samples. ``"mean"`` with class weights is
  torch's weighted mean, ``sum_b w[y_b] l_b / sum_b w[y_b]``; ``"sum"`` adds ``w[y_b] l_b``; ``"none"`` returns them,
  ``[B]``.
- Samples whose target is ``ignore_index`` are left out, as in torch: their loss and their gradient are 0, whatever
  their outputs are, and a mean is over the other samples (NaN if there is none). It need not be a class.
- Cross entropies take ``label_smoothing=s`` as torch's, which has each of the K classes wanted with the probability
  s / K and the target with 1 - s more: ``l_b = -(1 - s) log p_b[y_b] - s / K sum_c log p_b[c]``. With class weights
  that is ``-(1 - s) w[y_b] log p_b[y_b] - s / K sum_c w[c] log p_b[c]``, and a mean divides by ``sum_b w[y_b]``.
- Population coding: with ``num_classes=K`` the C outputs are K groups of C / K neighbours, pooled by summing.
- Sequences of different lengths: ``mask``, bool ``[T, B]``, is True at real steps (``sc.functional.mask_of`` makes it
  from lengths). Sums, means and maxima over time are over real steps alone, and the T of an equation is then T_b, the
  number of real steps of the sequence: each has the loss that it has alone and without padding. Whatever the padded
  outputs are, NaN and infinity included, their gradient is 0. A sequence without a real step is a ValueError unless
  ``ignore_index`` leaves it out; where the mask cannot be read (on a GPU or IPU, in a compiled graph) its loss is NaN,
  and so are mean and sum.
- Arithmetic is float32, float64 for float64 outputs: a spike count in bfloat16 is exact only up to 256.
- Plain operations only, nothing waits for a device to read a value, and checks look at shapes and dtypes alone, but for
  that of a mask on a CPU: every backend can compile a loss. That is also why no built-in torch loss is called here;
  PopTorch starts the backward pass at those and refuses their ``weight``. Target values are checked by torch, where it
  gathers.
"""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

from spikecore._padding import Steps
from spikecore._rates import rate_regularizer, rate_sparsity
from spikecore._readout import check_readout, computed, pool
from spikecore._targets import Targets, kept, left_out
from spikecore._temporal import ce_temporal, mse_temporal

__all__ = [
    "ce_count",
    "ce_max_membrane",
    "ce_rate",
    "ce_temporal",
    "mse_count",
    "mse_membrane",
    "mse_temporal",
    "rate_regularizer",
    "rate_sparsity",
]


def ce_count(
    outputs: Tensor,
    targets: Tensor,
    *,
    num_classes: Optional[int] = None,
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of the spike counts: the class that should win should spike most.

    ``l_b = -log softmax(n_b)[y_b]`` with the counts ``n_b = sum_t outputs[t, b]``, pooled over populations.

    ``outputs`` are spikes ``[T, B, C]``, ``targets`` class indices ``[B]``, ``weight`` one factor per class, ``mask``
    bool ``[T, B]``, True at real steps; the sum is over these. ``ignore_index`` is the target of samples to leave out,
    ``label_smoothing`` from 0 to 1 the part that all classes share: see the module.
    Raises TypeError for a wrong dtype, ValueError for a wrong shape, ``num_classes``, ``label_smoothing`` or
    ``reduction``, or a sequence without a real step; IndexError for a target that is no class, where torch sees it.
    Source: snnTorch's ``ce_count_loss``, but for the weighted mean.
    """
    check_readout("outputs", outputs, targets)
    without = left_out(targets, ignore_index)
    outputs = kept(outputs, without)
    counts = pool(Steps("outputs", outputs, mask, without).sum(computed(outputs)), num_classes)
    labels = Targets(targets, counts.shape[-1], weight, ignore_index, reduction)
    return labels.cross_entropy(counts.log_softmax(-1), label_smoothing)


def ce_rate(
    outputs: Tensor,
    targets: Tensor,
    *,
    num_classes: Optional[int] = None,
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy at every step, averaged over time: the right class should spike at all steps, and others at none.

    ``l_b = -1/T sum_t log softmax(outputs[t, b])[y_b]``; populations are pooled at each step. With a mask the sum is
    over the real steps of the sequence, and T their number.

    Arguments and errors as for :func:`ce_count`. Source: snnTorch's ``ce_rate_loss``, whose population code fails.
    """
    check_readout("outputs", outputs, targets)
    without = left_out(targets, ignore_index)
    outputs = kept(outputs, without)
    steps = Steps("outputs", outputs, mask, without)
    # filled before the softmax as well: the derivative there of a padded NaN would be NaN times 0
    log_p = steps.mean(pool(steps.filled(computed(outputs)), num_classes).log_softmax(-1))
    return Targets(targets, log_p.shape[-1], weight, ignore_index, reduction).cross_entropy(log_p, label_smoothing)


def ce_max_membrane(
    outputs: Tensor,
    targets: Tensor,
    *,
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of the highest membrane potentials: the right class should get nearest to its threshold, once.

    ``l_b = -log softmax(max_t outputs[t, b])[y_b]``; the gradient goes to the step of the maximum. With a mask
    only real steps are candidates.

    ``outputs`` are membrane potentials ``[T, B, C]``; otherwise as for :func:`ce_count`.
    Source: Zenke's SpyTorch, snnTorch's ``ce_max_membrane_loss``.
    """
    check_readout("outputs", outputs, targets)
    without = left_out(targets, ignore_index)
    outputs = kept(outputs, without)
    log_p = Steps("outputs", outputs, mask, without).max(computed(outputs)).log_softmax(-1)
    return Targets(targets, log_p.shape[-1], weight, ignore_index, reduction).cross_entropy(log_p, label_smoothing)


def mse_count(
    outputs: Tensor,
    targets: Tensor,
    *,
    correct_rate: float = 1.0,
    incorrect_rate: float = 0.0,
    num_classes: Optional[int] = None,
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared distance of the spike counts from wanted counts, for the right class and for the others.

    ``l_b = 1/T mean_c (n_bc - m_bc)^2`` with the counts ``n_b = sum_t outputs[t, b]``, pooled over populations of g
    neurons, and ``m_bc = floor(T g correct_rate)`` where ``c = y_b``, ``floor(T g incorrect_rate)`` elsewhere.
    With a mask T is the number of real steps of the sequence, in the wanted counts as well.

    The rates are spikes per neuron and step, 0 to 1. Otherwise as for :func:`ce_count`; ValueError for a rate outside.
    Source: SLAYER (Shrestha and Orchard, 2018) through snnTorch's ``mse_count_loss``, division by T (not T^2) included.
    There, ``"sum"`` and ``"none"`` keep the classes apart; here a sample is always one number.
    """
    check_readout("outputs", outputs, targets)
    without = left_out(targets, ignore_index)
    outputs = kept(outputs, without)
    steps = Steps("outputs", outputs, mask, without)
    counts = pool(steps.sum(computed(outputs)), num_classes)
    labels = Targets(targets, counts.shape[-1], weight, ignore_index, reduction)
    length, group = outputs.shape[0], outputs.shape[-1] // counts.shape[-1]
    rates = (("correct_rate", correct_rate), ("incorrect_rate", incorrect_rate))
    if mask is None:
        right, wrong = (_whole_spikes(name, rate, length * group) for name, rate in rates)
        return labels.reduce(_mean_square(counts - labels.per_class(counts, on=right, off=wrong)) / length)
    lengths = steps.count(computed(outputs))
    on, off = (_whole_spikes_of(name, rate, lengths, length, group) for name, rate in rates)
    return labels.reduce(_mean_square(counts - labels.per_class(counts, on=on, off=off)) / lengths)


def mse_membrane(
    outputs: Tensor,
    targets: Tensor,
    *,
    on_target: float = 1.0,
    off_target: float = 0.0,
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared distance of the membrane potentials, at all steps, from one value for the right class, another elsewhere.

    ``l_b = 1/T sum_t mean_c (outputs[t, b, c] - m_bc)^2`` with ``m_bc = on_target`` where ``c = y_b``, else
    ``off_target``. With a mask the sum is over the real steps of the sequence, and T their number.

    ``outputs`` are membrane potentials ``[T, B, C]``; otherwise as for :func:`ce_count`. To follow a whole trace, use
    ``torch.nn.functional.mse_loss``. Source: snnTorch's ``mse_membrane_loss``; as for :func:`mse_count`, a sample is
    one number under every reduction.
    """
    check_readout("outputs", outputs, targets)
    without = left_out(targets, ignore_index)
    outputs = kept(outputs, without)
    steps = Steps("outputs", outputs, mask, without)
    # filled before the square as well: the derivative there of a padded NaN would be NaN times 0
    membrane = steps.filled(computed(outputs))
    labels = Targets(targets, membrane.shape[-1], weight, ignore_index, reduction)
    wanted = labels.per_class(membrane[0], on=on_target, off=off_target)
    return labels.reduce(steps.mean(_mean_square(membrane - wanted)))


def _whole_spikes(name: str, rate: float, most: int) -> float:
    if not isinstance(rate, (int, float)):
        raise TypeError(f"{name} must be a number, got {rate!r}")
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1 spikes per step, got {rate!r}")
    # 0.29 * 100 is 28.999999999999996, and 29 spikes are meant.
    return float(math.floor(most * rate + 1e-6))


def _whole_spikes_of(name: str, rate: float, lengths: Tensor, longest: int, group: int) -> Tensor:
    """:func:`_whole_spikes` of sequences of so many steps each, ``[B]``, as ``[B, 1]``; in float64, as that."""
    most = _whole_spikes(name, rate, longest * group)
    if lengths.device.type in ("cpu", "cuda"):
        # not from a table, whose copy from the host a CUDA graph cannot capture
        wanted = torch.floor(lengths.double() * group * rate + 1e-6).to(lengths.dtype)
    else:
        # not all other devices have float64; in a PopTorch graph the table is a constant
        table = [*(_whole_spikes(name, rate, steps * group) for steps in range(longest)), most]
        wanted = torch.tensor(table, dtype=lengths.dtype).to(lengths.device).index_select(0, lengths.long())
    return wanted.unsqueeze(-1)


def _mean_square(error: Tensor) -> Tensor:
    return (error * error).mean(-1)
