"""Losses of spike times, as :mod:`spikecore.losses` gives them; its rules hold here, too.

Rules of this module:

- A spike is whatever is not 0. The time of a neuron's k-th spike is the number of steps before it, and T - 1, that of
  the last step, where it has no such spike. With a mask, steps are counted among the real ones of the sequence.
- A spike time has no derivative. That with respect to the output at this step counts as -1 (a larger output: an earlier
  spike), also at the last step of a neuron without a spike, and as 0 at all others; of a time that stands for several
  missing spikes each of them adds its own.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Union

import torch
from torch import Tensor

from spikecore._padding import Steps
from spikecore._readout import check_readout, check_times, computed
from spikecore._targets import Targets, combined, kept, left_out

__all__ = ["ce_temporal", "mse_temporal"]

_INVERSES = ("negate", "reciprocal")


def ce_temporal(
    outputs: Tensor,
    targets: Tensor,
    *,
    inverse: str = "negate",
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of first spikes: the class that should win should spike first.

    ``l_b = -log softmax(g(t_b))[y_b]`` with the time ``t_bc`` of the first spike, in steps from 0, and ``T - 1`` for a
    neuron without one; ``g(t) = -t`` for ``inverse="negate"``, ``1 / (t + 1)`` for ``"reciprocal"``. The derivative of
    ``t_bc`` counts as -1 with respect to the output at that step, and as 0 at all others. With a mask steps are counted
    among the real ones of the sequence, and T is their number.

    ``outputs`` are spikes ``[T, B, C]``, one for each class; a spike is what is not 0. Otherwise as for
    :func:`ce_count`; ValueError also for another ``inverse``. Source: snnTorch's ``ce_temporal_loss``.
    """
    check_readout("outputs", outputs, targets)
    if inverse not in _INVERSES:
        raise ValueError(f"inverse must be one of {', '.join(map(repr, _INVERSES))}, got {inverse!r}")
    without = left_out(targets, ignore_index)
    outputs = kept(outputs, without)
    steps = Steps("outputs", outputs, mask, without)
    (first,) = _spike_times(steps, computed(outputs), 1)
    sooner = -first if inverse == "negate" else 1.0 / (first + 1.0)
    labels = Targets(targets, outputs.shape[-1], weight, ignore_index, reduction)
    return labels.cross_entropy(steps.valid(sooner).log_softmax(-1), label_smoothing)


