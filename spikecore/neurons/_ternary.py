"""Neurons whose spikes are -1, 0 or 1."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore.lang import ops
from spikecore.neurons._lif import LIF

__all__ = ["TernaryLIF"]


class TernaryLIF(LIF):
    """LIF with spikes of both signs, -1, 0 and 1 (Guo et al., AAAI 2024, arXiv 2312.06372)::

        h  = as in LIF
        up, down = [h >= threshold], [-h >= threshold]
        z  = up - down
        v' = v_reset where up or down, else h      reset="hard"
        v' = h - threshold z                       reset="soft"
        v' = h                                     reset="none"

    ``up`` and ``down`` have a surrogate each, at ``h - threshold`` and at ``-h - threshold``.

    tau, decay_input: as in :class:`LIF`. threshold: above 0; 1 by default. v_reset: 0 by default.

    ``v`` starts at ``v_reset``; nothing is learnt unless asked for. SpikingJelly's ``TernaryLIFNode``. The paper's
    neuron is the one with ``decay_input=False``, its amplitude of spikes a factor behind it.
    """

    positive = ("threshold",)

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        h = self.charge(x, s, p)
        up, down = self.spike(h - p.threshold), self.spike(-h - p.threshold)
        z = up - down
        if self.reset == "hard":
            return z, {"v": ops.select(up + down, p.v_reset, h)}
        return z, {"v": self.after_spike(h, z, p)}
