"""Metrics of a spiking classifier. A metric stays on the device of the spikes; nothing waits for it to read a value."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from spikecore._base.misnamed import hint_at_missing
from spikecore.losses import Steps, check_readout, left_out, pool

__all__ = ["accuracy"]


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

    ``by="count"`` predicts the class with most spikes; ``by="first_spike"`` the class that spikes first, where a class
    without a spike counts as time T, after all steps. Of equals the first index wins, so that an all-silent sample is
    class 0. Targets may lie on another device, as those of a training step may.

    ``spikes`` is ``[T, B, C]`` of any real dtype or bool, a spike being whatever is not 0; ``targets`` are class
    indices ``[B]``. With ``num_classes=K`` the C neurons are K groups of neighbours: counts add up, and the first spike
    of a group is that of its first neuron to spike.

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
    steps = Steps("spikes", spikes, mask, without)
    spikes = steps.filled(spikes)
    if by == "count":
        # float32 counts are exact up to 2**24; those in the spikes' own half precision would tie where they differ.
        dtype = torch.float64 if spikes.dtype == torch.float64 else torch.float32
        predicted = pool(spikes.sum(0, dtype=dtype), num_classes).argmax(-1)
    elif by == "first_spike":
        # Pooled at each step, a group spikes when one of its neurons does.
        fired = pool((spikes != 0).float(), num_classes) > 0
        predicted = _first_step(fired).argmin(-1)
    else:
        raise ValueError(f"by must be 'count' or 'first_spike', got {by!r}")
    right = steps.valid((predicted == targets.to(predicted.device)).float())
    if without is None:
        return right.mean()
    without = without.to(right.device)
    return right.masked_fill(without, 0).sum() / without.logical_not().float().sum()


def _first_step(fired: Tensor) -> Tensor:
    """``[T, B, C] -> [B, C]``: the first step that is True, T where none is."""
    steps = fired.shape[0]
    time = torch.arange(steps, device=fired.device, dtype=torch.float32).reshape(steps, 1, 1)
    return torch.where(fired, time, torch.full_like(time, float(steps))).amin(0)


hint_at_missing(__name__)
