"""Delays of a feedback: at which step each output comes back, and where its cotangent goes.

The output ``y[s]`` of neuron ``j`` comes back at step ``s + 1 + lags[j]``. Outputs are kept in one tensor, the history:
first those before the call, ``y[-longest - 1]`` to ``y[-1]``, then those of its steps.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

import torch
from torch import Tensor


class Delays(NamedTuple):
    """Delays of each neuron's output in the feedback."""

    #: ``[H]``, whole numbers from 0 to ``longest``.
    lags: Tensor
    longest: int
    #: The outputs before the last one before the call, ``[*N, longest]``, the newest last.
    past: Tensor

    @property
    def rows(self) -> int:
        """The steps that may still come back: the last one and the past."""
        return self.longest + 1

    def history(self, first: Tensor, steps: int) -> Tensor:
        """``[longest + 1 + steps, *N]``, with what was before the call; ``first`` is the last output before it."""
        history = first.new_empty((self.rows + steps, *first.shape))
        history[: self.longest] = self.past.movedim(-1, 0)
        history[self.longest] = first
        return history

    def arriving(self, history: Tensor, start: int, count: int) -> Tensor:
        """Delayed outputs that arrive at ``count`` steps from ``start`` on, ``[count, *N]``."""
        steps = torch.arange(start, start + count, device=history.device)
        return history.gather(0, self._spread(steps.unsqueeze(-1) + self.longest - self.lags, history.shape[1:]))

    def sent(self, later: Tensor, step: int) -> Tensor:
        """The cotangent of the output of a step, from the later step at which it comes back, ``[*N]``. ``later`` has a
        row for each step, and ``longest + 1`` more behind the last one.
        """
        window = later[step + 1 : step + 1 + self.rows]
        return window.gather(0, self._spread(self.lags.unsqueeze(0), later.shape[1:]))[0]

    def to_earlier(self, came: Tensor, of_past: Optional[Tensor]) -> Tensor:
        """The cotangents of the outputs before the call, ``[longest + 1, *N]``: ``came`` are those of what came back at
        the first steps, ``of_past`` that of the past behind the call, where outputs before the call are still in it.
        """
        rows = torch.arange(self.rows, device=came.device).unsqueeze(-1)
        steps = rows - self.longest + self.lags
        there = (steps >= 0) & (steps < came.shape[0])
        index = self._spread(steps.clamp(0, came.shape[0] - 1), came.shape[1:])
        total = came.gather(0, index).masked_fill_(~self._spread(there, came.shape[1:]), 0.0)
        if of_past is not None:
            total[self.rows - of_past.shape[0] :] += of_past
        return total

    def behind(self, history: Tensor) -> Tensor:
        """The past behind the steps of a history."""
        steps = history.shape[0] - self.rows
        return history[steps : steps + self.longest].movedim(0, -1).clone(memory_format=torch.contiguous_format)

    def _spread(self, index: Tensor, shape: Sequence[int]) -> Tensor:
        """``[K, H]`` as ``[K, *N]``."""
        sizes = [index.shape[0], *[1] * (len(shape) - 1), index.shape[1]]
        return index.view(sizes).expand(index.shape[0], *shape)
