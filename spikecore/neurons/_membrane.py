"""Base of integrate-and-fire neurons: a threshold, a surrogate, and the effect of a spike on the membrane potential."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional

import torch
from torch import Tensor, nn

from spikecore.core import checkpoints, checks
from spikecore.core.neuron import Neuron
from spikecore.core.ranges import Interval
from spikecore.lang import ops

__all__ = ["Membrane"]


class Membrane(Neuron):
    """A neuron whose potential ``v`` is charged, fires at the threshold, and is reset by the spike.

    ::

        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    ``v`` starts at ``v_reset``. With ``detach_reset`` the spike in the reset carries no gradient.

    threshold: where it fires, in the unit of the potential; 0 or above. Where ``v_reset`` is below 0, as in millivolts,
        ``v_reset`` or above; where such a ``v_reset`` is learnt it has no range.
    reset: ``"hard"`` to ``v_reset``, ``"soft"`` by subtraction of ``threshold``, or ``"none"``.
    v_reset: the potential at the start and after a hard reset.
    """

    states = {"v": "v_reset"}
    params = {"threshold": 1.0, "v_reset": 0.0}
    configuration = {**Neuron.configuration, "reset": checks.reset}
    bounds = {"threshold": (0.0, None)}
    follows = {"threshold": "v_reset where that is below 0, so set v_reset first"}

    def __init__(self, *, reset: str = "hard", **options: Any) -> None:
        super().__init__(**options)
        self.reset = reset

    def _declared_bounds(self, values: Mapping[str, Any]) -> Dict[str, Interval]:
        bounds = super()._declared_bounds(values)
        v_reset = values["v_reset"]
        if isinstance(v_reset, nn.Parameter) or "v_reset" in self.learn:
            # it moves at every update: below 0 no fixed end holds, and what is saved must load again
            lowest = v_reset.detach() if isinstance(v_reset, Tensor) else torch.tensor(float(v_reset))
            v_reset = -math.inf if lowest.device.type != "cpu" or bool((lowest < 0).any()) else 0.0
        elif isinstance(v_reset, Tensor):
            # no wait for a device: there a threshold of any value may be above it
            v_reset = v_reset.min().item() if v_reset.device.type == "cpu" and v_reset.numel() else -math.inf
        if bounds.get("threshold") == Interval(0.0) and isinstance(v_reset, (int, float)) and v_reset < 0:
            bounds["threshold"] = Interval(v_reset)
        return bounds

    def _foreign(self, name: str, value: Tensor) -> Optional[str]:
        if name not in checkpoints.SNNTORCH:
            return None
        return (
            f"is of a neuron of snnTorch, which fires above the threshold and resets one step later, and a "
            f"{type(self).__name__} fires at the threshold and resets at once; load a Leaky into sc.Leaky, a Synaptic "
            "into sc.SynapticLeaky"
        )

    def after_spike(self, h: Any, z: Any, p: Any, threshold: Any = None) -> Any:
        """The potential after the reset. ``threshold`` is what a soft reset subtracts, the neuron's by default."""
        if self.reset == "hard":
            return ops.select(z, p.v_reset, h)
        if self.reset == "soft":
            return h - z * (p.threshold if threshold is None else threshold)
        return h
