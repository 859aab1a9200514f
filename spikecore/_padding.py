"""Real and padded steps of a batch of sequences of different lengths, for losses and metrics.

Rules of this module:

- A mask is bool ``[T, B]``, True at real steps. Which steps these are is free: padding may come first, last or between.
- Padded values are replaced, never multiplied by 0: NaN and infinity there reach neither a result nor a gradient.
- A sequence without a real step has no mean and no rate. Where the mask can be read without waiting for a device (on a
  CPU, in eager mode) that is a ValueError. Elsewhere (on a GPU or IPU, in a compiled or traced graph, under a transform
  of torch.func) nothing is read, and the results of that sequence are NaN.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from spikecore.lang._plain import is_plain


class Steps:
    """The real steps of ``x``, ``[T, B, ...]``, which is called ``name``; without a mask all steps are real.

    ``without``, bool ``[B]``, is True for samples that a loss leaves out: they need no real step, and all of theirs
    count as real.
    """

    def __init__(self, name: str, x: Tensor, mask: Optional[Tensor], without: Optional[Tensor] = None) -> None:
        #: bool ``[T, B]``, True at real steps, and at padded ones.
        self._real: Optional[Tensor] = None
        self._padded: Optional[Tensor] = None
        if mask is not None:
            _check(name, x, mask)
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
        """How many real steps each sequence of ``x`` has, ``[B]`` in its dtype: in float32 exact up to 2**24 steps."""
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


def _check(name: str, x: Tensor, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"mask must be a bool tensor [T, B], True at real steps, got {type(mask).__name__}; from lengths "
            "sc.functional.mask_of(lengths, T) makes one"
        )
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be torch.bool, True at real steps, got {mask.dtype}; give mask != 0")
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
