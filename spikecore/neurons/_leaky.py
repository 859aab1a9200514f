"""snnTorch's leaky integrate-and-fire neuron."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from spikecore._shell import checks
from spikecore.lang import ops
from spikecore.neuron import Neuron


class Leaky(Neuron):
    r"""Leaky integrate-and-fire with decay ``beta``, bit for bit as ``snntorch.Leaky`` 1.0 computes it.

    With :math:`b = \min(\max(\beta, 0), 1)`, and :math:`R = [u > \vartheta]` found from the potential at the start of
    the step and carrying no gradient::

        u' = b u + x - R threshold      reset="soft"  (snnTorch: "subtract")
        u' = b (1 - R) u + x            reset="hard"  ("zero"): the old potential goes, the new input stays
        u' = b u + x                    reset="none"
        z  = [u' > threshold]

    The potential that fired is thus visible for one step. With ``reset_delay=False`` the reset acts within the step,
    and its gradient flows: ``u'' = u' - (z - R) threshold`` (soft) or ``u' - (z - R) u'`` (hard).

    It fires on ``>``, unlike the other neurons here. The state is ``v``, the membrane potential, and starts at 0.
    ``beta`` is in [0, 1], ``threshold`` 0 or above. (With ``bounds=None`` the equation still limits ``beta``, which
    outside learns nothing, as in snnTorch.)

    A ``state_dict`` of ``snntorch.Leaky`` loads, fixed ``beta`` and ``threshold`` included, which are buffers there.
    """

    states = {"v": 0.0}
    params = {"beta": 0.9, "threshold": 1.0}
    configuration = {**Neuron.configuration, "reset": checks.reset, "reset_delay": checks.flag}
    bounds = {"beta": (0.0, 1.0), "threshold": (0.0, None)}

    def __init__(
        self,
        beta: Any,
        *,
        threshold: Any = params["threshold"],
        reset: str = "soft",
        reset_delay: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(beta=beta, threshold=threshold, **options)
        self.reset = reset
        self.reset_delay = reset_delay

    def dynamics(self, x: Any, s: Any, p: Any) -> Tuple[Any, Dict[str, Any]]:
        b = ops.clamp(p.beta, 0.0, 1.0)
        r = ops.detach(self.spike(s.v - p.threshold, strict=True))
        if self.reset == "soft":
            u = b * s.v + x - r * p.threshold
        elif self.reset == "hard":
            u = b * ops.select(r, 0.0, s.v) + x
        else:
            u = b * s.v + x
        z = self.spike(u - p.threshold, strict=True)
        if self.reset_delay or self.reset == "none":
            return z, {"v": u}
        late = z - r
        return z, {"v": u - late * (p.threshold if self.reset == "soft" else u)}
