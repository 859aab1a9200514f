"""Losses on what a spiking network puts out, and regularisers of how much it spikes.

Rules of this module:

- A loss is a plain function ``loss(outputs, targets, *, ...) -> 0-d tensor`` of outputs ``[T, B, C]`` and class indices
  ``[B]``. It can be given to ``training_model`` as it is; ``functools.partial`` sets its keywords.
- A loss gives one number per sample first; ``reduction`` then combines the samples. ``"mean"`` with class weights is
  torch's weighted mean, ``sum_b w[y_b] l_b / sum_b w[y_b]``; ``"sample_mean"`` is snnTorch's, ``sum_b w[y_b] l_b / B``;
  ``"sum"`` adds ``w[y_b] l_b``; ``"none"`` returns them, ``[B]``.
- Dense outputs are ``[T, B, C, *P]`` with targets ``[B, *P]``, as ``[T, B, C, H, W]`` of a segmentation. Each place is
  then a sample, with the mask of its sequence; ``"none"`` returns ``[B, *P]``.
- Samples whose target is ``ignore_index`` are left out, as in torch: their loss and their gradient are 0, whatever
  their outputs are, and a mean is over the other samples (NaN if there is none). It need not be a class.
- Cross entropies take ``label_smoothing=s`` as torch's, which has each of the K classes wanted with the probability
  s / K and the target with 1 - s more: ``l_b = -(1 - s) log p_b[y_b] - s / K sum_c log p_b[c]``. With class weights
  that is ``-(1 - s) w[y_b] log p_b[y_b] - s / K sum_c w[c] log p_b[c]``, and a mean divides by ``sum_b w[y_b]``.
- Spike times: a spike is whatever is not 0. The time of a neuron's k-th spike is the number of steps before it, and
  T - 1, that of the last step, where it has no such spike. A spike time has no derivative: that with respect to the
  output at this step counts as -1 (a larger output: an earlier spike), also at the last step of a neuron without a
  spike, and as 0 at all others; of a time that stands for several missing spikes each of them adds its own.
- Population coding: with ``num_classes=K`` the C outputs are K groups of C / K neighbours, pooled by summing.
- Sequences of different lengths: ``mask``, bool ``[T, B]``, is True at real steps (``sc.functional.mask_of`` makes it
  from lengths). Sums, means and maxima over time are over real steps alone, and the T of an equation is then T_b, the
  number of real steps of the sequence: each has the loss that it has alone and without padding. Padded outputs are
  replaced, and not multiplied by 0: whatever they are, NaN and infinity included, their gradient is 0. A sequence
  without a real step is a ValueError unless ``ignore_index`` leaves it out; where the mask cannot be read (on a GPU or
  IPU, in a compiled graph) its loss is NaN, and so are mean and sum.
- Arithmetic is float32, float64 for float64 outputs: a spike count in bfloat16 is exact only up to 256.
- Plain operations only, nothing waits for a device to read a value, and checks look at shapes and dtypes alone, but for
  that of a mask on a CPU: every backend can compile a loss. That is also why no built-in torch loss is called here;
  PopTorch starts the backward pass at those and refuses their ``weight``. Target values are checked by torch, where it
  gathers.
"""

from __future__ import annotations

import math
from functools import wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from spikecore._base import misnamed
from spikecore.context import is_compiling, is_plain
from spikecore.dtypes import compute_dtype

__all__ = [
    "ce_count",
    "ce_max_membrane",
    "ce_rate",
    "ce_temporal",
    "first_spike",
    "mse_count",
    "mse_membrane",
    "mse_temporal",
    "rate_regularizer",
    "rate_sparsity",
]
__dir__ = __all__.copy

#: One number for all samples, or ``[B, 1]``.
PerSample = Union[float, Tensor]
_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_REDUCTIONS = ("mean", "sample_mean", "sum", "none")
_INVERSES = ("negate", "reciprocal")


