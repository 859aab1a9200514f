"""What a case knows of a neuron: its oracle, its parameters, and the inputs that make it fire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import nn

import spikecore as sc
from spikecore.neuron import Neuron
from spikecore.testing._oracle import Array, Derivative, Oracle

ALL_RESETS = ("hard", "soft", "none")
QUARTERS = tuple(k / 4 for k in range(-1, 5))
HALVES = tuple(k / 2 for k in range(-1, 6))


def single(**values: float) -> Mapping[str, float]:
    """Numbers rounded to what float32 holds."""
    return {name: float(np.float32(value)) for name, value in values.items()}


@dataclass(frozen=True)
class Model:
    """A neuron as a case sees it."""

    name: str
    neuron: Type[Neuron]
    oracle: Type[Oracle]
    params: Mapping[str, float]
    #: Margin inputs are uniform in this.
    drive: Tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)
    resets: Tuple[str, ...] = ALL_RESETS
    #: Parameters and input levels with which nothing is rounded; the steps for which that holds, and the resets.
    exact_params: Mapping[str, float] = field(default_factory=dict)
    exact_levels: Tuple[float, ...] = ()
    exact_steps: int = 12
    exact_resets: Tuple[str, ...] = ALL_RESETS
    #: Made of + - * / and comparisons alone, so every bit of it is fixed.
    arithmetic: bool = True
    #: What each output is, as the table of tolerances calls it.
    outputs: Tuple[str, ...] = ("spikes",)

    @property
    def fires(self) -> bool:
        """Whether there are spikes among the outputs."""
        return "spikes" in self.outputs

    def twin(self, reset: str, surrogate: Optional[Derivative] = None, detach: bool = False) -> Oracle:
        """The oracle of this neuron with this reset."""
        return self.oracle(surrogate, reset=reset, detach_reset=detach, **self.options)

    def build(
        self,
        backend: str,
        reset: str,
        values: Mapping[str, Any],
        *,
        surrogate: Optional[sc.Surrogate] = None,
        detach: bool = False,
        learn: Sequence[str] = (),
        **options: Any,
    ) -> Neuron:
        """The neuron, with numbers or tensors as parameters, those in ``learn`` learnable."""
        given = {**self.options, **options, **values}
        if len(self.resets) > 1:
            given["reset"] = reset
        w = given.pop("w", None)
        neuron: Any = self.neuron(
            surrogate=surrogate,
            detach_reset=detach,
            backend=backend,
            **given,
            learn=tuple(n for n in learn if n != "w"),
        )
        if w is not None:
            # PLIF takes tau and stores w, a rounding apart
            neuron.w = nn.Parameter(torch.as_tensor(w, dtype=torch.float32)) if "w" in learn else w
        made: Neuron = neuron
        return made


def spread(value: float, shape: Sequence[int], amount: float = 0.15) -> Array:
    """Values around ``value``, one per element of ``shape``, all different, each held by float32."""
    count = int(np.prod(shape))
    steps = np.linspace(-amount, amount, count) if count > 1 else np.zeros(count)
    return np.asarray(np.float32(value * (1 + steps)) if value else np.float32(steps), float).reshape(tuple(shape))
