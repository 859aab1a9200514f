"""Metrics of a spiking classifier. A metric stays on the device of the spikes, and nothing waits for a value there."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

from spikecore.context import is_plain
from spikecore.losses import Steps, check_readout, left_out, pool

__all__ = ["accuracy"]

#: Values that predict a class.
_BY = ("count", "first_spike", "max_membrane", "mean_membrane")


def accuracy(
    spikes: Tensor,
    targets: Tensor,
    *,
    by: str = "count",
    num_classes: Optional[int] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
) -> Tensor:
    """The fraction of samples whose predicted class is the target, a 0-d float32 tensor on the device of ``spikes``.

    ``by`` says which class is predicted, as the loss does that the network was trained with:

    - ``"count"``: the class with most spikes, for ``ce_count``, ``mse_count`` and ``ce_rate``. Graded and pooled spikes
      add up. Negative values are no spikes: a ValueError, and where values cannot be read (on a GPU or IPU, in a
      compiled graph) the accuracy is NaN. Those of ``TernaryLIF`` want ``"mean_membrane"``;
    - ``"first_spike"``: the class that spikes first, for ``ce_temporal``, ``mse_temporal`` and ``first_spike``. A spike
      is whatever is not 0, and a class without one counts as time T, after all steps;
    - ``"max_membrane"``: the class with the highest value at any step, for ``ce_max_membrane``;
    - ``"mean_membrane"``: the class with the highest mean over time, for ``mse_membrane``, for ``ce_rate`` of a
      membrane or a linear read-out, and for a loss of ``outputs.mean(0)``.

    Of equals the first index wins, so that an all-silent sample is class 0. Targets may lie on another device, as those
    of a training step may.

    ``spikes`` is ``[T, B, C]`` of any real dtype or bool, spikes or membrane potentials; ``targets`` are class indices
    ``[B]``. With ``num_classes=K`` the C neurons are K groups of neighbours, which are added at each step; the first
    spike of a group is that of its first neuron to spike.

    For sequences of different lengths ``mask``, bool ``[T, B]``, is True at real steps. At padded ones nothing spikes,
    whatever ``spikes`` holds there, NaN included. A sequence without a real step is a ValueError; where the mask cannot
    be read (on a GPU or IPU, in a compiled graph) the accuracy is NaN.

    Samples whose target is ``ignore_index`` are left out, as by losses: the fraction is of the others, NaN if there is
    none. Without it a target that is no class is a sample that is never right.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape, ``num_classes`` or ``by``. Source: snnTorch's
    ``accuracy_rate`` and ``accuracy_temporal``, which read the result on the host.
    """
    check_readout("spikes", spikes, targets, floating=False)
    without = left_out(targets, ignore_index)
    if by not in _BY:
        raise ValueError(f"by must be one of {', '.join(map(repr, _BY))}, got {by!r}")
    steps = Steps("spikes", spikes, mask, without)
    if by == "first_spike":
        # Pooled at each step, a group spikes when one of its neurons does.
        predicted = _first_step(pool((steps.filled(spikes) != 0).float(), num_classes) > 0).argmin(-1)
    else:
        # float32 counts are exact up to 2**24; those in the spikes' own half precision would tie where they differ.
        x = pool(spikes.to(torch.float64 if spikes.dtype == torch.float64 else torch.float32), num_classes)
        # the mean of a sample has the order of its sum
        predicted = (steps.max(x) if by == "max_membrane" else steps.filled(x).sum(0)).argmax(-1)
    right = steps.valid((predicted == targets.to(predicted.device)).float())
    if by == "count":
        right = right.masked_fill(_negative(steps.filled(spikes)), math.nan)
    if without is None:
        return right.mean()
    without = without.to(right.device)
    return right.masked_fill(without, 0).sum() / without.logical_not().float().sum()


def _negative(spikes: Tensor) -> Tensor:
    """True if there are values below 0, as a tensor ``[]``; ValueError if so and values can be read without waiting."""
    negative = (spikes < 0).any()
    if negative.is_cpu and is_plain(negative) and bool(negative):
        raise ValueError(
            "by='count' counts spikes, and spikes has negative values, as membrane potentials and linear read-outs "
            "have: give by='max_membrane' for a network trained with ce_max_membrane, and by='mean_membrane' for one "
            "trained on the mean over time, as by mse_membrane"
        )
    return negative


def _first_step(fired: Tensor) -> Tensor:
    """``[T, B, C] -> [B, C]``: the first step that is True, T where none is."""
    steps = fired.shape[0]
    time = torch.arange(steps, device=fired.device, dtype=torch.float32).reshape(steps, 1, 1)
    return torch.where(fired, time, torch.full_like(time, float(steps))).amin(0)
