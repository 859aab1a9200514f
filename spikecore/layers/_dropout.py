"""Dropout whose mask is the same at every step of a sequence."""

from __future__ import annotations

from typing import Any, Collection, Dict, Optional

import torch
from torch import Tensor

from spikecore.core import checks
from spikecore.core.state import Stateful, with_generator, without_generator
from spikecore.words import shown

#: Name of the mask in the state.
MASK = "mask"


class SequenceDropout(Stateful):
    """Dropout that drops the same neurons at every step of a sequence.

    ::

        y[t] = x[t] * mask / (1 - p)        mask = 1 with the probability 1 - p, else 0, drawn once for all steps

    in training, and ``y = x`` in ``eval()``. ``[T, *N] -> [T, *N]``, the mask being ``[*N]``, one number for each
    neuron of each sample; ``[*N] -> [*N]`` of one step with ``step="single"``. A dropout that draws anew at each step
    (``nn.Dropout``) is averaged out by neurons that integrate; one mask takes their inputs away for the whole sequence.

    The state is ``{"mask": [*N]}``, divided by ``1 - p``. A multi-step call draws anew; in single steps and within
    :func:`spikecore.carry_state` the mask stays until :func:`spikecore.reset`, as it must within one sequence.

    p: the probability to drop, 0 to 1.
    step: ``"multi"`` or ``"single"``, as of a neuron.
    generator: what draws the masks; None takes torch's own of the device.

    It stands outside ``TimeBatched``, which has no steps. Raises TypeError or ValueError for a ``p`` outside 0 to 1 and
    for an input that is no floating-point tensor; ValueError for an input of another shape than that of the mask.
    Sources: Gal and Ghahramani (2016) for recurrent networks, Lee et al. (2020, Frontiers in Neuroscience 14) for
    spiking ones; SpikingJelly's ``layer.Dropout``.
    """

    may_rest = True

    def __init__(self, p: float = 0.5, *, step: str = "multi", generator: Optional[torch.Generator] = None) -> None:
        super().__init__(step)
        if isinstance(p, bool) or not isinstance(p, (int, float)):
            raise TypeError(f"SequenceDropout: p must be a number, got {p!r}")
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"SequenceDropout: p must be a probability from 0 to 1, got {p!r}")
        self.p = float(p)
        self.generator = checks.generator("SequenceDropout", generator)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, *N] -> [T, *N]``, or ``[*N] -> [*N]`` in single-step mode."""
        single = self.step == "single"
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"SequenceDropout: x must be a floating-point tensor, got {shown(x)}")
        if not (single or x.ndim):
            raise ValueError("SequenceDropout: x must be [T, ...] with time first, got a 0-d tensor")
        if not self.training:
            return x
        step = x if single else (x[0] if len(x) else x.new_empty(x.shape[1:]))
        if not (single or self._carrying):
            return x * self._drawn(step).to(x.dtype)
        state = self._begin()
        (mask,) = checks.state("SequenceDropout", (MASK,), state, step.unsqueeze(0), True) or (self._drawn(step),)
        y = x * mask.to(x.dtype)
        self._end({MASK: mask})
        return y

    def _drawn(self, step: Tensor) -> Tensor:
        """A mask for such a step."""
        options = checks.draw_options("SequenceDropout", self.generator, step.device)
        drawn: Tensor = torch.rand(step.shape, device=step.device, **options)
        return (drawn >= self.p).to(step.dtype) * (1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0)

    def _state_names(self) -> Collection[str]:
        return (MASK,)

    def __getstate__(self) -> Dict[str, Any]:
        return without_generator(super().__getstate__())

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(with_generator(state))

    def extra_repr(self) -> str:
        """The probability, and the step mode where it is not the usual one."""
        return f"p={self.p}" + (f", step={self.step!r}" if self.step != "multi" else "")
