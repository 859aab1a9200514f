"""What integrate-and-fire neurons share: a threshold, a surrogate, and what a spike does to the membrane potential."""

from __future__ import annotations

from typing import Any

from spikecore import checks
from spikecore.lang import ops
from spikecore.neuron import Neuron


class Membrane(Neuron):
    """A neuron whose potential ``v`` is charged, fires at the threshold, and is reset by the spike.

    ::

        z = [h >= threshold]
        v' = v_reset where z, else h      reset="hard"
        v' = h - threshold z              reset="soft"
        v' = h                            reset="none"

    ``v`` starts at ``v_reset``. With ``detach_reset`` the spike in the reset carries no gradient.
    """

    states = {"v": "v_reset"}
    params = {"threshold": 1.0, "v_reset": 0.0}
    configuration = {**Neuron.configuration, "reset": checks.reset}

    def __init__(self, *, reset: str = "hard", **options: Any) -> None:
        super().__init__(**options)
        self.reset = reset

    def after_spike(self, h: Any, z: Any, p: Any, threshold: Any = None) -> Any:
        """The potential after the reset. ``threshold`` is what a soft reset subtracts, the neuron's by default."""
        if self.reset == "hard":
            return ops.select(z, p.v_reset, h)
        if self.reset == "soft":
            return h - z * (p.threshold if threshold is None else threshold)
        return h
