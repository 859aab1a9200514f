"""Targets of losses: class indices, with samples that are left out, class weights, and how samples combine."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple, Union

import torch
from torch import Tensor

from spikecore.lang._plain import is_compiling

#: One number for all samples, or ``[B, 1]``.
PerSample = Union[float, Tensor]

_REDUCTIONS = ("mean", "sum", "none")


class Targets:
    """Class indices ``[B]`` beside one number per class, ``[B, classes]``."""

    def __init__(
        self, targets: Tensor, classes: int, weight: Optional[Tensor], ignore_index: Optional[int], reduction: str
    ) -> None:
        _check(reduction)
        if weight is not None:
            if not isinstance(weight, Tensor):
                raise TypeError(f"weight must be a tensor, one factor per class, got {type(weight).__name__}")
            if tuple(weight.shape) != (classes,):
                raise ValueError(
                    f"weight must have shape ({classes},), one factor per class, got {tuple(weight.shape)}"
                )
        self._left_out = left_out(targets, ignore_index)
        #: ``[B]``, 0 where a sample is left out, so that it is an index of any number of classes.
        self._index = targets if self._left_out is None else targets.masked_fill(self._left_out, 0)
        self._classes, self._weight, self._reduction = classes, weight, reduction

    def cross_entropy(self, log_p: Tensor, smoothing: float) -> Tensor:
        """The loss that samples have with such log probabilities ``[B, classes]``, reduced."""
        if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)):
            raise TypeError(f"label_smoothing must be a number, got {smoothing!r}")
        if not 0.0 <= smoothing <= 1.0:
            raise ValueError(f"label_smoothing must be from 0 to 1, got {smoothing!r}")
        each, total = self._weighted(-self._indexed(lambda index: log_p.gather(-1, index)).squeeze(-1))
        if smoothing:
            spread = log_p if self._weight is None else log_p * self._weight_as(log_p)
            each = (1.0 - smoothing) * each - smoothing / self._classes * spread.sum(-1)
        return self._reduce(each, total)

    def reduce(self, losses: Tensor) -> Tensor:
        """Losses of samples ``[B]``, weighted and reduced."""
        return self._reduce(*self._weighted(losses))

    def per_class(self, like: Tensor, *, on: PerSample, off: PerSample) -> Tensor:
        """``[B, classes]`` with ``on`` in the column of the target and ``off`` elsewhere; numbers, or ``[B, 1]``.

        Not one_hot, which reads the targets on the host on some devices; scatter checks their range where it runs.
        """
        wanted = torch.zeros_like(like) + off
        ones = torch.zeros_like(like[:, :1]) + on
        return self._indexed(lambda index: wanted.scatter(-1, index, ones))

    def _indexed(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``function(targets[:, None])``; what torch says of a target that is no class becomes a sentence."""
        targets, classes = self._index, self._classes
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
        if self._weight is not None:
            factor = self._weight_as(losses).index_select(0, self._index.long())
            if self._left_out is not None:
                factor = factor.masked_fill(self._left_out, 0)
            return losses * factor, factor.sum()
        if self._left_out is not None:
            return losses, self._left_out.logical_not().to(losses.dtype).sum()
        return losses, None

    def _reduce(self, losses: Tensor, total: Optional[Tensor]) -> Tensor:
        if self._left_out is not None:
            losses = losses.masked_fill(self._left_out, 0)
        return combined(losses, self._reduction, total)


def left_out(targets: Tensor, ignore_index: Optional[int]) -> Optional[Tensor]:
    """Which samples have the target ``ignore_index``, bool ``[B]``; None without one."""
    if ignore_index is None:
        return None
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int or None, got {ignore_index!r}")
    # in 64 bits: of uint8 targets 156 would be -100
    return targets.long() == ignore_index


def kept(outputs: Tensor, without: Optional[Tensor]) -> Tensor:
    """Outputs ``[T, B, C]`` with 0 for samples that are left out, so that no NaN of theirs reaches a gradient."""
    return outputs if without is None else outputs.masked_fill(without.unsqueeze(-1), 0)


def combined(losses: Tensor, reduction: str, total: Optional[Tensor] = None) -> Tensor:
    """Losses of samples ``[B]`` as ``reduction`` says; a mean divides by ``total``, None: the number of samples."""
    _check(reduction)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if total is None else losses.sum() / total


def _check(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, got {reduction!r}")