def _of_classes(loss_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss with the arguments that all losses of classes share, from one of ``(x, steps, labels)``: outputs in the
    dtype of losses, their real steps, and their targets. Samples that are left out are 0 in ``x``.
    """

    def loss(
        outputs: Tensor,
        targets: Tensor,
        *,
        weight: Optional[Tensor] = None,
        mask: Optional[Tensor] = None,
        ignore_index: Optional[int] = None,
        reduction: str = "mean",
        **options: Any,
    ) -> Tensor:
        labels = Targets(outputs, targets, weight, mask, ignore_index, reduction)
        return loss_of(labels.x, labels.steps, labels, **options)

    shared, own = [*signature(loss).parameters.values()][:-1], [*signature(loss_of).parameters.values()][3:]
    named: Any = wraps(loss_of)(loss)
    parameters = [*shared[:2], *own, *shared[2:]]
    # for help() and typing.get_type_hints()
    named.__signature__ = Signature(parameters, return_annotation="Tensor")
    named.__annotations__ = {**{each.name: each.annotation for each in parameters}, "return": "Tensor"}
    return named  # type: ignore[no-any-return]  # a function


@_of_classes
def ce_count(
    x: Tensor, steps: Steps, labels: Targets, *, num_classes: Optional[int] = None, label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy of the spike counts: the class that should win should spike most.

    ``l_b = -log softmax(n_b)[y_b]`` with the counts ``n_b = sum_t outputs[t, b]``, pooled over populations.

    ``outputs`` are spikes ``[T, B, C]``, ``targets`` class indices ``[B]``; dense ones ``[T, B, C, *P]`` and
    ``[B, *P]``. ``weight`` is one factor per class, ``mask`` bool ``[T, B]``, True at real steps; the sum is over
    these. ``ignore_index`` is the target of samples to leave out, ``label_smoothing`` from 0 to 1 the part that all
    classes share: see the module, and there also ``reduction``.
    Raises TypeError for a wrong dtype, ValueError for a wrong shape, ``num_classes``, ``label_smoothing`` or
    ``reduction``, or a sequence without a real step; IndexError for a target that is no class, where torch sees it.
    Source: snnTorch's ``ce_count_loss``, but for the weighted mean.
    """
    return labels.cross_entropy(pool(steps.sum(x), num_classes).log_softmax(-1), label_smoothing)


@_of_classes
def ce_rate(
    x: Tensor, steps: Steps, labels: Targets, *, num_classes: Optional[int] = None, label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy at every step, averaged over time: the right class should spike at all steps, and others at none.

    ``l_b = -1/T sum_t log softmax(outputs[t, b])[y_b]``; populations are pooled at each step. With a mask the sum is
    over the real steps of the sequence, and T their number.

    Arguments and errors as for :func:`ce_count`. Source: snnTorch's ``ce_rate_loss``, whose population code fails.
    """
    # filled before the softmax as well: the derivative there of a padded NaN would be NaN times 0
    log_p = steps.mean(pool(steps.filled(x), num_classes).log_softmax(-1))
    return labels.cross_entropy(log_p, label_smoothing)


@_of_classes
def ce_max_membrane(x: Tensor, steps: Steps, labels: Targets, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy of the highest membrane potentials: the right class should get nearest to its threshold, once.

    ``l_b = -log softmax(max_t outputs[t, b])[y_b]``; the gradient goes to the step of the maximum. With a mask
    only real steps are candidates.

    ``outputs`` are membrane potentials ``[T, B, C]``; otherwise as for :func:`ce_count`.
    Source: Zenke's SpyTorch, snnTorch's ``ce_max_membrane_loss``.
    """
    return labels.cross_entropy(steps.max(x).log_softmax(-1), label_smoothing)


@_of_classes
def mse_count(
    x: Tensor,
    steps: Steps,
    labels: Targets,
    *,
    correct_rate: float = 1.0,
    incorrect_rate: float = 0.0,
    levels: int = 1,
    num_classes: Optional[int] = None,
) -> Tensor:
    """Squared distance of the spike counts from wanted counts, for the right class and for the others.

    ``l_b = 1/T mean_c (n_bc - m_bc)^2`` with the counts ``n_b = sum_t outputs[t, b]``, pooled over populations of g
    neurons, and ``m_bc = floor(T g correct_rate)`` where ``c = y_b``, ``floor(T g incorrect_rate)`` elsewhere.
    With a mask T is the number of real steps of the sequence, in the wanted counts as well.

    The rates are spikes per neuron and step, 0 to 1, or to the ``levels`` of neurons that count, such as
    :class:`spikecore.ILIF`. Otherwise as for :func:`ce_count`; ValueError for a rate outside.
    Source: SLAYER (Shrestha and Orchard, 2018) through snnTorch's ``mse_count_loss``, division by T (not T^2) included.
    There, ``"sum"`` and ``"none"`` keep the classes apart; here a sample is always one number.
    """
    counts, lengths = pool(steps.sum(x), num_classes), steps.count(x)
    group = x.shape[-1] // counts.shape[-1]
    rates = (("correct_rate", correct_rate), ("incorrect_rate", incorrect_rate))
    on, off = (_whole_spikes(name, rate, steps, lengths, group, levels) for name, rate in rates)
    return labels.reduce(_mean_square(counts - labels.per_class(counts, on=on, off=off)) / lengths)


@_of_classes
def mse_membrane(
    x: Tensor, steps: Steps, labels: Targets, *, on_target: float = 1.0, off_target: float = 0.0
) -> Tensor:
    """Squared distance of the membrane potentials, at all steps, from one value for the right class, another elsewhere.

    ``l_b = 1/T sum_t mean_c (outputs[t, b, c] - m_bc)^2`` with ``m_bc = on_target`` where ``c = y_b``, else
    ``off_target``. With a mask the sum is over the real steps of the sequence, and T their number.

    ``outputs`` are membrane potentials ``[T, B, C]``; otherwise as for :func:`ce_count`. To follow a whole trace, use
    ``torch.nn.functional.mse_loss``. Source: snnTorch's ``mse_membrane_loss``; as for :func:`mse_count`, a sample is
    one number under every reduction.
    """
    # filled before the square as well: the derivative there of a padded NaN would be NaN times 0
    membrane = steps.filled(x)
    target = labels.per_class(membrane[0], on=on_target, off=off_target)
    return labels.reduce(steps.mean(_mean_square(membrane - target)))


@_of_classes
def ce_temporal(
    x: Tensor, steps: Steps, labels: Targets, *, inverse: str = "negate", label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy of first spikes: the class that should win should spike first.

    ``l_b = -log softmax(g(t_b))[y_b]`` with the time ``t_bc`` of the first spike, in steps from 0, and ``T - 1`` for a
    neuron without one; ``g(t) = -t`` for ``inverse="negate"``, ``1 / (t + 1)`` for ``"reciprocal"``. The derivative of
    ``t_bc`` counts as -1 with respect to the output at that step, and as 0 at all others. With a mask steps are counted
    among the real ones of the sequence, and T is their number.

    ``outputs`` are spikes ``[T, B, C]``, one for each class; a spike is what is not 0. Otherwise as for
    :func:`ce_count`; ValueError also for another ``inverse``. Source: snnTorch's ``ce_temporal_loss``.
    """
    if inverse not in _INVERSES:
        raise ValueError(f"inverse must be one of {', '.join(map(repr, _INVERSES))}, got {inverse!r}")
    (first,) = _spike_times(steps, x, 1)
    sooner = -first if inverse == "negate" else 1.0 / (first + 1.0)
    return labels.cross_entropy(steps.valid(sooner).log_softmax(-1), label_smoothing)


@_of_classes
def first_spike(
    x: Tensor,
    steps: Steps,
    labels: Targets,
    *,
    tau: float = 1.0,
    early: float = 0.0,
    tau_early: Optional[float] = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of first-spike times: the right class should spike first, by a margin of ``tau``, and soon.

    ``l_b = -log softmax(-t_b / tau)[y_b] + early (exp(t_b[y_b] / tau_early) - 1)`` with the time ``t_bc`` of the first
    spike, in steps from 0, and ``T - 1`` for a neuron without one. The derivative of ``t_bc`` counts as -1 with respect
    to the output at that step, and as 0 at all others. From neurons with ``gradient="spike_time"`` the gradient of all
    weights is then that of the loss in continuous time (EventProp); from others it goes through the surrogate. With a
    mask steps are counted among the real ones of the sequence, and T is their number.

    ``outputs`` are spikes ``[T, B, C]``, one neuron for each class; a spike is what is not 0. ``tau`` is a difference
    of times, in steps, above 0. ``early`` weighs the second term, which asks for early spikes; 0 or above.
    ``tau_early`` is in steps, above 0; None for T. Class weights and ``ignore_index`` concern both terms,
    ``label_smoothing`` the first. Otherwise as for :func:`ce_count`; ValueError also for another ``tau``, ``early`` or
    ``tau_early``.
    Source: Wunderlich and Pehle, "Event-based backpropagation can compute exact gradients for spiking neural networks"
    (2021).
    """
    for name, value in (("tau", tau), ("tau_early", 1.0 if tau_early is None else tau_early)):
        if not 0.0 < _number(name, value) < math.inf:
            raise ValueError(f"{name} must be a number of steps above 0, got {value!r}")
    if not 0.0 <= _number("early", early) < math.inf:
        raise ValueError(f"early must be 0 or above, got {early!r}")
    first = steps.valid(_spike_times(steps, x, 1)[0])
    loss = labels.cross_entropy((first / -tau).log_softmax(-1), label_smoothing)
    if not early:
        return loss
    of_target = (first * labels.per_class(first, on=1.0, off=0.0)).sum(-1)
    scale = steps.count(x).clamp(min=1) if tau_early is None else tau_early
    return loss + labels.reduce(early * ((of_target / scale).exp() - 1.0))


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
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0:
        raise ValueError(f"tolerance must be a number of steps, 0 or more, got {tolerance!r}")
    if target_is_time:
        check_times("outputs", outputs, targets)
        if weight is not None or ignore_index is not None:
            raise ValueError("weight and ignore_index are about classes; with target_is_time=True leave them out")
        steps, x = Steps("outputs", outputs, mask), computed(outputs)
        times = [at.to(x.dtype) for at in (targets if targets.ndim == 3 else targets[None])]
        return combined(_distance(steps, x, times, tolerance), reduction)
    labels = Targets(outputs, targets, weight, mask, ignore_index, reduction)
    x = labels.x
    on, off = (_as_times(name, at, len(x)) for name, at in (("on_target", on_target), ("off_target", off_target)))
    if len(on) != len(off):
        raise ValueError(f"on_target and off_target must have as many times, got {len(on)} and {len(off)}")
    times = [labels.per_class(x[0], on=right, off=wrong) for right, wrong in zip(on, off)]
    return labels.reduce(_distance(labels.steps, x, times, tolerance))


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
    check_spikes(spikes)
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
    check_spikes(spikes)
    steps = Steps("spikes", spikes, mask)
    x = computed(spikes)
    return strength * (x.sum() if mask is None else steps.sum(x).sum())


def check_spikes(spikes: Tensor, *, floating: bool = True) -> None:
    """Raise unless ``spikes`` is ``[T, B, ...]``."""
    if not isinstance(spikes, Tensor):
        raise TypeError(f"spikes must be a tensor, got {type(spikes).__name__}")
    if spikes.ndim < 3:
        raise ValueError(f"spikes must be [T, B, ...] (time, batch, neurons), got shape {tuple(spikes.shape)}")
    if floating and not spikes.is_floating_point():
        raise TypeError(f"spikes must be floating point, got {spikes.dtype}")


def _band(target: Union[float, Tuple[float, float]]) -> Tuple[float, float]:
    bounds = tuple(target) if isinstance(target, (tuple, list)) else (target, target)
    if len(bounds) != 2 or not all(isinstance(bound, (int, float)) for bound in bounds):
        raise TypeError(f"target must be a rate or a pair (lower, upper) of rates, got {target!r}")
    lower, upper = bounds
    if not 0.0 <= lower <= upper < math.inf:
        raise ValueError(f"target must have 0 <= lower <= upper, in spikes per step, got {target!r}")
    return lower, upper


# outputs and targets


def pool(outputs: Tensor, num_classes: Optional[int]) -> Tensor:
    """Sum populations of neighbours, ``[..., C] -> [..., num_classes]``; None changes nothing."""
    if num_classes is None:
        return outputs
    neurons = outputs.shape[-1]
    if isinstance(num_classes, bool) or not isinstance(num_classes, int):
        raise TypeError(f"num_classes must be an int or None, got {num_classes!r}")
    if num_classes < 1 or neurons % num_classes:
        raise ValueError(f"num_classes must divide the number of output neurons, {neurons}, got {num_classes}")
    return outputs.reshape(*outputs.shape[:-1], num_classes, neurons // num_classes).sum(-1)


def computed(outputs: Tensor) -> Tensor:
    """In the dtype that losses compute in: float32, and float64 for float64."""
    return outputs.to(compute_dtype(outputs.dtype))


def check_readout(name: str, outputs: Tensor, targets: Tensor, *, floating: bool = True) -> None:
    """Raise unless ``outputs`` is ``[T, B, C, *P]`` and ``targets`` are integers ``[B, *P]``, by shapes and dtypes."""
    _check_outputs(name, outputs, targets, floating, dense=True)
    hint = _hint_at_targets(name, tuple(outputs.shape), tuple(targets.shape))
    if targets.dtype not in _INDEX_DTYPES:
        hint = hint or ("; give targets.long()" if targets.is_floating_point() else "")
        raise TypeError(f"targets must be integer class indices such as torch.int64, got {targets.dtype}{hint}")
    wanted, form = (outputs.shape[1], *outputs.shape[3:]), "[T, B, C]" if outputs.ndim == 3 else "[T, B, C, *places]"
    if tuple(targets.shape) != wanted:
        raise ValueError(
            f"targets must be one class index per sample, shape {wanted} for {name} of shape "
            f"{tuple(outputs.shape)} ({form}), got shape {tuple(targets.shape)}{hint}"
        )


def _hint_at_targets(name: str, outputs: Tuple[int, ...], targets: Tuple[int, ...]) -> str:
    """Hint at the likely meaning of such sizes; "" if there is none."""
    steps, batch, classes, *places = outputs
    if places:
        return "; images want TimeBatched(nn.Flatten()), and inputs with time no encoder" if len(targets) == 1 else ""
    if targets == (batch, classes):
        return "; they seem to be one-hot: give targets.argmax(-1)"
    if targets == (batch, 1):
        return "; give targets.squeeze(-1)"
    if targets == (steps,) != (batch,):
        return (
            f"; {name} seem to be [B, T, C], as of a network that got [B, T, ...]: give it x.transpose(0, 1), or "
            "batches of sc.DataLoader(..., time_first=True)"
        )
    if targets == (steps, batch):
        return (
            "; they seem to be [T, B], one class at each step: for a loss of all steps write F.cross_entropy("
            f"{name}.flatten(0, 1), targets.flatten()); for one class per sample give targets[0]"
        )
    return ""


def check_times(name: str, outputs: Tensor, times: Tensor) -> None:
    """Raise unless ``outputs`` is ``[T, B, C]`` and ``times``, as targets, are ``[B, C]`` or ``[F, B, C]``."""
    _check_outputs(name, outputs, times, floating=True)
    if times.dtype == torch.bool or times.is_complex():
        raise TypeError(f"targets must be spike times, numbers of steps, got {times.dtype}")
    shape = tuple(outputs.shape[1:])
    if times.ndim not in (2, 3) or tuple(times.shape[-2:]) != shape or not len(times):
        raise ValueError(
            f"targets must be one spike time per sample and neuron, shape {shape}, or F of them, (F, *{shape}), with "
            f"target_is_time=True, got shape {tuple(times.shape)}"
        )


def _check_outputs(name: str, outputs: Any, targets: Tensor, floating: bool, dense: bool = False) -> None:
    if isinstance(outputs, (tuple, list)):
        raise TypeError(
            f"{name} must be a tensor, got {type(outputs).__name__}; for one of several outputs of a network write "
            "loss=lambda outputs, targets: your_loss(outputs[1], targets)"
        )
    for argument, value in ((name, outputs), ("targets", targets)):
        if not isinstance(value, Tensor):
            way_out = f"give torch.as_tensor({argument})"
            if isinstance(value, tuple):
                way_out = "give the labels, and a mask beside them as mask="
            raise TypeError(f"{argument} must be a tensor, got {type(value).__name__}; {way_out}")
    if outputs.ndim < 3 or (outputs.ndim > 3 and not dense):
        hint = "; the order is (outputs, targets)" if targets.ndim == 3 else ""
        if outputs.ndim == 2:
            hint = (
                "; put sc.encode.Constant(T) in front of the network, or give it all steps, [T, B, ...]; if forward "
                "averages over time, use a loss of torch, such as torch.nn.functional.cross_entropy"
            )
        raise ValueError(f"{name} must be [T, B, C] (time, batch, classes), got shape {tuple(outputs.shape)}{hint}")
    if outputs.shape[0] == 0 or outputs.shape[2] == 0:
        raise ValueError(f"{name} must have at least one time step and one class, got shape {tuple(outputs.shape)}")
    if floating and not outputs.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {outputs.dtype}")


def by_place(
    name: str, outputs: Tensor, targets: Tensor, mask: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """Dense outputs ``[T, B, C, *P]``, targets ``[B, *P]`` and a mask ``[T, B]`` with each place as a sample."""
    if outputs.ndim == 3:
        return outputs, targets, mask
    if mask is not None:
        _check_mask(name, outputs, mask)
        mask = mask.unsqueeze(-1).expand(*mask.shape, math.prod(targets.shape[1:])).flatten(1)
    return outputs.flatten(3).transpose(2, 3).flatten(1, 2), targets.flatten(), mask


class Steps:
    """The real steps of ``x``, ``[T, B, ...]``, which is called ``name``; without a mask all steps are real.

    ``without``, bool ``[B]``, is True for samples that a loss leaves out: they need no real step, and all of theirs
    count as real.
    """

    def __init__(self, name: str, x: Tensor, mask: Optional[Tensor], without: Optional[Tensor] = None) -> None:
        self.total, self.masked = x.shape[0], mask is not None
        #: bool ``[T, B]``, True at real steps, and at padded ones.
        self._real: Optional[Tensor] = None
        self._padded: Optional[Tensor] = None
        if mask is not None:
            _check_mask(name, x, mask)
            if without is not None:
                mask = mask.to(without.device) | without
            _check_sequences(name, mask)
            # the mask of a closure may still be on the host; in a PopTorch graph this makes it a constant
            self._real = mask.to(x.device)
            self._padded = self._real.logical_not()

    def filled(self, x: Tensor, value: Any = 0) -> Tensor:
        """``x`` with ``value`` at padded steps."""
        if self._padded is None:
            return x
        return x.masked_fill(_as_wide(self._padded, x), value)

    def count(self, x: Tensor) -> Tensor:
        """Number of real steps of each sequence of ``x``, ``[B]`` in its dtype: in float32 exact up to 2**24 steps."""
        if self._real is None:
            return x.new_full((x.shape[1],), x.shape[0])
        return self._real.to(x.dtype).sum(0)

    def places(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """The number of real steps before each one of ``x``, ``[T, B]`` or ``[T, 1]``, and before the last, ``[B]``."""
        if self._real is None:
            return torch.arange(len(x), device=x.device, dtype=x.dtype).unsqueeze(-1), self.count(x) - 1
        return (self._real.to(x.dtype).cumsum(0) - 1).clamp(min=0), (self.count(x) - 1).clamp(min=0)

    def valid(self, results: Tensor) -> Tensor:
        """``results``, ``[B, ...]``, with NaN for sequences without a real step."""
        if self._padded is None:
            return results
        return results.masked_fill(_as_wide(self._padded.all(0), results), math.nan)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over real steps, ``[B, ...]``."""
        return self.valid(self.filled(x).sum(0))

    def mean(self, x: Tensor) -> Tensor:
        """The mean over real steps, ``[B, ...]``."""
        if self._padded is None:
            return x.mean(0)
        return self.sum(x) / _as_wide(self.count(x).clamp(min=1), x[0])

    def max(self, x: Tensor) -> Tensor:
        """The maximum over real steps, ``[B, ...]``."""
        return self.valid(self.filled(x, -math.inf).max(0).values)


def _as_wide(values: Tensor, like: Tensor) -> Tensor:
    """``values`` with trailing dimensions of size 1, to stand beside ``like``."""
    return values.reshape(*values.shape, *(1,) * (like.ndim - values.ndim))


def _check_mask(name: str, x: Tensor, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"mask must be a bool tensor [T, B], True at real steps, got {type(mask).__name__}; from lengths "
            "sc.functional.mask_of(lengths, T) makes one"
        )
    if mask.dtype != torch.bool:
        way_out = (
            "mask != 0" if mask.ndim > 1 else f"sc.functional.mask_of(lengths, {x.shape[0]}), if these are lengths"
        )
        raise TypeError(f"mask must be torch.bool, True at real steps, got {mask.dtype}; give {way_out}")
    if tuple(mask.shape) != tuple(x.shape[:2]):
        turned = "; it seems to be [B, T], give mask.T" if tuple(mask.shape) == tuple(x.shape[1::-1]) else ""
        raise ValueError(
            f"mask must be [T, B], shape {tuple(x.shape[:2])} for {name} of shape {tuple(x.shape)}, got shape "
            f"{tuple(mask.shape)}{turned}"
        )


def _check_sequences(name: str, mask: Tensor) -> None:
    if mask.is_cpu and is_plain(mask) and mask.numel() and not mask.any(0).all():
        empty = (~mask.any(0)).nonzero().flatten()
        first = ", ".join(map(str, empty[:3].tolist()))
        raise ValueError(
            f"mask is False at every step of {len(empty)} of {mask.shape[1]} sequences (first: {first}), which have no "
            f"mean and no rate; leave them out, keep = mask.any(0), then {name}[:, keep], targets[keep], mask[:, keep]"
        )


class Targets:
    """Class indices of outputs, weights of classes, and how losses of samples are combined; a place is a sample."""

    def __init__(
        self,
        outputs: Tensor,
        targets: Tensor,
        weight: Optional[Tensor],
        mask: Optional[Tensor],
        ignore_index: Optional[int],
        reduction: str,
    ) -> None:
        check_readout("outputs", outputs, targets)
        _check_reduction(reduction)
        if weight is not None and not isinstance(weight, Tensor):
            raise TypeError(f"weight must be a tensor, one factor per class, got {type(weight).__name__}")
        self._shape = tuple(targets.shape)
        outputs, targets, mask = by_place("outputs", outputs, targets, mask)
        self._left_out = without = left_out(targets, ignore_index)
        # where a sample is left out the index is that of any number of classes, and no NaN reaches a gradient
        self._index = targets if without is None else targets.masked_fill(without, 0)
        self._weight, self._reduction = weight, reduction
        outputs = outputs if without is None else outputs.masked_fill(without.unsqueeze(-1), 0)
        #: The real steps, and the outputs in the dtype of losses.
        self.steps, self.x = Steps("outputs", outputs, mask, without), computed(outputs)

    def cross_entropy(self, log_p: Tensor, smoothing: float) -> Tensor:
        """The loss that samples have with such log probabilities ``[B, classes]``, reduced."""
        if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)):
            raise TypeError(f"label_smoothing must be a number, got {smoothing!r}")
        if not 0.0 <= smoothing <= 1.0:
            raise ValueError(f"label_smoothing must be from 0 to 1, got {smoothing!r}")
        of_target = self._indexed(log_p.shape[-1], lambda index: log_p.gather(-1, index))
        each, total = self._weighted(-of_target.squeeze(-1))
        if smoothing:
            spread = log_p if self._weight is None else log_p * self._weight_as(log_p)
            each = (1.0 - smoothing) * each - smoothing / log_p.shape[-1] * spread.sum(-1)
        return self._reduce(each, total)

    def reduce(self, losses: Tensor) -> Tensor:
        """Losses of samples ``[B]``, weighted and reduced."""
        return self._reduce(*self._weighted(losses))

    def per_class(self, like: Tensor, *, on: PerSample, off: PerSample) -> Tensor:
        """``[B, classes]`` with ``on`` in the column of the target and ``off`` elsewhere; numbers, or ``[B, 1]``.

        Not one_hot, which reads the targets on the host on some devices; scatter checks their range where it runs.
        """
        filled = torch.zeros_like(like) + off
        ones = torch.zeros_like(like[:, :1]) + on
        return self._indexed(like.shape[-1], lambda index: filled.scatter(-1, index, ones))

    def _indexed(self, classes: int, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function(targets[:, None])``; what torch says of a target that is no class becomes a sentence."""
        if self._weight is not None and tuple(self._weight.shape) != (classes,):
            shape = tuple(self._weight.shape)
            raise ValueError(f"weight must have shape ({classes},), one factor per class, got {shape}")
        targets = self._index
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
                f"targets has {', '.join(map(str, outside))}, out of range: the classes are 0 to {classes - 1}; "
                f"ignore_index={outside[0]} leaves samples with this target out"
            ) from error

    def _weight_as(self, like: Tensor) -> Any:
        # In a PopTorch graph this makes the weight of a closure a constant; elsewhere it should be in place already.
        return self._weight.to(device=like.device, dtype=like.dtype)  # type: ignore[union-attr]  # asked where it is one

    def _weighted(self, losses: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """Losses with the weights of their classes, and the sum that a mean divides by; None: the number of samples."""
        total = None if self._left_out is None else self._left_out.logical_not().to(losses.dtype).sum()
        if self._weight is not None:
            factor = self._weight_as(losses).index_select(0, self._index.long())
            if self._left_out is not None:
                factor = factor.masked_fill(self._left_out, 0)
            return losses * factor, total if self._reduction == "sample_mean" else factor.sum()
        return losses, total

    def _reduce(self, losses: Tensor, total: Optional[Tensor]) -> Tensor:
        if self._left_out is not None:
            losses = losses.masked_fill(self._left_out, 0)
        reduced = combined(losses, self._reduction, total)
        return reduced.reshape(self._shape) if self._reduction == "none" else reduced


def left_out(targets: Tensor, ignore_index: Optional[int]) -> Optional[Tensor]:
    """Mask of the samples with the target ``ignore_index``, bool ``[B]``; None without one."""
    if ignore_index is None:
        return None
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int or None, got {ignore_index!r}")
    # in 64 bits: of uint8 targets 156 would be -100
    return targets.long() == ignore_index


def combined(losses: Tensor, reduction: str, total: Optional[Tensor] = None) -> Tensor:
    """Losses of samples ``[B]`` as ``reduction`` says; a mean divides by ``total``, None: the number of samples."""
    _check_reduction(reduction)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if total is None else losses.sum() / total


def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, got {reduction!r}")


# spike counts and spike times


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return value


def _whole_spikes(name: str, rate: float, steps: Steps, lengths: Tensor, group: int, levels: int) -> PerSample:
    """Whole number of spikes at a rate, for all samples, or with a mask for each of these lengths, ``[B, 1]``."""
    if not 0.0 <= _number(name, rate) <= levels:
        more = "; of neurons that count say levels=, their largest count" if levels == 1 else ""
        raise ValueError(f"{name} must be between 0 and {levels} spikes per step, got {rate!r}{more}")
    # 0.29 * 100 is 28.999999999999996, and 29 spikes are meant
    if not steps.masked:
        return float(math.floor(steps.total * group * rate + 1e-6))
    if lengths.device.type in ("cpu", "cuda"):
        # not from a table, whose copy from the host a CUDA graph cannot capture
        counts = torch.floor(lengths.double() * group * rate + 1e-6).to(lengths.dtype)
    else:
        # not all other devices have float64; in a PopTorch graph the table is a constant
        table = [float(math.floor(count * group * rate + 1e-6)) for count in range(steps.total + 1)]
        counts = torch.tensor(table, dtype=lengths.dtype).to(lengths.device).index_select(0, lengths.long())
    return counts.unsqueeze(-1)


def _mean_square(error: Tensor) -> Tensor:
    return (error * error).mean(-1)


def _spike_times(steps: Steps, x: Tensor, spikes: int) -> List[Tensor]:
    """The times ``[B, C]`` of the first so many spikes of ``x`` ``[T, B, C]``."""
    x = steps.filled(x)
    step, last = steps.places(x)  # [T, B, 1] or [T, 1, 1], and [B, 1]
    step, last = step.unsqueeze(-1), last.unsqueeze(-1)
    fired = x.detach() != 0
    through = x - x.detach()  # 0 in value, with the derivative of the output
    times: List[Tensor] = []
    for _ in range(spikes):
        # the last step where nothing fired; at a padded step nothing does
        time = torch.where(fired, step, last.unsqueeze(0)).amin(0)
        at = steps.filled((step == time).to(x.dtype))
        times.append(time - (through * at).sum(0))
        fired = fired & (step > time)
    return times


def _distance(steps: Steps, x: Tensor, times: Sequence[Tensor], tolerance: float) -> Tensor:
    """Mean squared distance of the first spikes of samples ``[B]`` from wanted times, in parts of their lengths."""
    lengths = steps.count(x).unsqueeze(-1)
    squares: List[Tensor] = []
    for time, target in zip(_spike_times(steps, x, len(times)), times):
        # a time from the end is below 0
        error = time - torch.where(target < 0, (target + lengths).clamp(min=0), target)
        if tolerance:
            error = error.masked_fill((error < tolerance) & (error > -tolerance), 0)
        error = error / lengths.clamp(min=1)
        squares.append(error * error)
    return steps.valid(torch.stack(squares).mean(0).mean(-1))


def _as_times(name: str, at: Any, length: int) -> List[float]:
    values = at.tolist() if isinstance(at, Tensor) else at
    numbers: List[Any] = list(values) if isinstance(values, (list, tuple)) else [values]
    if not numbers or any(isinstance(number, bool) or not isinstance(number, (int, float)) for number in numbers):
        raise TypeError(f"{name} must be a number of steps or a sequence of them, got {at!r}")
    if not all(-length <= number < math.inf for number in numbers):
        raise ValueError(f"{name} must be a time from 0 on, or from the end, down to -T = {-length}, got {at!r}")
    return [float(number) for number in numbers]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise AttributeError(misnamed.missing_in(__name__, name))