def mse_temporal(
    outputs: Tensor,
    targets: Tensor,
    *,
    on_target: Union[float, Sequence[float]] = 0,
    off_target: Union[float, Sequence[float]] = -1,
    tolerance: float = 0,
    target_is_time: bool = False,
    weight: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared distance of first spikes, or of the first F, from wanted times, for the right class and for the others.

    ``l_b = mean_kc ((t_kbc - m_kbc) / T)^2`` with the time ``t_kbc`` of spike k of neuron c, in steps from 0, and
    ``T - 1`` where there is none; ``m_kbc = on_target[k]`` where ``c = y_b``, else ``off_target[k]``. A wanted time
    below 0 is one from the end, ``T + m``: -1 is the last step. A spike nearer than ``tolerance`` to its time costs
    nothing. The derivative of ``t_kbc`` counts as -1 with respect to the output at that step, and as 0 at all others;
    spikes after the first F cost nothing. With a mask steps are counted among the real ones of the sequence, and T is
    their number; a wanted time from before its beginning is then 0.

    ``outputs`` are spikes ``[T, B, C]``; a spike is what is not 0. ``on_target`` and ``off_target`` are numbers, or F
    numbers each, in increasing order. With ``target_is_time=True`` the ``targets`` are the wanted times themselves,
    ``[B, C]``, or ``[F, B, C]``, instead of class indices; ``weight`` and ``ignore_index``, about classes, are
    then refused, and a time before ``-T`` is step 0, since nothing reads a tensor on the host. Otherwise as for
    :func:`ce_count`; ValueError also for an ``on_target`` or ``off_target`` before ``-T`` and for different F.
    Source: snnTorch's ``mse_temporal_loss``, whose version 1.0 differs: it takes its default ``off_target=-1`` as
    0, ``"sum"`` and ``"none"`` keep the classes apart, and ``multi_spike=True`` finds the second spike of a neuron
    among the steps at which no neuron of the batch had its first.
    """
    without: Optional[Tensor] = None
    if target_is_time:
        check_times("outputs", outputs, targets)
        if weight is not None or ignore_index is not None:
            raise ValueError("weight and ignore_index are about classes; with target_is_time=True leave them out")
    else:
        check_readout("outputs", outputs, targets)
        without = left_out(targets, ignore_index)
        outputs = kept(outputs, without)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise ValueError(f"tolerance must be a number of steps, 0 or more, got {tolerance!r}")
    steps, x = Steps("outputs", outputs, mask, without), computed(outputs)
    lengths = steps.count(x).unsqueeze(-1)
    if target_is_time:
        wanted = [_from_start(at.to(x.dtype), lengths) for at in (targets if targets.ndim == 3 else targets[None])]
        times = _spike_times(steps, x, len(wanted))
        each = torch.stack([_distance(t, m, lengths, tolerance) for t, m in zip(times, wanted)]).mean(0)
        return combined(steps.valid(each.mean(-1)), reduction)
    on, off = (_as_times(name, at, len(x)) for name, at in (("on_target", on_target), ("off_target", off_target)))
    if len(on) != len(off):
        raise ValueError(f"on_target and off_target must have as many times, got {len(on)} and {len(off)}")
    labels = Targets(targets, x.shape[-1], weight, ignore_index, reduction)
    errors = []
    for time, right, wrong in zip(_spike_times(steps, x, len(on)), on, off):
        wanted_one = _from_start(labels.per_class(time.detach(), on=right, off=wrong), lengths)
        errors.append(_distance(time, wanted_one, lengths, tolerance))
    return labels.reduce(steps.valid(torch.stack(errors).mean(0).mean(-1)))


def _spike_times(steps: Steps, x: Tensor, spikes: int) -> List[Tensor]:
    """The times ``[B, C]`` of the first so many spikes of ``x`` ``[T, B, C]``."""
    x = steps.filled(x)
    now, last = steps.places(x)  # [T, B, 1] or [T, 1, 1], and [B, 1]
    now, last = now.unsqueeze(-1), last.unsqueeze(-1)
    fired = x.detach() != 0
    through = x - x.detach()  # 0 in value, with the derivative of the output
    times: List[Tensor] = []
    for _ in range(spikes):
        # the last step where nothing fired; at a padded step nothing does
        time = torch.where(fired, now, last.unsqueeze(0)).amin(0)
        at = steps.filled((now == time).to(x.dtype))
        times.append(time - (through * at).sum(0))
        fired = fired & (now > time)
    return times


def _distance(time: Tensor, wanted: Tensor, lengths: Tensor, tolerance: float) -> Tensor:
    error = time - wanted
    if tolerance:
        error = error.masked_fill((error < tolerance) & (error > -tolerance), 0)
    error = error / lengths.clamp(min=1)
    return error * error


def _from_start(wanted: Tensor, lengths: Tensor) -> Tensor:
    """Times from the end, which are below 0, as times from the start."""
    return torch.where(wanted < 0, (wanted + lengths).clamp(min=0), wanted)


def _as_times(name: str, at: Any, length: int) -> List[float]:
    values = at.tolist() if isinstance(at, Tensor) else at
    numbers: List[Any] = list(values) if isinstance(values, (list, tuple)) else [values]
    if not numbers or any(isinstance(one, bool) or not isinstance(one, (int, float)) for one in numbers):
        raise TypeError(f"{name} must be a number of steps or a sequence of them, got {at!r}")
    if not all(-length <= one < math.inf for one in numbers):
        raise ValueError(f"{name} must be a time from 0 on, or from the end, down to -T = {-length}, got {at!r}")
    return [float(one) for one in numbers]
