"""Metrics of a spiking classifier. A metric stays on the device of the spikes, and nothing waits for a value there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from spikecore.context import is_plain
from spikecore.losses import Steps, by_place, check_readout, check_spikes, left_out, pool

__all__ = ["accuracy", "accuracy_over_time", "confusion", "latency", "sparsity"]
__dir__ = __all__.copy

#: Values that predict a class.
_BY = ("count", "first_spike", "max_membrane", "mean_membrane")


def accuracy(
    spikes: Tensor,
    targets: Tensor,
    *,
    by: str = "count",
    top: int = 1,
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

    Of equals the first index wins, so that an all-silent sample is class 0. ``top=k``: the target is among the first k
    classes in this order. Targets may lie on another device, as those of a training step may.

    ``spikes`` is ``[T, B, C]`` of any real dtype or bool, spikes or membrane potentials; ``targets`` are class indices
    ``[B]``. Dense outputs are ``[T, B, C, *P]`` with targets ``[B, *P]``: each place is a sample. With
    ``num_classes=K`` the C neurons are K groups of neighbours, which are added at each step; the first spike of a group
    is that of its first neuron to spike.

    For sequences of different lengths ``mask``, bool ``[T, B]``, is True at real steps. At padded ones nothing spikes,
    whatever ``spikes`` holds there, NaN included. A sequence without a real step is a ValueError; where the mask cannot
    be read (on a GPU or IPU, in a compiled graph) the accuracy is NaN.

    Samples whose target is ``ignore_index`` are left out, as by losses: the fraction is of the others, NaN if there is
    none. Without it a target that is no class is a sample that is never right.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape, ``num_classes``, ``top`` or ``by``. Source:
    snnTorch's ``accuracy_rate`` and ``accuracy_temporal``, which read the result on the host.
    """
    out = _Outputs(spikes, targets, by, num_classes, mask, ignore_index)
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= out.classes:
        raise ValueError(f"top must be a number of classes from 1 to {out.classes}, got {top!r}")
    scores = out.scores()
    # stable: of equals the first
    first = scores.argmax(-1, True) if top == 1 else scores.sort(dim=-1, descending=True, stable=True).indices[:, :top]
    return out.mean((first == out.targets.unsqueeze(-1)).any(-1))


def accuracy_over_time(spikes: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """The accuracy of ``spikes[: t + 1]`` for each step t, ``[T]``; a sequence that has ended keeps its prediction.

    ``options``: ``by``, ``num_classes``, ``mask`` and ``ignore_index``; these, and errors, are as of :func:`accuracy`.
    """
    out = _Outputs(spikes, targets, **options)
    return out.mean(out.scores(running=True).argmax(-1) == out.targets)


def latency(spikes: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """The number of steps to each decision, from 1 to T, float32 in the shape of ``targets``, which say nothing else.

    From then on the predicted class is that of the whole sequence: 1 where no class spikes. Predictions, options and
    errors are those of :func:`accuracy_over_time`.
    """
    out = _Outputs(spikes, targets, **options)
    predicted = out.scores(running=True).argmax(-1)
    step = torch.arange(1, len(predicted) + 1, device=predicted.device, dtype=torch.float32).unsqueeze(-1)
    return out.valid(((predicted != predicted[-1]) * step).amax(0) + 1).reshape(targets.shape)


def confusion(spikes: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Numbers of samples of each class that are predicted as each class, int64 ``[C, C]``; the row is the target.

    Targets that are ``ignore_index`` or no class are not counted. Options and errors as of :func:`accuracy_over_time`.
    """
    out = _Outputs(spikes, targets, **options)
    predicted, classes = out.scores().argmax(-1), out.classes
    counted = out.counted & (out.targets >= 0) & (out.targets < classes) & ~out.valid(predicted).isnan()
    pairs = out.targets.long().clamp(0, classes - 1) * classes + predicted
    return pairs.new_zeros(classes * classes).index_add(0, pairs, counted.long()).reshape(classes, classes)


def sparsity(spikes: Tensor, *, mask: Optional[Tensor] = None) -> Tensor:
    """The fraction of zeros in ``spikes`` ``[T, B, ...]``, of real steps with a ``mask``; a 0-d float32 tensor."""
    check_spikes(spikes, floating=False)
    steps, silent = Steps("spikes", spikes, mask), (spikes == 0).flatten(2).float().mean(-1)
    return steps.sum(silent).sum() / steps.count(silent).sum()


@dataclass(eq=False)
class _Outputs:
    """Checked outputs and targets, with each place as a sample."""

    spikes: Tensor
    targets: Tensor
    by: str = "count"
    num_classes: Optional[int] = None
    mask: Optional[Tensor] = None
    ignore_index: Optional[int] = None

    def __post_init__(self) -> None:
        check_readout("spikes", self.spikes, self.targets, floating=False)
        if self.by not in _BY:
            raise ValueError(f"by must be one of {', '.join(map(repr, _BY))}, got {self.by!r}")
        self.spikes, targets, mask = by_place("spikes", self.spikes, self.targets, self.mask)
        without = left_out(targets, self.ignore_index)
        self.steps = Steps("spikes", self.spikes, mask, without)
        x = (self.steps.filled(self.spikes) != 0) if self.by == "first_spike" else self.spikes
        # float32 counts are exact up to 2**24; those in the spikes' own half precision would tie where they differ
        self.x = pool(x.to(torch.float64 if x.dtype == torch.float64 else torch.float32), self.num_classes)
        counted = torch.ones_like(targets, dtype=torch.bool) if without is None else without.logical_not()
        self.classes, self.targets, self.counted = self.x.shape[-1], targets.to(x.device), counted.to(x.device)

    def scores(self, running: bool = False) -> Tensor:
        """Numbers ``[B, C]``, the largest of the predicted class; of the steps so far ``[T, B, C]``."""
        if self.by == "max_membrane":
            return self.steps.filled(self.x, -math.inf).cummax(0).values if running else self.steps.max(self.x)
        if self.by != "first_spike":
            # the mean of a sample has the order of its sum
            x = self.steps.filled(self.x)
            return x.cumsum(0) if running else x.sum(0)
        # pooled at each step, a group spikes when one of its neurons does; T where none does
        steps = len(self.x)
        time = torch.arange(steps, device=self.x.device, dtype=torch.float32).reshape(steps, 1, 1)
        first = torch.where(self.x > 0, time, torch.full_like(time, float(steps)))
        return -(first.cummin(0).values if running else first.amin(0))

    def valid(self, results: Tensor) -> Tensor:
        """Results ``[..., B]`` with NaN where a sequence has no real step, and where counted spikes are negative."""
        results = self.steps.valid(results.float().movedim(-1, 0)).movedim(0, -1)
        if self.by == "count":
            results = results.masked_fill(_negative(self.steps.filled(self.spikes)), math.nan)
        return results

    def mean(self, right: Tensor) -> Tensor:
        """The mean of ``[..., B]`` over the samples that are not left out."""
        return self.valid(right).masked_fill(~self.counted, 0).sum(-1) / self.counted.sum()


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
