"""Parallel spiking neurons: sums over time with learnt weights and a threshold, without a membrane that is reset."""

from __future__ import annotations

import math
from typing import Any, Collection, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from spikecore.core import checks
from spikecore.core.neuron import Neuron
from spikecore.core.state import Stateful, Stepped
from spikecore.layers._stateless import counts
from spikecore.surrogate import Surrogate
from spikecore.words import shown

#: Name of the last inputs in the state.
PAST = "past"


class Fire(Neuron):
    """Spikes where the input is 0 or above, ``z = [h >= 0]``; it has no state."""

    states: Mapping[str, Any] = {}
    params: Mapping[str, Any] = {}

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        """One step."""
        return self.spike(x), {}


class PSN(Stepped):
    """Parallel spiking neuron: every step sees all steps, by a learnt matrix over time; no step waits for another.

    ::

        h[t] = sum over s of weight[t, s] * x[s] + bias[t],      s = 0 .. T - 1
        z[t] = [h[t] >= 0]

    ``[T, B, ...] -> [T, B, ...]`` with ``T = steps``. ``weight`` is ``[T, T]``, ``bias`` ``[T, 1]``, all neurons share
    them; the threshold of step t is ``-bias[t]`` and begins at 1. The sum is one matrix product, on any device. It
    stands outside ``TimeBatched``: ``nn.Sequential(TimeBatched(conv, norm), sc.layers.PSN(8))``.

    Later inputs reach earlier steps, and nothing is reset: it is for sequences that are there as a whole. For streams
    there is :class:`SlidingPSN`; ``step="single"`` is refused.

    steps: T, the number of time steps.
    surrogate: what stands for the derivative of the spike; ``ATan()`` by default. ``layer.fire`` is the neuron that has
        it, which any backend computes; :func:`spikecore.monitor` sees its spikes.

    ``state_dict`` is that of SpikingJelly's ``neuron.PSN``. Raises TypeError or ValueError for ``steps`` that are no
    whole number from 1 on, TypeError for what is no surrogate, and ValueError for an input of another number of steps.
    Source: Fang, Yu, Zhou, Chen, Chen, Ma, Masquelier, Tian: Parallel Spiking Neurons with High Efficiency and Ability
    to Learn Long-term Dependencies. NeurIPS 2023.
    """

    only_multi = "its matrix joins all steps of a sequence; sc.layers.SlidingPSN takes single steps"
    mixes_time = True
    #: For :func:`spikecore.layers.pack`, the part whose output this gives.
    output_of = "fire"

    def __init__(self, steps: int, *, surrogate: Optional[Surrogate] = None) -> None:
        super().__init__()
        counts("PSN", steps=steps)
        self.steps = steps
        self.fire = Fire(surrogate=surrogate)
        self.weight = nn.Parameter(torch.empty(steps, steps))
        self.bias = nn.Parameter(torch.full((steps, 1), -1.0))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Spikes for ``[T, B, ...]``."""
        _check("PSN", x)
        if x.ndim < 1 or x.shape[0] != self.steps:
            raise ValueError(
                f"PSN: x must be [T, B, ...] with T={self.steps}, the steps that it has weights for, got shape "
                f"{tuple(x.shape)}"
            )
        spikes: Tensor = self.fire(_summed(x, self.weight, self.bias))
        return spikes  # typed above: a call of a module is Any

    def extra_repr(self) -> str:
        """The number of steps."""
        return f"steps={self.steps}"


class SlidingPSN(Stateful):
    """Sliding parallel spiking neuron: every step sees the last ``order`` inputs, with weights that are learnt.

    ::

        h[t] = sum over i of weight[i] * x[t - order + 1 + i] + bias,      i = 0 .. order - 1
        z[t] = [h[t] >= 0]

    ``[T, B, ...] -> [T, B, ...]`` for any T, or ``[B, ...] -> [B, ...]`` of one step with ``step="single"``; x is 0
    before the first step. ``weight`` is ``[order]``, the newest input last, ``bias`` one number, all neurons share
    them; the threshold is ``-bias`` and begins at 1. Weights begin at ``..., 1/4, 1/2, 1``, as of a leaky membrane
    that nothing resets. All steps are one matrix product, on any device.

    order: how many inputs a step sees, the k of the paper.
    surrogate: what stands for the derivative of the spike; ``ATan()`` by default. ``layer.fire`` is the neuron that has
        it, which any backend computes; :func:`spikecore.monitor` sees its spikes.
    step: ``"multi"`` or ``"single"``, as of a neuron.

    The state is ``{"past": [order - 1, B, ...]}``, the last inputs, the newest last. It is carried, reset and detached
    as that of a neuron: a call starts from zeros but in single steps and within :func:`spikecore.carry_state`.

    ``state_dict`` is that of SpikingJelly's ``neuron.SlidingPSN``. Raises TypeError or ValueError for an ``order`` that
    is no whole number from 1 on, TypeError for what is no surrogate, and ValueError for an input of another batch than
    that carried from the last call. Source: Fang, Yu, Zhou, Chen, Chen, Ma, Masquelier, Tian: Parallel Spiking Neurons
    with High Efficiency and Ability to Learn Long-term Dependencies. NeurIPS 2023.
    """

    #: For :func:`spikecore.layers.pack`, the part whose output this gives.
    output_of = "fire"

    def __init__(self, order: int, *, surrogate: Optional[Surrogate] = None, step: str = "multi") -> None:
        super().__init__(step)
        counts("SlidingPSN", order=order)
        self.order = order
        self.fire = Fire(surrogate=surrogate, step=step)
        self.weight = nn.Parameter(0.5 ** torch.arange(order - 1.0, -1.0, -1.0))
        self.bias = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Spikes for ``[T, B, ...]``, or for ``[B, ...]`` in single-step mode."""
        _check("SlidingPSN", x)
        if self.step == "multi" and x.ndim < 1:
            raise ValueError("SlidingPSN: x must be [T, B, ...] with time first, got a 0-d tensor")
        sequence = x.unsqueeze(0) if self.step == "single" else x
        continues = self.continues
        seen = self._with_past(sequence, self._begin()) if continues else sequence
        steps = seen.shape[0]  # torch.export may have a symbol for it, which len makes a constant
        before = steps - sequence.shape[0]
        # weight[i] where the input is order - 1 - i steps before the output, 0 elsewhere
        lag = torch.arange(before, steps, device=x.device)[:, None] - torch.arange(steps, device=x.device)
        inside = (lag >= 0) & (lag < self.order)
        matrix = self.weight[(self.order - 1 - lag).clamp(0, self.order - 1)] * inside
        h = _summed(seen, matrix, self.bias)
        spikes: Tensor = self.fire(h.squeeze(0) if self.step == "single" else h)
        if continues:
            self._end({PAST: seen[steps - self.order + 1 :].clone()})
        return spikes

    def _with_past(self, sequence: Tensor, state: Optional[Mapping[str, Tensor]]) -> Tensor:
        """The inputs of a call behind those before it, which are 0 at rest."""
        shape = (self.order - 1, *sequence.shape[1:])
        past = checks.state("SlidingPSN", (PAST,), state, sequence, True, {PAST: shape}) or (sequence.new_zeros(shape),)
        return torch.cat([past[0].to(sequence.dtype), sequence])

    def _state_names(self) -> Collection[str]:
        return (PAST,)

    def extra_repr(self) -> str:
        """The order, and the step mode where it is not the usual one."""
        return f"order={self.order}" + (f", step={self.step!r}" if self.step != "multi" else "")


def _check(owner: str, x: Any) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{owner}: x must be a floating-point tensor, got {shown(x)}")


def _summed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``weight @ x + bias`` over time: ``[steps, ...]`` to ``[rows, ...]`` by a weight ``[rows, steps]``."""
    # without -1, whose size an empty batch does not tell
    h = torch.addmm(bias.to(x.dtype), weight.to(x.dtype), x.flatten(1) if x.ndim > 1 else x.unsqueeze(1))
    return h.view(weight.shape[0], *x.shape[1:])
